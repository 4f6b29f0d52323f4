"""Record a step after the fact: of a past run, by replaying it, or of any model on a given text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np

from limpid.config import DataConfig, RunConfig, TrainConfig
from limpid.data.batches import MicroBatch
from limpid.data.tokenizer import Tokenizer
from limpid.errors import CheckpointError, DataError
from limpid.run import RUNS, Run
from limpid.training.begin import fresh_state, initial_model, replay
from limpid.training.record import record_step


def record_past(run: Run, number: int, progress: Callable[[str, int, int | None], None] | None = None) -> Path:
    """Record step `number` of a run, replayed from the nearest checkpoint before it; returns its file."""
    training = replay(run, number, progress)
    file = run.recorded_step(number)
    record_step(
        file,
        training.state,
        training.batches.batch(number),
        training.config,
        run=run.path.name,
        token_text=training.tokens.tokenizer.token_text,
    )
    return file


def record_text(folder: Path, text: str, file: Path | None) -> Path:
    """Record the first update of a run or Hugging Face folder on one text, with the default update rule, in float32.

    Raises  CheckpointError when the folder has no tokenizer; DataError when the text is too short or too long
    """
    model, weights, tokenizer_file = initial_model(folder)
    if not tokenizer_file.is_file():
        raise CheckpointError(f"{folder} has no tokenizer.json: limpid cannot turn --text into tokens without it")
    tokenizer = Tokenizer.load(tokenizer_file)
    tokens = np.array(tokenizer.encode(text), dtype=np.int64)
    if not 2 <= len(tokens) <= model.context_length + 1:
        raise DataError(
            f"the text has {len(tokens)} tokens, expected 2 to {model.context_length + 1}: "
            "every token but the first is a label, and the context holds the rest"
        )
    if tokens.max() >= model.vocab_size:
        raise DataError(f"token {tokens.max()} lies outside the model's vocabulary of {model.vocab_size}: "
                        "tokenizer and model do not belong together")  # fmt: skip
    config = TrainConfig(
        model=dataclasses.replace(model, dropout=0.0),
        data=DataConfig(tokenizer=str(tokenizer_file.name)),
        run=RunConfig(max_steps=1, batch_size=1, precision="fp32"),
    )
    state = fresh_state(config)
    state.model.load_state_dict(weights)
    batch = [MicroBatch({"tokens": tokens[None, :-1], "targets": tokens[None, 1:]}, (0,))]
    name = folder.resolve().name
    file = RUNS / f"{name}-step.safetensors" if file is None else file
    record_step(file, state, batch, config, run=name, token_text=tokenizer.token_text)
    return file
