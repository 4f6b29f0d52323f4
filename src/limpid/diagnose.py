"""The doctor beside one of our own runs, while it trains and before its next step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from limpid.reporter import SILENT, Reporter
from limpid.source import find_checkpoint
from limpid.terminal import say_json

if TYPE_CHECKING:
    from rich.console import Console

    from limpid.doctor.doctor import Doctor
    from limpid.training.start import Training


def attend(training: Training, say: Callable[[str], None] | bool) -> Doctor | None:
    """The doctor beside one of our own runs; None where the configuration does without."""
    if not training.config.run.doctor or training.state.pipeline is not None:
        return None  # of a pipeline no process sees a whole forward pass
    from limpid.doctor.doctor import Doctor
    from limpid.doctor.finding import NOT_EXAMINED
    from limpid.doctor.tuning import tuning_of

    state = training.state
    if state.mesh.is_main:
        file = training.run.path / "findings.jsonl"
        for one in (file, training.run.path / NOT_EXAMINED):
            if one.is_file() and not state.step:
                one.unlink()
        file.touch()  # an empty one says: watched, and nothing found
    return Doctor(
        state.model,
        state.optimizer,
        scaler=state.scaler if state.scaler.is_enabled() else None,
        output=training.run.path,
        total_steps=training.config.run.max_steps,
        say=say,
        first_step=state.step + 1,
        steps_per_epoch=steps_per_epoch(training),
        tokenizer=training.tokens.tokenizer,
        tuning=tuning_of(training.config),
    )


def steps_per_epoch(training: Training) -> float | None:
    """Steps until the data has been gone through once; below 1 where a step takes rows more than once."""
    steps = training.config.run.max_steps
    epochs = training.batches.epoch(steps)
    return steps / epochs if epochs else None


def preflight(what: str, *, as_json: bool, console: Console, reporter: Reporter = SILENT) -> int:
    """The examination of a run's model, optimizer and next batch, where its newest checkpoint stands, or RUN@STEP."""
    from limpid.doctor.doctor import Doctor
    from limpid.doctor.finding import not_examined
    from limpid.doctor.report import document, exit_code, show
    from limpid.doctor.tuning import tuning_of
    from limpid.model.observe import Mode
    from limpid.objectives import POLICY
    from limpid.training.replay import replay

    run, at = find_checkpoint(what)
    number = min((run.latest_checkpoint() if at is None else at) + 1, run.read_config().run.max_steps)
    training = replay(run, number, reporter.progress)
    state = training.state
    batch = training.batches.batch(number, state)
    objective = training.objective
    labels = max(1, sum(objective.labels(micro) for micro in batch))

    def loss(model: Any, _: Any) -> Any:
        models = {**state.models, POLICY: model}
        return sum(objective.loss(models, micro, labels, Mode("plain")).value for micro in batch)

    epoch = steps_per_epoch(training)
    reporter.progress("examining the model, the optimizer and the next batch", 0)
    with Doctor(
        state.model,
        state.optimizer,
        say=False,
        first_step=number,
        steps_per_epoch=epoch,
        tokenizer=training.tokens.tokenizer,
        tuning=tuning_of(training.config),
    ) as doctor:
        findings = doctor.preflight(list(batch), loss=loss, total_steps=training.config.run.max_steps)
        skipped = dict(doctor.skipped)
    reporter.close()
    if as_json:
        say_json(document(str(run.path), f"examination before step {number}", number, findings, skipped))
    else:
        console.print(f"{run.path}: examined before step {number}", markup=False)
        show(findings, console)
        for line in not_examined(skipped):
            console.print(line, markup=False)
    return exit_code(findings)
