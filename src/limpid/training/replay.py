"""A past step: replayed from the nearest checkpoint before it, and recorded."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from limpid.config import DataConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.data.batches import MicroBatch
from limpid.data.tokenizer_folder import load_tokenizer
from limpid.errors import CheckpointError, DataError
from limpid.model.weights import load_weights
from limpid.reporter import Report
from limpid.run import Run
from limpid.schedule import TEXT_RATE
from limpid.source import Model
from limpid.terminal import command
from limpid.training.record import record_step
from limpid.training.start import Training, open_run
from limpid.training.state import fresh_state
from limpid.training.step import Outcome, step


def replay(
    run: Run, number: int, progress: Report | None = None, at: int | None = None, taken: list[Outcome] | None = None
) -> Training:
    """A run in the state just before step `number`, replayed without a trace from the nearest checkpoint before it.

    at     the checkpoint to begin from instead
    taken  gets what every step on the way did
    """
    config = run.read_config()
    steps = run.checkpoint_steps()
    if not steps:
        raise CheckpointError(f"{run.path} holds no complete checkpoint: nothing to replay from")
    reachable = min(steps[-1] + 1, config.run.max_steps)
    if not 1 <= number <= max(reachable, steps[-1]):
        raise CheckpointError(f"step {number} lies outside the run: {run.path} can open steps 1 … {reachable}")
    before = [at for at in steps if at < number]
    if not before:
        raise CheckpointError(
            f"no checkpoint before step {number} is left in {run.path}: the oldest is {steps[0]}; "
            "train with --save-total-limit 0 to keep them all"
        )
    at = before[-1] if at is None else at
    training, logged = _opened(run, config, at, number), run.logged(at + 1, number)
    while training.state.step < number - 1:
        upcoming = training.state.step + 1
        batch = training.batches.batch(upcoming, training.state)
        outcome = step(training.state, batch, _as_it_was(config, logged.get(upcoming)), training.objective)
        if taken is not None:
            taken.append(outcome)
        if progress is not None:
            progress(f"replaying from step {at}", training.state.step - at, number - 1 - at)
    training.config = _as_it_was(config, logged.get(number))
    return training


def _opened(run: Run, config: TrainConfig, at: int, number: int) -> Training:
    """The state after step `at`; where its checkpoint is damaged, the error names the way round it."""
    try:
        return open_run(run, config, at)
    except CheckpointError as error:
        earlier = run.whole_before(at)
        if earlier is None or run.whole_before(at + 1) == at:  # nothing else to begin from, or the fault lies elsewhere
            raise
        way = command("limpid", "trace", f"{run.path}@{earlier}", "--step", number)
        raise CheckpointError(f"{error}; `{way}` opens the step from there") from error


def _as_it_was(config: TrainConfig, logged: dict[str, Any] | None) -> TrainConfig:
    """The configuration that a step was taken with: the rate followed from how long the run was to be then."""
    steps = (logged or {}).get("max_steps", config.run.max_steps)
    return dataclasses.replace(config, run=dataclasses.replace(config.run, max_steps=steps))


def record_past(
    run: Run, number: int, progress: Report | None = None, at: int | None = None, file: Path | None = None
) -> Path:
    """Record step `number` of a run, replayed from a checkpoint before it, the nearest or `at`; returns its file."""
    taken: list[Outcome] = []
    training = replay(run, number, progress, at, taken)
    if progress is not None:
        progress(f"taking step {number}, and keeping all of it", 0, None)
    file = run.recorded_step(number) if file is None else file
    record_step(
        file,
        training.state,
        training.batches.batch(number, training.state),
        training.config,
        objective=training.objective,
        run=run.path.name,
        token_text=training.tokens.tokenizer.token_text,
        replayed=taken,
    )
    return file


def record_text(source: Model, text: str, file: Path) -> Path:
    """Record the first update of a model on one text, by AdamW at `TEXT_RATE`, in float32.

    Raises  CheckpointError when the folder has no tokenizer; DataError when the text is too short or too long
    """
    model, weights = load_weights(source)
    tokenizer = load_tokenizer(source)
    tokens = np.array(tokenizer.encode(text), dtype=np.int64)
    if not 2 <= len(tokens) <= model.context_length + 1:
        raise DataError(
            f"the text has {len(tokens)} tokens, expected 2 to {model.context_length + 1}: "
            "every token but the first is a label, and the context holds the rest"
        )
    if tokens.max() >= model.vocab_size:
        raise DataError(f"{source}: token {tokens.max()} lies outside the model's vocabulary of {model.vocab_size}: "
                        "tokenizer and model do not belong together")  # fmt: skip
    config = TrainConfig(
        model=dataclasses.replace(model, dropout=0.0),
        data=DataConfig(tokenizer=source.tokenizer_file.name),
        update=UpdateConfig(learning_rate=TEXT_RATE, schedule="constant", warmup_steps=0),
        run=RunConfig(max_steps=1, batch_size=1, precision="fp32"),
    )
    state = fresh_state(config)
    state.model.load_state_dict(weights)
    batch = [MicroBatch({"tokens": tokens[None, :-1], "targets": tokens[None, 1:]}, (0,))]
    record_step(file, state, batch, config, run=source.name, token_text=tokenizer.token_text)
    return file
