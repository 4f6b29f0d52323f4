"""Two of anything: checkpoints, runs, recorded steps, and their arrays side by side."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load, save_file
from starlette.testclient import TestClient
from tests.view.test_runs import fits

import limpid
from limpid.reporter import SILENT
from limpid.run import Run
from limpid.view import worker

Ask = Callable[..., TestClient]


def test_two_checkpoints_and_two_runs(trained: tuple[Path, bytes], ask: Ask, tmp_path: Path) -> None:
    folder, _ = trained
    client = ask(folder)
    found = client.get("/api/compare?a=001@10&b=001@20").json()
    fits(found, "ComparedDocument")
    models = [limpid.load(f"{folder / '001'}@{step}")[0].state_dict() for step in (10, 20)]
    for row in found["rows"]:
        a, b = (model[row["name"]].double() for model in models)
        assert row["relative"] == pytest.approx(float((a - b).norm() / b.norm()))
        assert row["largest"] == float((a - b).abs().max())
        assert abs(row["a"] - row["b"]) == row["largest"]
    assert {row["name"] for row in found["rows"]} == set(models[0])
    assert client.get("/api/compare?a=001&b=001").json()["options"] == []
    for query in ("a=001&b=001@10", "a=001@3&b=001@10", "a=001/1/2&b=001/1", "a=001", "a=..&b=.."):
        assert client.get(f"/api/compare?{query}").status_code in (400, 404), query


def test_two_steps_are_shown_at_once_and_what_rounding_allows_when_it_was_made(two: Path, ask: Ask) -> None:
    client = ask(two)
    found = client.get("/api/compare?a=001/1&b=001/2").json()
    fits(found, "ComparedDocument")
    assert found["same_batch"] is True
    assert found["alone"] == []
    assert {row["kind"] for row in found["rows"]} == {"forward", "backward", "update"}
    assert found["bounds"] == "to come"
    assert all(row["largest"] == 0 and row["share"] is None for row in found["rows"])
    files = [str(Run(two / "001").recorded_step(step)) for step in (1, 2)]
    worker.bounds({"a": files[0], "b": files[1]}, SILENT.progress)
    bounded = client.get("/api/compare?a=001/1&b=001/2").json()
    assert bounded["bounds"] == "here"
    assert all(row["share"] in (0, None) for row in bounded["rows"])
    assert any(row["bound"] for row in bounded["rows"])
    assert client.post("/api/compare/bounds", json={"a": "001", "b": "001/2"}).status_code == 400


def test_arrays_of_two_steps_beside_each_other(two: Path, ask: Ask, tmp_path: Path) -> None:
    """Both sides are the records' own numbers, and the difference and its share of the bound follow from them."""
    folder = tmp_path / "runs"
    shutil.copytree(two, folder)
    file = Run(folder / "001").recorded_step(2)
    with safe_open(file, "numpy") as record:
        tensors, meta = {name: record.get_tensor(name) for name in record.keys()}, record.metadata()  # noqa: SIM118
    name, scores = "plain/blocks.0.attention.scores", "blocks.0.attention.scores"
    tensors[name][0, 1, 3, 2] += 0.25
    save_file(tensors, file, meta)
    client = ask(folder)

    def side(word: str, entry: str = f"{scores}[0, 1]") -> np.ndarray:
        answer = client.get(f"/api/compare/slice?a=001/1&b=001/2&entry={entry}&side={word}")
        assert answer.status_code == 200, answer.text
        return load(answer.content)["data"]

    b = tensors[name][0, 1]
    np.testing.assert_array_equal(side("b"), b)
    np.testing.assert_array_equal(side("difference"), side("a") - b)
    share = side("share")
    assert share[3, 2] > 1e6
    assert np.count_nonzero(share) == 1
    tile = client.get(f"/api/compare/tiles?a=001/1&b=001/2&name={scores}&index=0,1&side=difference")
    assert load(tile.content)["min"].min() == -0.25
    for query in ("side=c", "side=a&entry=nothing", "side=a&entry=loss[9]"):
        asked = query if "entry" in query else f"{query}&entry={scores}"
        assert client.get(f"/api/compare/slice?a=001/1&b=001/2&{asked}").status_code in (400, 404), query


def test_weights_of_two_checkpoints_beside_each_other(trained: tuple[Path, bytes], ask: Ask) -> None:
    client, name = ask(trained[0]), "embed.tokens.weight"
    a, b = (limpid.load(f"{trained[0] / '001'}@{step}")[0].state_dict()[name].double().numpy() for step in (10, 20))
    answer = client.get(f"/api/compare/slice?a=001@10&b=001@20&entry={name}&side=difference")
    np.testing.assert_array_equal(load(answer.content)["data"], a - b)
    assert client.get("/api/compare/slice?a=001@10&b=001@20&entry=nothing&side=a").status_code == 404
    assert client.get(f"/api/compare/slice?a=001&b=001&entry={name}&side=a").status_code == 400
