"""Examples to batches: which records a step takes is a function of (seed, step), and rows are padded on the right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from limpid.data.batches import ROUNDS, permuted, shuffled
from limpid.data.tuning.example_split import ExampleSplit
from limpid.quantities import NO_LABEL

Array = np.ndarray
GROUPED_STEPS = 50
"""Steps whose records are sorted by length together, as in transformers' LengthGroupedSampler."""


@dataclass(frozen=True)
class Order:
    """The records of each step: all of them once an epoch, in an order of its own."""

    lengths: Int64[Array, " record"]  # tokens
    batch_size: int  # records of a micro-batch
    accumulation: int  # micro-batches of a step
    seed: int
    group_by_length: bool = False  # records of like length share a step, so that less of it is padding

    @property
    def records_per_step(self) -> int:
        return self.batch_size * self.accumulation

    def step(self, step: int) -> Int64[Array, "micro_batch record"]:
        """The records of step `step`, from 1."""
        size = self.records_per_step
        if not self.group_by_length:
            return self._taken((step - 1) * size, step * size).reshape(self.accumulation, -1)
        steps = max(1, min(GROUPED_STEPS, len(self.lengths) // (4 * size)))  # else the same records always meet
        group, place = divmod(step - 1, steps)
        records = self._taken(group * steps * size, (group + 1) * steps * size)
        sorted_by_length = records[np.argsort(self.lengths[records], kind="stable")].reshape(steps, -1)
        keys = np.random.SeedSequence((self.seed, group, 1)).generate_state(ROUNDS, np.uint64)
        which = permuted(np.array([place]), steps, list(keys))[0]
        return sorted_by_length[which].reshape(self.accumulation, -1)

    def epoch(self, step: int) -> float:
        """How often the records have been seen after step `step`."""
        return step * self.records_per_step / len(self.lengths)

    def _taken(self, first: int, after: int) -> Int64[Array, " record"]:
        return shuffled(np.arange(first, after), len(self.lengths), self.seed)


def padding(split: ExampleSplit, order: Order, steps: int = 100) -> float:
    """Share of the positions of the first steps that are padding."""
    used = taken = 0
    for step in range(1, 1 + min(steps, max(1, split.records // order.records_per_step))):
        records = order.step(step).ravel()
        answers = [number for record in records for number in _answers(split, int(record))]
        sizes = np.diff(split.starts)[answers] - 1
        used += int(sizes.sum())
        taken += max(1, int(sizes.max())) * len(answers)
    return 1 - used / taken


def spread(records: int, count: int) -> Int64[Array, " record"]:
    """At most `count` records, spread evenly over all of them, always the same: to validate on."""
    count = min(records, count)
    found: Array = np.arange(count) * records // max(1, count)
    return found


def rows_of(
    split: ExampleSplit, records: Sequence[int] | Int64[Array, " record"], pad_id: int, length: int | None = None
) -> dict[str, Array]:
    """The rows of some records, as the arrays of a batch: of a pair the chosen, then the rejected.

    tokens   (answer, position)  token ids; `pad_id` behind the end
    targets  (answer, position)  the token after each where it is learned, else -100
    mask     (answer, position)  1 where the target is learned, else 0

    length  positions, at least those of the longest; none takes the longest's, see `positions`
    """
    answers = [split.answer(number) for record in records for number in _answers(split, int(record))]
    width = positions(split, records) if length is None else length
    tokens = np.full((len(answers), width), pad_id, np.int64)
    targets = np.full((len(answers), width), NO_LABEL, np.int64)
    for row, answer in enumerate(answers):
        inputs = len(answer.tokens) - 1
        tokens[row, :inputs] = answer.tokens[:-1]
        targets[row, :inputs] = np.where(answer.learned[1:], answer.tokens[1:], NO_LABEL)
    return {"tokens": tokens, "targets": targets, "mask": (targets != NO_LABEL).astype(np.float32)}


def positions(split: ExampleSplit, records: Sequence[int] | Int64[Array, " record"]) -> int:
    """Positions that the longest of some records takes: those of the micro-batches of one step are made as long."""
    return max(1, int(split.lengths[np.asarray(records).ravel()].max(initial=1)) - 1)


def _answers(split: ExampleSplit, record: int) -> tuple[int, ...]:
    return (2 * record, 2 * record + 1) if split.pairs else (record,)
