"""Batches of given answers: which records a step has is a function of (seed, step), nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float32, Int64

from limpid.config import TrainConfig
from limpid.data.batches import MicroBatch
from limpid.data.tuning.example_split import ExampleSplit
from limpid.data.tuning.examples import Examples
from limpid.data.tuning.rows import Order, positions, rows_of, spread
from limpid.training.state import State
from limpid.training.tuning.reference import Reference

Array = np.ndarray
Complete = Callable[[MicroBatch, State], Mapping[str, Array]]
"""Arrays that a batch needs besides its records, given the state before its step."""
HeldOut = Callable[[State], Sequence[MicroBatch]]
"""Batches to validate on, which may depend on the state."""


class ExampleBatches:
    """Records in an order of each epoch's own, as rows that end where their answers do, padded on the right."""

    def __init__(
        self, examples: Examples, config: TrainConfig, complete: Complete | None = None, whole: bool = False
    ) -> None:
        self.examples, self.run, self.complete, self.whole = examples, config.run, complete, whole
        self.order = order_of(examples, config)
        self.pad = pad_of(examples)

    def batch(self, step: int, state: State) -> tuple[MicroBatch, ...]:
        """The micro-batches of step `step`, from 1; all as long as the longest row of the step."""
        records, split = self.order.step(step), self.examples.train
        length = positions(split, records.ravel())
        return tuple(self._completed(cut(split, some, self.pad, length, self.whole), state) for some in records)

    def held_out(self, state: State) -> list[MicroBatch]:
        """Batches of records to validate on, always the same ones."""
        split, size = self.examples.validation, self.run.batch_size
        chosen = spread(split.records, size * self.run.eval_batches)
        parts = np.split(chosen, range(size, len(chosen), size)) if len(chosen) else []
        lengths = [positions(split, part) for part in parts]
        micros = (cut(split, part, self.pad, length, self.whole) for part, length in zip(parts, lengths, strict=True))
        return [self._completed(micro, state) for micro in micros]

    def epoch(self, step: int) -> float:
        return self.order.epoch(step)

    def _completed(self, micro: MicroBatch, state: State) -> MicroBatch:
        """With what the objective needs beside the records."""
        if self.complete is None:
            return micro
        return MicroBatch({**micro.arrays, **self.complete(micro, state)}, micro.rows)


def order_of(examples: Examples, config: TrainConfig) -> Order:
    """Which records each step takes; those of like length together, but for prompts, whose answers are not there."""
    run, grouped = config.run, examples.kind != "prompts"
    return Order(examples.train.lengths, run.batch_size, run.gradient_accumulation_steps, run.seed, grouped)


def pad_of(examples: Examples) -> int:
    """A token behind the end of a row, which nothing is predicted from."""
    return examples.tokenizer.end_of_text or 0


def cut(
    split: ExampleSplit, records: Int64[Array, " record"], pad: int, length: int, whole: bool = False
) -> MicroBatch:
    """The rows of some records; with `whole` tokens go up to the last one, which is scored."""
    answers = (2 * records[:, None] + np.arange(2)).ravel() if split.pairs else records
    starts = tuple(int(split.starts[answer]) for answer in answers)
    arrays = whole_rows(split, answers, pad, length + 1) if whole else rows_of(split, records, pad, length)
    if split.desirable is not None:
        arrays["desirable"] = split.desirable[records].astype(np.float32)
    return MicroBatch(arrays, starts)


def whole_rows(split: ExampleSplit, answers: Int64[Array, " answer"], pad: int, length: int) -> dict[str, Array]:
    """Answers with their last token, and where it is."""
    rows = [split.answer(int(answer)).tokens for answer in answers]
    tokens = np.full((len(rows), length), pad, np.int64)
    for place, row in enumerate(rows):
        tokens[place, : len(row)] = row
    return {"tokens": tokens, "last": np.array([len(row) - 1 for row in rows], np.int64)}


def with_reference(reference: Reference) -> Complete:
    """Log-probabilities of chosen and rejected answers under the reference, nats."""

    def complete(micro: MicroBatch, state: State) -> Mapping[str, Array]:
        answers = answer_sums(reference.token_log_probabilities(micro, state), micro)
        return {"reference_chosen": answers[0::2], "reference_rejected": answers[1::2]}

    return complete


def answer_sums(tokens: Float32[Array, "answer position"], micro: MicroBatch) -> Float32[Array, " answer"]:
    """The log-probability of each answer, nats: added up as objectives do it, so that equals differ by exactly 0."""
    sums: Array = (torch.from_numpy(tokens) * torch.from_numpy(micro["mask"])).sum(-1).numpy()
    return sums
