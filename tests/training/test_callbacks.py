"""A user's own code beside a run; the best checkpoint; ending when the validation loss falls no more."""

from pathlib import Path

import pytest

import limpid
import limpid.training.loop
from limpid.errors import CheckpointError, ConfigError
from limpid.run import Run
from limpid.source import open_source
from limpid.training.callbacks import Best
from limpid.training.validation import Evaluation, Judged
from small import config


class Heard(limpid.Callback):
    def __init__(self) -> None:
        self.events: list[tuple] = []

    def on_start(self, run: Run) -> None:
        assert run.config_file.is_file()
        self.events.append(("start",))

    def on_step(self, run: Run, outcome) -> None:
        self.events.append(("step", outcome.number))

    def on_evaluation(self, run: Run, evaluation: Evaluation) -> None:
        assert run.read_metrics().evaluations[-1]["eval_loss"] == evaluation.loss
        self.events.append(("evaluation", evaluation.step))

    def on_checkpoint(self, run: Run, step: int) -> None:
        assert run.latest_checkpoint() == step
        self.events.append(("checkpoint", step))


def test_a_callback_hears_of_everything_in_order(data: Path) -> None:
    heard, silent = Heard(), config(data, max_steps=6, eval_steps=3, save_steps=4)
    run = limpid.train(silent, "heard", callbacks=[heard])
    steps = [("step", number) for number in range(1, 7)]
    of_checkpoints = [event for event in heard.events if event[0] == "checkpoint"]
    others = [event for event in heard.events if event[0] != "checkpoint"]
    assert others == [("start",), *steps[:3], ("evaluation", 3), *steps[3:], ("evaluation", 6)]
    assert of_checkpoints == [("checkpoint", 4), ("checkpoint", 5), ("checkpoint", 6)]  # while the next steps are taken
    assert all(heard.events.index(one) > heard.events.index(("step", one[1])) for one in of_checkpoints)
    alone = limpid.train(silent, "alone")
    assert [line["loss"] for line in run.read_metrics().steps] == [line["loss"] for line in alone.read_metrics().steps]
    limpid.resume(run.path, 7, callbacks=[heard])
    assert heard.events[-4:] == [("start",), ("step", 7), ("evaluation", 7), ("checkpoint", 7)]


def test_an_error_in_a_callback_ends_training_with_everything_saved(data: Path) -> None:
    class Wrong(limpid.Callback):
        def on_step(self, run: Run, outcome) -> None:
            if outcome.number == 3:
                raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        limpid.train(config(data, max_steps=9, eval_steps=0, save_steps=0), "wrong", callbacks=[Wrong()])
    assert Run(Path("runs/wrong")).latest_checkpoint() == 3

    class WrongAtOnce(limpid.Callback):
        def on_start(self, run: Run) -> None:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        limpid.train(config(data, max_steps=9), "at-once", callbacks=[WrongAtOnce()])
    limpid.resume("at-once", 2)
    with pytest.raises(ConfigError, match="callbacks"):
        limpid.train(config(data), callbacks=3)


def test_the_best_is_the_lowest_and_counts_what_came_after() -> None:
    lines = [{"step": step, "eval_loss": loss} for step, loss in ((1, 3.0), (2, 2.0), (3, "nan"), (4, 2.0), (5, 2.5))]
    best = Best.of(lines)
    assert (best.loss, best.step, best.worse_since) == (2.0, 2, 3)


@pytest.fixture
def worse_after_8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations whose loss is lowest after step 8."""
    monkeypatch.setattr(
        limpid.training.loop,
        "evaluate",
        lambda training: Evaluation(
            training.state.step, {"": Judged(loss=1.0 + abs(training.state.step - 8), bits_per_byte=1.0, labels=1)}
        ),
    )


@pytest.mark.usefixtures("worse_after_8")
def test_the_best_checkpoint_outlives_those_that_are_pruned_and_has_a_name(data: Path) -> None:
    run = limpid.train(config(data, max_steps=24, eval_steps=4, save_steps=4, save_total_limit=1), "bent")
    assert run.checkpoint_steps() == [0, 8, 20, 23, 24]
    assert open_source("bent@best").step == 8
    limpid.load("bent@best")
    for step in (8, 20, 24):
        run.checkpoint(step).rename(run.path / f"away{step}")
    with pytest.raises(CheckpointError, match="no checkpoint that was evaluated"):
        open_source("bent@best")


@pytest.mark.usefixtures("worse_after_8")
def test_training_ends_when_no_evaluation_is_better_any_more(data: Path) -> None:
    chosen = config(data, max_steps=400, eval_steps=4, save_steps=0, early_stopping=2)
    run = limpid.train(chosen, "early")
    assert run.checkpoint_steps() == [0, 16]
    assert (run.model_folder / "model.safetensors").is_file()
    limpid.resume(run.path)  # who goes on wants it to, and gets as many evaluations again
    assert run.checkpoint_steps() == [0, 16, 24]
