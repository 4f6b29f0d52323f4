"""A recorded step with something of it changed."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load
from starlette.testclient import TestClient
from tests.view.test_runs import fits

from limpid.tracing import Trace

Ask = Callable[..., TestClient]
WEIGHT = "blocks.0.mlp.up.weight[3, 5]"


def test_nothing_changed_changes_nothing_and_is_the_trace(two: Path, ask: Ask) -> None:
    """The step that is done again is the recorded one: the worked model is mathematics in float64 itself."""
    client, trace = ask(two), Trace.open(two / "001/steps/000001.safetensors")
    same = {"kind": "weight", "entry": WEIGHT, "value": float(trace.array("blocks.0.mlp.up.weight", (3, 5)))}
    found = client.post("/api/what-if", json={"run": "001", "step": 1, "changes": [same]}).json()
    fits(found, "WhatIfDocument")
    assert found["loss"]["before"] == found["loss"]["after"] == trace.step.loss.value
    assert all(row["largest"] == 0 for row in found["rows"])
    for name in ("logits", "grad(logits.weight)", "update(logits.weight)"):
        tensors = load(client.get(f"/api/what-if/{found['result']}/slice?entry={name}&side=a").content)
        np.testing.assert_array_equal(tensors["data"], trace.array(name))


def changed(client: TestClient, *changes: dict) -> dict:
    answer = client.post("/api/what-if", json={"run": "001", "step": 1, "changes": list(changes)})
    assert answer.status_code == 200, answer.text
    found: dict = answer.json()
    return found


def moved(found: dict) -> set[str]:
    return {row["name"] for row in found["rows"] if row["largest"] > 0 or row["not_finite"]}


def test_a_weight_changes_what_follows_it_by_its_gradient(two: Path, ask: Ask) -> None:
    client, trace = ask(two), Trace.open(two / "001/steps/000001.safetensors")
    name = "blocks.0.mlp.up.weight"
    value, step = float(trace.array(name, (3, 5))), 1e-6
    found = changed(client, {"kind": "weight", "entry": WEIGHT, "value": value + step})
    slope = (found["loss"]["after"] - found["loss"]["before"]) / step
    assert slope == pytest.approx(float(trace.array("grad(blocks.0.mlp.up.weight)", (3, 5))), rel=1e-3)
    assert "blocks.0.attention.scores" not in moved(found)
    assert {"blocks.0.mlp.up", "logits", "loss", "grad(blocks.0.attention.scores)"} <= moved(found)
    asked = f"entry=update({name})[3,5]&side=difference"
    part = client.get(f"/api/what-if/{found['result']}/slice?{asked}")
    assert load(part.content)["data"] == pytest.approx(step, rel=0.1)


def test_rate_mask_token_target_and_precision(two: Path, ask: Ask) -> None:
    client = ask(two)
    rate = changed(client, {"kind": "rate", "value": 0.0})
    assert {name.split("(")[0] for name in moved(rate)} == {"update"}
    mask = changed(client, {"kind": "visible", "query": 0, "key": 3, "see": True})
    assert "blocks.0.attention.scores" not in moved(mask)
    assert "blocks.0.attention.weights" in moved(mask)
    token = changed(client, {"kind": "token", "row": 0, "position": 3, "token": 0})
    assert {"embed.tokens", "loss"} <= moved(token)
    target = changed(client, {"kind": "target", "row": 0, "position": 3, "token": -100})
    assert "logits" not in moved(target)
    assert "loss" in moved(target)
    half = changed(client, {"kind": "precision", "format": "bf16"})
    rows = {row["name"]: row for row in half["rows"]}
    assert 1e-4 < rows["logits"]["relative"] < 0.1


@pytest.mark.parametrize(
    "change",
    [
        {}, 3, {"kind": "nothing"}, {"kind": "weight"}, {"kind": "weight", "entry": "nothing", "value": 1},
        {"kind": "weight", "entry": "blocks.0.mlp.up.weight", "value": 1},
        {"kind": "weight", "entry": "blocks.0.mlp.up.weight[99,0]", "value": 1},
        {"kind": "weight", "entry": WEIGHT, "value": "nan"}, {"kind": "weight", "entry": WEIGHT, "value": True},
        {"kind": "token", "row": 0, "position": 99, "token": 1},
        {"kind": "token", "row": 0, "position": 0, "token": 99},
        {"kind": "token", "row": -1, "position": 0, "token": 1},
        {"kind": "token", "row": 0, "position": 0, "token": -100},
        {"kind": "rate", "value": -1}, {"kind": "rate", "value": "1"}, {"kind": "precision", "format": "int4"},
        {"kind": "visible", "query": 0, "key": 0, "see": False},
        {"kind": "visible", "query": 0, "key": "1", "see": True},
    ],
)  # fmt: skip
def test_changes_that_make_no_sense(two: Path, ask: Ask, change: object) -> None:
    answer = ask(two).post("/api/what-if", json={"run": "001", "step": 1, "changes": [change]})
    assert answer.status_code == 400, answer.text
    fits(answer.json(), "ErrorDocument")
