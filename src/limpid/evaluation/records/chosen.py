"""Which records two models are judged on: those that a run held out, or those of files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from limpid.config import DataConfig, TrainConfig, TuneConfig
from limpid.config.tuning import KINDS
from limpid.data.documents import Corpus
from limpid.data.held_out import changed_since, data_of, wanted
from limpid.data.tokenizer import Tokenizer
from limpid.data.tuning.encoding import Answer
from limpid.data.tuning.example_split import ExampleSplit
from limpid.data.tuning.examples import Examples, Wanted, prepare_examples
from limpid.data.tuning.rows import spread
from limpid.data.tuning.shapes import Kind
from limpid.errors import DataError, LimpidError
from limpid.loaded import LoadedModel
from limpid.reporter import Reporter

ALL = 1e-9
"""Share of the records of a file that are divided from the rest: all of them are read."""


@dataclass(frozen=True)
class Records:
    """Examples of one kind, as the tokens of one tokenizer."""

    kind: Kind
    places: tuple[tuple[ExampleSplit, int], ...]
    tokenizer: Tokenizer
    origin: str
    of: int
    """How many there are, of which these were taken."""

    def __len__(self) -> int:
        return len(self.places)

    def answers(self) -> Iterator[Answer]:
        """Every answer with its prompt; of a pair the chosen, then the rejected."""
        for split, record in self.places:
            for number in (2 * record, 2 * record + 1) if split.pairs else (record,):
                yield split.answer(number)

    def prompts(self) -> list[tuple[int, ...]]:
        return [split.prompt(record) for split, record in self.places]

    def columns(self) -> list[Mapping[str, Any]]:
        """The fields of each record, of prompts."""
        return [split.columns[record] for split, record in self.places]

    def desirable(self) -> list[bool]:
        """Whether each answer was judged good."""
        return [bool(split.desirable[record]) for split, record in self.places if split.desirable is not None]


def records_of(
    model: LoadedModel, files: Sequence[str], rewarded: bool, most: int | None, text_field: str, reporter: Reporter
) -> Records:
    """Of files, or those that the model's run held out; with a reward their prompts alone.

    Raises  DataError where there is no record, or one that cannot be used
    """
    config = None if model.run is None else model.run.read_config()
    tune = None if config is None else config.tune
    splits: tuple[ExampleSplit, ...]
    if files:
        kind = _kind(files, tune, rewarded, text_field)
        examples = _of_files(model, files, kind, config, text_field, reporter)
        splits, origin = (examples.train, examples.validation), files[0] if len(files) == 1 else f"{len(files)} files"
    elif config is None or tune is None:
        raise DataError(f"{model.name} was not tuned on records, so it held out none: name a file with --records")
    else:
        examples = _of_run(model, config, tune, rewarded, reporter)
        splits, origin = (examples.validation,), "held-out records"
        if not examples.validation.records:
            raise DataError(f"{model.name} held out no record: name a file with --records")
    places = [(split, record) for split in splits for record in range(split.records)]
    taken = [places[int(number)] for number in spread(len(places), most or len(places))]
    return Records(examples.kind, tuple(taken), examples.tokenizer, origin, len(places))


def trained_on_too(model: LoadedModel, records: Records) -> int:
    """How many of the records are among those that the model's run was trained on; 0 where these are not here now."""
    config = None if model.run is None else model.run.read_config()
    if model.run is None or config is None or config.tune is None:
        return 0
    try:
        own = data_of(model.run, config, model.run.fingerprint())
    except LimpidError:
        return 0
    assert isinstance(own, Examples)
    known = {_read(own.train, record, records.kind) for record in range(own.train.records)}
    return sum(_read(split, record, records.kind) in known for split, record in records.places)


def _read(split: ExampleSplit, record: int, kind: Kind) -> bytes:
    """The tokens that are read of a record: of a pair those with the chosen answer, of prompts no answer."""
    if kind == "prompts":
        return np.array(split.prompt(record), np.int32).tobytes()
    first = split.answer(2 * record if split.pairs else record)
    return np.asarray(first.tokens, np.int32).tobytes()


def _kind(files: Sequence[str], tune: TuneConfig | None, rewarded: bool, text_field: str) -> Kind:
    """What the run learned from; of other models what the first record holds."""
    if rewarded:
        return "prompts"
    if tune is not None:
        return KINDS[tune.objective]
    first = next(iter(Corpus(DataConfig(paths=tuple(files), text_field=text_field)).records()), None)
    value = None if first is None else first.value
    return "pairs" if isinstance(value, Mapping) and "rejected" in value else "answers"


def _of_files(
    model: LoadedModel, files: Sequence[str], kind: Kind, config: TrainConfig | None, text_field: str,
    reporter: Reporter,
) -> Examples:  # fmt: skip
    data = DataConfig(paths=tuple(files), validation_fraction=ALL, text_field=text_field)
    if config is None or config.tune is None:
        length = model.transformer.config.context_length
        return prepare_examples(Wanted(data, kind, model.tokenizer, length, 0), reporter.progress)
    settled = wanted(config, config.tune, model.tokenizer)
    too_long = None if kind == "prompts" else settled.too_long
    return prepare_examples(replace(settled, data=data, kind=kind, too_long=too_long), reporter.progress)


def _of_run(model: LoadedModel, config: TrainConfig, tune: TuneConfig, rewarded: bool, reporter: Reporter) -> Examples:
    """The run's own examples; their prompts alone where it learned from more.

    Raises  DataError where the files are no longer what they were, so that a prompt may have been trained on
    """
    assert model.run is not None
    own = data_of(model.run, config, model.run.fingerprint())
    assert isinstance(own, Examples)
    if not rewarded or own.kind == "prompts":
        return own
    if changed := changed_since(own, model.run, config):
        raise DataError(f"{changed}; their prompts can no longer be told apart: name a file with --records")
    return prepare_examples(
        replace(wanted(config, tune, model.tokenizer), kind="prompts", too_long=None), reporter.progress
    )
