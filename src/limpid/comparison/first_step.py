"""The first step of a tuned run, as a batch on which two variants are compared."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from limpid.data.batches import MicroBatch
from limpid.data.held_out import data_of
from limpid.data.tuning.examples import Examples
from limpid.data.tuning.rows import positions
from limpid.errors import ConfigError
from limpid.objectives import Objective
from limpid.objectives.tuned import objective_of
from limpid.run import Run
from limpid.training.stored_batches import read_batch
from limpid.training.tuning.examples import cut, order_of, pad_of
from limpid.training.tuning.reference import policy_at_start, with_old_log_probabilities


@dataclass(frozen=True)
class FirstStep:
    """Rows of the step, and the loss that it minimised."""

    micro: MicroBatch
    objective: Objective


def first_step(run: Run, rows: int) -> FirstStep:
    """At most so many rows, whole pairs, with what was formed for them before the step.

    Raises  ConfigError for a run that was not tuned
    """
    config = run.read_config()
    if config.tune is None:
        raise ConfigError(f"{run.path} was not tuned, and TRL has losses of tuning alone: compare with :transformers")
    objective = objective_of(config.tune)
    stored = run.path / "batches" / "000001.safetensors"
    if stored.is_file():
        micro = _few(read_batch(stored)[0], objective, rows)
        drew = partial(policy_at_start, run, config, torch.device("cpu"))
        return FirstStep(with_old_log_probabilities(micro, drew, objective), objective)
    examples = data_of(run, config, run.fingerprint())
    assert isinstance(examples, Examples)
    records, split = order_of(examples, config).step(1)[0], examples.train
    whole = "last" in objective.fields
    micro = cut(split, records, pad_of(examples), positions(split, records), whole)
    return FirstStep(_few(micro, objective, rows), objective)


def _few(micro: MicroBatch, objective: Objective, rows: int) -> MicroBatch:
    """The first rows, and what pairs of them have."""
    count = len(micro["tokens"])
    arrays = {name: array[: rows * len(array) // count] if count > rows else array
              for name, array in micro.arrays.items() if name in objective.fields}  # fmt: skip
    used = arrays["last"].max() + 1 if "last" in arrays else 1 + np.flatnonzero(arrays["targets"].max(0) >= 0).max()
    for name in ("tokens", "targets", "mask", "old_log_probabilities", "advantages", "reference_log_probabilities"):
        if name in arrays:
            arrays[name] = np.ascontiguousarray(arrays[name][:, :used])
    return MicroBatch(arrays)
