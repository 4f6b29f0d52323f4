"""Faults in the middle of training: what is resumed is the training that nothing disturbed. More: make endurance."""

from pathlib import Path

import pytest
from benchmarks.endurance.__main__ import at_a_moment, prepare
from benchmarks.endurance.faults import FAULTS
from benchmarks.endurance.limpid_runs import LimpidRun
from benchmarks.endurance.process import Moment
from benchmarks.endurance.trial import Trial, attempt

SHORT = {"max_steps": 6, "save_steps": 2, "eval_steps": 4, "sample_steps": 0, "doctor": "no"}
DONE = ("SIGKILL", "files limited", "checkpoint damaged", "lines torn", "settings damaged")


def test_what_is_resumed_is_what_nothing_disturbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIMPID_CACHE", str(tmp_path))
    subject = LimpidRun("train", changed=SHORT)
    prepared = prepare(subject, tmp_path / subject.name)
    chosen = [fault for fault in FAULTS if fault.name in DONE]
    for number, fault in enumerate(chosen):
        trial = at_a_moment(Trial(number, fault, subject, Moment(), resumed=False), prepared, seed=2)
        outcome = attempt(trial, prepared, tmp_path)
        assert not outcome.problems or fault.name == "settings damaged", (trial.name, outcome.at, outcome.said)
        assert not any(problem.startswith(("different", "traceback")) for problem in outcome.problems), outcome.said
