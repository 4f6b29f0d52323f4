"""Which documents made a batch: the rows of a step, led back through the tokens to files and lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from limpid.data.held_out import data_of, named_as_given
from limpid.data.token_splits import Passage, Tokens
from limpid.data.tuning.examples import Examples
from limpid.errors import CheckpointError
from limpid.files import MALFORMED
from limpid.run import Run

WORDS = 12
"""Tokens of a passage that are spelled out."""
BLOCK = 1 << 20
"""Tokens that are measured at once."""


@dataclass(frozen=True)
class Part:
    """What one document gave to a row."""

    document: str  # its file, and its line or record when the file holds several
    offset: int  # tokens of the document that come before
    tokens: int
    bytes: tuple[int, int] | None  # of the document's text: the first, and the one after the last; None where not known
    text: str  # its first tokens in this row


@dataclass(frozen=True)
class Row:
    """One row of a micro-batch: context_length tokens and the last target."""

    micro_batch: int
    row: int
    start: int  # in the training split, tokens
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class StepRows:
    """All rows of a step."""

    run: str
    step: int
    rows: tuple[Row, ...]


def rows_of_step(run: Run, step: int | None) -> StepRows:
    """The rows that a step was trained on, the last one's when no step is given, each with its documents.

    Raises  CheckpointError when the run did not take this step; DataError when its text can no longer be read
    """
    taken = list(_micro_batches(run, step))
    if not any(entry["rows"] for entry in taken):
        raise CheckpointError(
            f"the rows of step {taken[0]['step']} of {run.path} were made for it and are in no file: "
            f"limpid trace {run.path} --step {taken[0]['step']} opens them"
        )
    config = run.read_config()
    data = named_as_given(data_of(run, config, run.fingerprint()), run, config)
    if isinstance(data, Examples):
        parts_of = partial(_of_record, data)
    else:
        parts_of = partial(_of_text, data, config.model.context_length + 1)
    rows = tuple(
        Row(entry["micro_batch"], place, start, parts_of(start))
        for entry in taken
        for place, start in enumerate(entry["rows"])
    )
    return StepRows(run.path.resolve().name, taken[0]["step"], rows)


def _of_text(tokens: Tokens, length: int, start: int) -> tuple[Part, ...]:
    return tuple(_part(tokens, one) for one in tokens.passages(start, length))


def _of_record(examples: Examples, start: int) -> tuple[Part, ...]:
    """The record that a row of answers is from; of a pair, which of the two."""
    split = examples.train
    number = int(np.searchsorted(split.starts, start, side="right")) - 1
    where = split.where[number // 2] if split.pairs else split.where[number]
    side = f", {'rejected' if number % 2 else 'chosen'}" if split.pairs else ""
    tokens = split.answer(number).tokens
    text = examples.tokenizer.decode(tokens[:WORDS].tolist())
    return (Part(where + side, 0, len(tokens), None, text),)


def _part(tokens: Tokens, passage: Passage) -> Part:
    shown = tokens.train[passage.start : passage.start + min(WORDS, passage.tokens)]
    text = tokens.tokenizer.decode(shown.tolist())
    return Part(passage.document, passage.offset, passage.tokens, _byte_range(tokens, passage), text)


def _byte_range(tokens: Tokens, passage: Passage) -> tuple[int, int] | None:
    """Where a passage lies in the text of its document, which begins `offset` tokens before it."""
    sizes = tokens.tokenizer.sizes
    if sizes is None:
        return None
    begin, end = passage.start - passage.offset, passage.start + passage.tokens
    before = sum(
        int(sizes[tokens.train[at : min(at + BLOCK, passage.start)]].sum()) for at in range(begin, passage.start, BLOCK)
    )
    return before, before + int(sizes[tokens.train[passage.start : end]].sum())


def _micro_batches(run: Run, step: int | None) -> Iterator[dict[str, Any]]:
    """The micro-batches of one step, as the run wrote them down."""
    taken: dict[int, list[dict[str, Any]]] = {}
    last = 0
    try:
        lines = run.micro_batches_file.read_bytes().splitlines()
    except OSError as error:
        raise CheckpointError(f"{run.micro_batches_file}, which holds the rows: {error.strerror}") from error
    for line in lines:
        try:
            entry = json.loads(line)
            last = int(entry["step"])
        except MALFORMED:  # the last line of a killed run may be cut short
            continue
        if step is None or last == step:
            taken = {last: [*taken.get(last, []), entry]}
    if not taken:
        raise CheckpointError(f"{run.path} has taken no step {step}: its rows are known for steps 1 … {last}")
    yield from next(iter(taken.values()))
