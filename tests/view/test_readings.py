"""What is read out of recorded steps: the logit lens, an entry over the run, findings where they point."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from tests.view.test_runs import fits

import limpid
from limpid.doctor.finding import Finding
from limpid.inspection.logit_attribution import logit_lens, read_out
from limpid.quantities import residual_stream
from limpid.reporter import SILENT
from limpid.run import Run
from limpid.tracing import Trace
from limpid.training.replay import record_past

Ask = Callable[..., TestClient]
WEIGHT = "blocks.0.mlp.up.weight[3, 5]"


def test_the_lens_of_a_recorded_step_is_that_of_the_terminal(trained: tuple[Path, bytes], ask: Ask) -> None:
    """The same streams read out by NumPy and by PyTorch: `limpid inspect` has the other one."""
    folder, _ = trained
    record_past(Run(folder / "001"), 21, SILENT.progress)
    trace = Trace.open(Run(folder / "001").recorded_step(21))
    answer = ask(folder).get("/api/runs/001/steps/21/lens?row=1&first=2&count=3")
    found = answer.json()
    fits(found, "LensView")
    transformer = limpid.load(f"{folder / '001'}@20")[0].double()
    streams = [name for name, _ in residual_stream(trace.record.config.model)]
    seen = {name: torch.tensor(trace.array(name, (slice(1, 2),))) for name in streams}
    seen["logits"] = read_out(transformer, seen[streams[-1]])
    tokens = torch.tensor(trace.array("tokens")[1:2])
    for place in range(3):
        position = 2 + place
        with torch.no_grad():
            want = logit_lens(transformer, seen, tokens, position)
        target = int(trace.array("targets")[1, position])
        for layer, row in zip(want, found["layers"], strict=True):
            cell = row["cells"][place]
            assert row["title"] == layer.name
            assert cell["likeliest"][0]["id"] == layer.top.token
            assert cell["likeliest"][0]["probability"] == pytest.approx(layer.top.probability, rel=1e-9)
            assert cell["kl"] == pytest.approx(layer.kl, abs=1e-9)
            assert layer.next is not None
            assert target == layer.next.token
            assert (cell["rank"], cell["target"]) == (layer.next.rank, pytest.approx(layer.next.probability, rel=1e-9))
    assert (found["first"], found["positions"], len(found["targets"])) == (2, trace.array("tokens").shape[1], 3)
    for query in ("row=99", "first=9999", "row=x"):
        assert ask(folder).get(f"/api/runs/001/steps/21/lens?{query}").status_code in (400, 404)


def test_an_entry_over_the_recorded_steps(two: Path, ask: Ask) -> None:
    client, trace = ask(two), Trace.open(two / "001/steps/000001.safetensors")
    for entry, what in ((WEIGHT, "entry"), ("grad(logits)[0, 2, 3]", "entry"), ("blocks.0.mlp.up.weight", "norm")):
        found = client.get(f"/api/runs/001/over-steps?entry={entry}&what={what}").json()
        fits(found, "OverSteps")
        name, _, index = entry.partition("[")
        array = trace.array(name)
        want = np.linalg.norm(array) if what == "norm" else array[tuple(map(int, index.rstrip("]").split(",")))]
        assert [point["step"] for point in found["points"]] == [1, 2]
        assert [point["value"] for point in found["points"]] == [pytest.approx(float(want), rel=1e-12)] * 2
    assert client.get("/api/runs/001/over-steps?entry=nothing").json()["points"] == []
    assert client.get(f"/api/runs/001/over-steps?entry={WEIGHT}&what=mean").status_code == 400


def test_findings_stand_where_they_point(two: Path, ask: Ask, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(two, folder)
    wheres = {
        "blocks.0.attention": ("block 0 attention", None, []),
        "blocks.0.mlp.up.weight": ("block 0 mlp", "blocks.0.mlp.up.weight", []),
        "batch rows 0": ("embedding", "tokens", [0, 0]),
        "row 0, position 2 on": ("embedding", "tokens", [0, 2]),
        "row 9, position 2 on": ("embedding", "tokens", []),
        "token 3": ("embedding", "embed.tokens.weight", [3, 0]),
        "gradient of the logits": ("logits", "grad(logits)", []),
        "loss": ("loss", "loss", []),
        "learning rate": ("update", None, []),
    }
    lines = [
        Finding(
            rule="not-finite", severity="fault", step=step, where=where, says="s", cause="c", fix="f", refuted_by="r"
        )
        for step in (2, 40)
        for where in (*wheres, "somewhere else")
    ]
    (folder / "001/findings.jsonl").write_text("".join(f"{one.as_json()}\n" for one in lines))
    found = ask(folder).get("/api/runs/001/steps/1/findings").json()
    fits(found, "FindingsView")
    placed = {one["finding"]["where"]: one for one in found["findings"]}
    assert {where: (one["station"], one["name"], one["index"]) for where, one in placed.items()} == wheres
    assert all(one["finding"]["step"] == 2 for one in found["findings"])
    assert lines[placed["loss"]["number"]].where == "loss"
