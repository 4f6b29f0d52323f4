"""Records become examples on disk: read, written as text, tokenized, held against the context, counted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from limpid.data.formats import Record
from limpid.data.split import CHANGED, Digest, Split
from limpid.data.tokenizer import Tokenizer
from limpid.data.tuning.bad_row import BadRow
from limpid.data.tuning.encoding import Answer, encoded
from limpid.data.tuning.example_split import SplitWriter, Tally
from limpid.data.tuning.notes import notes_of
from limpid.data.tuning.shapes import Exchange, Kind, exchanges_of
from limpid.data.tuning.written import Writer, Written
from limpid.errors import DataError
from limpid.reporter import Report

TooLong = Literal["cut", "skip", "refuse"]
AT_ONCE = 2**20  # characters tokenized together
SPLITS = ("train", "validation")
TOO_LONG = "longer than the context"


@dataclass(frozen=True)
class Recipe:
    """How records become examples."""

    kind: Kind
    tokenizer: Tokenizer
    context_length: int
    too_long: TooLong
    skip_bad_rows: bool
    text_field: str

    @property
    def limit(self) -> int:
        """Tokens that fit: the last of an answer is a target alone, and a prompt needs room for one more."""
        return self.context_length + (self.kind != "prompts")


@dataclass
class Skipped:
    """Records that nothing is learned from: how many for which reason, and a line about the first of each."""

    reasons: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, line: str) -> None:
        self.reasons[reason] += 1
        self.examples.setdefault(reason, line)


@dataclass(frozen=True)
class _Unit:
    """One example before it is tokens."""

    record: Record
    held_out: bool
    exchange: Exchange
    texts: list[Written]


def make(folder: Path, records: Iterator[Record], split: Split, recipe: Recipe, report: Report) -> dict[str, Any]:
    """Fill a folder with both splits; memory stays near one batch.

    Returns what is needed to read them, as plain values
    Raises  BadRow for the first record that nothing can be learned from, unless such are passed over; DataError where
            nothing is left to train on
    """
    writer, skipped, tallies = Writer(recipe.tokenizer, recipe.tokenizer.chat_template), Skipped(), (Tally(), Tally())
    with SplitWriter(folder, SPLITS[0]) as train, SplitWriter(folder, SPLITS[1]) as validation:
        for units, done in _batched(_units(records, split, recipe, writer, skipped)):
            for unit, answers in _encoded(units, recipe, writer, skipped):
                fitting = _fitting(answers, recipe, unit.record.name, skipped)
                if fitting is not None:
                    place = split.stats.sources[unit.record.source], unit.record.number
                    columns = unit.exchange.columns if recipe.kind == "prompts" else None
                    (train, validation)[unit.held_out].add(fitting, place, unit.exchange.desirable, columns)
                    tallies[unit.held_out].add(fitting, fitting is not answers)
            report("writing examples", done, split.stats.documents)
    if not tallies[0].records:
        why = next(iter(skipped.examples.values()), "every record is held out: lower --validation-fraction")
        raise DataError(f"no record is left to train on: {why}")
    return {
        "kind": recipe.kind, "context_length": recipe.context_length,
        "sources": list(split.stats.sources),
        "tallies": [asdict(tally) for tally in tallies],
        "skipped": dict(skipped.reasons), "examples": skipped.examples,
        "notes": split.notes("records") + notes_of(writer, recipe.kind),
    }  # fmt: skip


def _units(
    records: Iterator[Record], split: Split, recipe: Recipe, writer: Writer, skipped: Skipped
) -> Iterator[tuple[_Unit, int]]:
    """The examples of every record that is used, and how many records were read."""
    again = Digest()
    number = -1
    for number, record in enumerate(records):
        again.add(canonical(record), last=True)
        if number >= split.stats.documents or record.source not in split.stats.sources:
            raise DataError(CHANGED)
        if split.validation and split.in_both[number]:
            continue
        try:
            for exchange in exchanges_of(record.value, recipe.kind, recipe.text_field, record.name):
                for texts in writer.examples(exchange, record.name):
                    yield _Unit(record, bool(split.held_out[number]), exchange, texts), number + 1
        except BadRow as error:
            _pass_over(error, recipe, skipped)
    if str(again) != split.stats.digest:
        raise DataError(CHANGED)


def _batched(units: Iterator[tuple[_Unit, int]]) -> Iterator[tuple[list[_Unit], int]]:
    """Units in lists of about AT_ONCE characters."""
    batch: list[_Unit] = []
    characters = done = 0
    for unit, done in units:
        batch.append(unit)
        characters += sum(len(one.text) for one in unit.texts)
        if characters >= AT_ONCE:
            yield batch, done
            batch, characters = [], 0
    yield batch, done


def _encoded(
    units: list[_Unit], recipe: Recipe, writer: Writer, skipped: Skipped
) -> Iterator[tuple[_Unit, list[Answer]]]:
    """Each unit with its tokens; together, and one by one where one of them cannot be encoded."""
    try:
        answers = iter(encoded([one for unit in units for one in unit.texts], recipe.tokenizer, writer.counts))
    except DataError as error:
        if len(units) == 1:
            _pass_over(BadRow("cannot be tokenized", f"{units[0].record.name}: {error}"), recipe, skipped)
            return
        for unit in units:
            yield from _encoded([unit], recipe, writer, skipped)
        return
    for unit in units:
        yield unit, [next(answers) for _ in unit.texts]


def _fitting(answers: list[Answer], recipe: Recipe, where: str, skipped: Skipped) -> Sequence[Answer] | None:
    """The answers, cut to the context where that is asked for; None where the record is skipped."""
    length = max(len(answer.tokens) for answer in answers)
    fitting = answers
    if length > recipe.limit:
        line = f"{where} has {length} tokens, and {recipe.limit} fit: shorten it"
        if recipe.too_long == "refuse":
            raise BadRow(TOO_LONG, line)
        if recipe.too_long == "skip":
            skipped.add(TOO_LONG, line)
            return None
        fitting = [Answer(one.tokens[: recipe.limit], one.learned[: recipe.limit]) for one in answers]
    if recipe.kind != "prompts" and not all(answer.learned.any() for answer in fitting):
        if fitting is not answers:
            skipped.add("answer beyond the context", f"{where}: its answer begins after the {recipe.limit} tokens that "
                        "fit: shorten its prompt")  # fmt: skip
        else:
            _pass_over(BadRow("nothing to learn", f"{where}: its answer is no token: remove the row"), recipe, skipped)
        return None
    if not length:
        _pass_over(BadRow("no prompt", f"{where}: its prompt is no token: remove the row"), recipe, skipped)
        return None
    return fitting


def _pass_over(error: BadRow, recipe: Recipe, skipped: Skipped) -> None:
    if not recipe.skip_bad_rows:
        raise error
    skipped.add(error.reason, str(error))


def canonical(record: Record) -> bytes:
    """A record as bytes, the same wherever and however it is stored."""
    return json.dumps(record.value, sort_keys=True, default=str).encode()
