"""The doctor beside runs that tune a model: silent where nothing is wrong, and it knows what the run says of itself."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from limpid.doctor.logs import read_record
from limpid.doctor.report import diagnose
from limpid.run import Run

MOVED = {"learning_rate": 0.002, "warmup_steps": 0}


@pytest.mark.parametrize("objective", ["sft", "dpo", "ipo", "kto", "reward", "grpo", "rloo"])
def test_a_run_without_a_fault_is_left_alone(tuned: Callable[..., Run], objective: str) -> None:
    run = tuned(objective, run={"doctor": True, "max_steps": 12, "save_steps": 0, "eval_steps": 0}, update=MOVED)
    said = [json.loads(line) for line in (run.path / "findings.jsonl").read_text().splitlines()]
    assert [finding for finding in said if finding["severity"] != "notice"] == []
    curves = read_record(run.path)
    assert curves.tuning is not None
    assert curves.tuning.objective == objective
    assert [finding for finding in diagnose(curves) if finding.severity != "notice"] == []
