"""What both halves of a step are given is derived twice too: a slip in the engine's half alone is found and named."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from recorded import configuration, record

import limpid.schedule
from limpid.config import TrainConfig
from limpid.config.sections import ScheduleName
from limpid.tracing.record import Record
from limpid.tracing.update import redo_update

LEARNING_RATE = limpid.schedule.learning_rate


def scheduled(schedule: str, warmup: int) -> TrainConfig:
    config = configuration("llama", "fp32")
    update = replace(config.update, schedule=schedule, warmup_steps=warmup, schedule_cycles=2, decay_fraction=0.9)
    return replace(config, update=update, run=replace(config.run, max_steps=12))


def wrong(file: Path) -> list[str]:
    return [check.name for check in redo_update(Record(file)).checks if not check.holds]


@pytest.mark.parametrize("schedule", get_args(ScheduleName))
@pytest.mark.parametrize("warmup", [0, 5])
def test_a_rate_one_step_late_is_named(schedule: str, warmup: int, tmp_path: Path, monkeypatch) -> None:
    """The third step, within warm-up and after it; without warm-up a constant rate has nothing to be late with."""
    config = scheduled(schedule, warmup)
    monkeypatch.setattr(
        "limpid.training.step.learning_rate", lambda n, steps, update: LEARNING_RATE(n - 1, steps, update)
    )
    late = wrong(record(tmp_path, config))
    assert late[:1] == ([] if schedule == "constant" and not warmup else ["learning_rate"])


def test_a_warm_up_one_step_late_is_named(tmp_path: Path, monkeypatch) -> None:
    warmup = limpid.schedule.warmup
    monkeypatch.setattr(limpid.schedule, "warmup", lambda step, steps: warmup(step - 1, steps))
    assert wrong(record(tmp_path, scheduled("cosine", 5)))[0] == "learning_rate"
