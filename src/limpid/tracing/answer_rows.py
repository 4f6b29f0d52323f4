"""The rows of a step on answers, derived a second time: which records it has, their tokens, what is learned of them.

`limpid.data.tuning.rows` and `limpid.training.tuning` are the engine's derivation. The two are written apart, so that a
slip in either is found.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from limpid.config import TrainConfig
from limpid.config.tuning import RolloutConfig
from limpid.data.tuning.example_split import ExampleSplit
from limpid.data.tuning.examples import Examples
from limpid.maths.operation import Array
from limpid.quantities import NO_LABEL
from limpid.tracing.batch import equal, permutation_keys, shuffled_place
from limpid.tracing.record import Record
from limpid.tracing.verdict import Check

SORTED_TOGETHER = 50
"""Steps whose records are sorted by length together."""


def check_answers(record: Record, examples: Examples) -> list[Check]:
    """Every array of the batch that follows from the records of a run, its seed and the step."""
    split, step = examples.train, int(record.meta["step"])
    drawn = examples.kind == "prompts"
    tune = record.config.tune
    if tune is not None and drawn:
        settings = tune.rollouts or RolloutConfig()
        step, copies = 1 + (step - 1) // settings.num_iterations, settings.num_generations
    else:
        copies = 1
    records = np.repeat(records_of_step(record.config, split, step, by_length=not drawn), copies)
    answers = np.stack([2 * records, 2 * records + 1], 1).ravel() if split.pairs else records
    taken = np.array([row for micro in record.meta["micro_batches"] for row in micro["rows"]], np.int64)
    expected = np.array([split.starts[answer] for answer in answers], np.int64)
    if taken.shape != expected.shape:
        return [equal("number of rows", np.asarray(taken.size), np.asarray(expected.size))]
    end = examples.tokenizer.end_of_text
    arrays = _prompts(record, split, records) if drawn else _answers(record, split, answers, 0 if end is None else end)
    if split.desirable is not None:
        arrays["desirable"] = np.asarray(split.desirable)[records]
    named = [(name, array) for name, array in arrays.items() if f"batch/{name}" in record.names]
    return [equal("rows", taken, expected), *(_compared(record, name, array) for name, array in named)]


def records_of_step(config: TrainConfig, split: ExampleSplit, step: int, *, by_length: bool) -> Int64[Array, " record"]:
    """The records of step `step`, from 1, in their order: each once an epoch, those of like length in one step."""
    size = config.run.batch_size * config.run.gradient_accumulation_steps
    if not by_length:
        return np.array([_record(number, split, config) for number in range((step - 1) * size, step * size)])
    steps = max(1, min(SORTED_TOGETHER, split.records // (4 * size)))
    group = (step - 1) // steps
    numbers = range(group * steps * size, (group + 1) * steps * size)
    together = sorted((_record(number, split, config) for number in numbers), key=lambda one: _length(split, one))
    keys = permutation_keys((config.run.seed, group, 1))
    place = shuffled_place((step - 1) % steps, steps, keys)
    return np.array(together[place * size : (place + 1) * size])


def _record(number: int, split: ExampleSplit, config: TrainConfig) -> int:
    """Which record a run takes as number `number`, from 0."""
    epoch, place = divmod(number, split.records)
    return shuffled_place(place, split.records, permutation_keys((config.run.seed, epoch)))


def _length(split: ExampleSplit, record: int) -> int:
    """Tokens, of a pair those of the longer answer."""
    answers = (2 * record, 2 * record + 1) if split.pairs else (record,)
    return max(int(split.starts[answer + 1] - split.starts[answer]) for answer in answers)


def _answers(record: Record, split: ExampleSplit, answers: Array, pad: int) -> dict[str, Array]:
    """Answers with their prompts, each token's target the next one where it is learned."""
    ends = [(int(split.starts[answer]), int(split.starts[answer + 1])) for answer in answers]
    longest = max(after - begin for begin, after in ends)
    tokens = np.full((len(ends), longest), pad, np.int64)
    targets = np.full((len(ends), longest), NO_LABEL, np.int64)
    for row, (begin, after) in enumerate(ends):
        tokens[row, : after - begin] = split.tokens[begin:after]
        for place in range(begin + 1, after):
            if split.learned[place]:
                targets[row, place - begin - 1] = split.tokens[place]
    last = np.array([after - begin - 1 for begin, after in ends])
    if "batch/last" in record.names:  # scored at their last token
        return {"tokens": tokens, "last": last}
    tokens[np.arange(len(ends)), last] = pad  # which is a target alone
    targets = targets[:, :-1]
    return {"tokens": tokens[:, :-1], "targets": targets, "mask": (targets != NO_LABEL).astype(np.float64)}


def _prompts(record: Record, split: ExampleSplit, records: Array) -> dict[str, Array]:
    """Rows that begin with their prompts, of which nothing is learned; what comes behind was drawn."""
    tokens, targets, mask = (record.exact(f"batch/{name}") for name in ("tokens", "targets", "mask"))
    for row, one in enumerate(records):
        begin, after = int(split.starts[one]), int(split.starts[one + 1])
        tokens[row, : after - begin] = split.tokens[begin:after]
        targets[row, : after - begin - 1] = NO_LABEL
    return {"tokens": tokens, "targets": targets, "mask": np.where(targets == NO_LABEL, 0.0, mask)}


def _compared(record: Record, name: str, expected: Array) -> Check:
    engine = record.exact(f"batch/{name}")
    if engine.shape != expected.shape:
        return equal(f"size of {name}", np.asarray(engine.size), np.asarray(expected.size))
    return equal(name, engine, expected)
