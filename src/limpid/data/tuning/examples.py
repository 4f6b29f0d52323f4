"""What a model is tuned on: records as examples, with what is learned of each; kept, and found again."""

from __future__ import annotations

import glob
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from limpid.config import DataConfig
from limpid.data.cache import Cache, hash_of
from limpid.data.chat_template import ChatTemplate
from limpid.data.documents import Corpus
from limpid.data.formats import Chunk
from limpid.data.split import CorpusStats, Split
from limpid.data.tokenizer import Tokenizer
from limpid.data.tokens import UNSETTLED, lies_in_files
from limpid.data.tuning.example_split import ExampleSplit, Places, Tally, read_split
from limpid.data.tuning.make import SPLITS, Recipe, TooLong, canonical, make
from limpid.data.tuning.notes import one_sided
from limpid.data.tuning.shapes import Kind
from limpid.errors import CheckpointError, ConfigError, DataError
from limpid.files import MALFORMED, one_line, read_whole, user_path
from limpid.manifest import damage_within
from limpid.reporter import SILENT, Report

VERSION = 1
ELSEWHERE = ("hf:", "-")
"""How paths begin that name no file."""
TOO_LONG: dict[Kind, TooLong] = {"answers": "cut", "pairs": "skip", "judged": "skip", "prompts": "skip"}
"""What is done with what does not fit into the context: half an answer teaches, half of a pair misleads."""


@dataclass(frozen=True)
class Examples:
    """Both splits of what a model is tuned on."""

    kind: Kind
    train: ExampleSplit
    validation: ExampleSplit  # without a record where there is too little to hold any out
    tokenizer: Tokenizer
    fingerprint: str  # changes with the records, the split, the tokenizer, its template and every choice
    notes: list[str]  # what a user should know, with a line for each reason to skip records
    tallies: tuple[Tally, Tally]  # of both splits
    skipped: Mapping[str, int]  # records that nothing is learned from, by reason


@dataclass(frozen=True)
class Wanted:
    """What examples are made of, and how."""

    data: DataConfig
    kind: Kind
    tokenizer: Tokenizer
    """The model's, with its chat template."""
    context_length: int
    seed: int
    chat_template: str | None = None
    """File of another one."""
    too_long: TooLong | None = None
    """What does not fit into the context is cut at its end, skipped or refused; none is what suits the kind."""
    skip_bad_rows: bool = False

    def recipe(self) -> Recipe:
        """How a record becomes an example.

        Raises  ConfigError for prompts that are cut, DataError for a chat template that cannot be read
        """
        if self.kind == "prompts" and self.too_long == "cut":
            raise ConfigError("too_long is cut, but a prompt ends where its answer begins: choose skip or refuse")
        template = self.chat_template
        return Recipe(
            self.kind,
            self.tokenizer if template is None else _with_template(self.tokenizer, template),
            self.context_length,
            self.too_long or TOO_LONG[self.kind],
            self.skip_bad_rows,
            self.data.text_field,
        )


def prepare_examples(wanted: Wanted, progress: Report | None = None) -> Examples:
    """The examples of a data set: from the cache when nothing that they depend on changed, else made now.

    Raises  DataError for what cannot be read, and for the first record that nothing can be learned from, unless such
            are passed over
    """
    report, data = progress or SILENT.progress, wanted.data
    _require_data(data)
    recipe = wanted.recipe()
    settings = _settings(recipe, data, wanted.seed)
    corpus, cache = Corpus(data), Cache()
    manifest = corpus.manifest()
    quick = _quick(settings, corpus, manifest)
    examples = _recalled(cache, quick) if manifest else None
    if examples is None:
        began = time.time_ns()
        examples, entry = _prepared(corpus, cache, recipe, settings, data, wanted.seed, report)
        if manifest and max(max(times) for _, _, _, *times in manifest) < began - UNSETTLED:
            cache.remember(quick, entry)
    if cache.damage:
        note = f"the examples kept from before were not whole, and were made again ({cache.damage})"
        examples = replace(examples, notes=[*examples.notes, note])
    return examples


def open_examples(fingerprint: str, wanted: Wanted) -> Examples:
    """The examples of a run: from the cache, or made again from its data, as `prepare_examples` makes them.

    Raises  CheckpointError when the data is no longer the run's; DataError when it cannot be read
    """
    cache, data = Cache(), wanted.data
    examples = _read(cache, fingerprint)
    if examples is not None:
        return examples
    why = f"are damaged ({cache.damage})" if cache.damage else f"are no longer in {cache.path}"
    if "-" in (*data.paths, *data.validation_paths):
        raise DataError(f"the run's data came from standard input, and its examples {why}: start a new run with it")
    examples = prepare_examples(wanted)
    if examples.fingerprint != fingerprint:
        raise CheckpointError(
            f"the run's data has changed: its examples had fingerprint {fingerprint[:8]} and {why}, those of "
            f"{', '.join(data.paths)} now have {examples.fingerprint[:8]}; bring the old data (tokenizer and chat "
            "template) back, or start a new run"
        )
    return examples


def named_as_given(examples: Examples, wanted: Wanted) -> Examples:
    """The same examples with the names that a configuration's files have now, where they hold the same records."""
    entry = _entry(wanted) if lies_in_files(wanted.data) else None
    return _named(examples, entry) if entry and entry["fingerprint"] == examples.fingerprint else examples


def changed_since(examples: Examples, wanted: Wanted) -> str | None:
    """What became of the records that examples were made of, where they are other ones now; None where they are not.

    What no file holds, such as a data set of the hub, is not asked again.
    """
    if not lies_in_files(wanted.data):
        gone = [path for path in wanted.data.paths if not path.startswith(ELSEWHERE) and not user_path(path).exists()]
        return f"{', '.join(gone)} is no longer there" if gone and not any(map(glob.has_magic, gone)) else None
    entry = _entry(wanted)
    if entry is not None and entry["fingerprint"] == examples.fingerprint:
        return None
    return f"{', '.join(wanted.data.paths)} holds other records now"


def _entry(wanted: Wanted) -> dict[str, Any] | None:
    """What leads to the examples of the records as they are now; None where they cannot be read."""
    settings = _settings(wanted.recipe(), wanted.data, wanted.seed)
    corpus = Corpus(wanted.data)
    try:
        found: dict[str, Any] | None = Cache().recall(_quick(settings, corpus, corpus.manifest()))
        return found or _records_of(corpus, settings, wanted.seed, SILENT.progress)[1]
    except DataError:
        return None


def _quick(settings: list[Any], corpus: Corpus, manifest: Any) -> str:
    """What the same files, unchanged and given alike, are remembered by."""
    return hash_of(settings, list(corpus.path_of.items()), manifest)


def _require_data(data: DataConfig) -> None:
    if not data.paths:
        raise DataError("no data to tune on: give files of records, .jsonl, .json, .csv or .parquet, or hf:NAME")
    if data.weights:
        raise DataError(f"weights are {len(data.weights)}: every example counts alike here, so leave them out")
    if len(data.validation_sets) > 1:
        names = ", ".join(name or "one without a name" for name in data.validation_sets)
        raise DataError(f"validation names several sets, {names}: examples have one, so give the paths without names")


def _with_template(tokenizer: Tokenizer, file: str) -> Tokenizer:
    """The same tokenizer with the chat template of a file."""
    path = user_path(file)
    try:
        text = read_whole(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"the chat template {file} is no text ({one_line(error)}): expected a Jinja file") from error
    except OSError as error:
        raise DataError(f"cannot read the chat template {file}: {error.strerror}; expected a Jinja file") from error
    words = tokenizer.chat_template.words if tokenizer.chat_template else {}
    return _restored(tokenizer.to_json(), _chat_of(tokenizer) | {"template": [text, file, dict(words)]})


def _settings(recipe: Recipe, data: DataConfig, seed: int) -> list[Any]:
    """All but the records that examples depend on."""
    template = recipe.tokenizer.chat_template
    day = date.today().isoformat() if template and template.writes_date else None
    return [
        "examples", VERSION, recipe.kind, recipe.context_length, recipe.too_long, recipe.skip_bad_rows,
        recipe.text_field, day, seed, data.validation_fraction, recipe.tokenizer.to_json(),
        _chat_of(recipe.tokenizer) | {"template": template and [template.text, sorted(template.words.items())]},
    ]  # fmt: skip


def _prepared(
    corpus: Corpus, cache: Cache, recipe: Recipe, settings: list[Any], data: DataConfig, seed: int, report: Report
) -> tuple[Examples, dict[str, Any]]:
    """Read the records; make examples of them unless that was done for the same records, wherever they lay."""
    stats, entry = _records_of(corpus, settings, seed, report)
    content = entry["fingerprint"]
    examples = _read(cache, content)
    if examples is None:
        split = Split(seed, data.validation_fraction, stats, False, corpus.validation)
        with cache.filled(content, lambda: _read(cache, content) is not None) as folder:
            meta = make(folder, corpus.records(), split, recipe, report)
            (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
            (folder / "tokenizer.json").write_text(recipe.tokenizer.to_json(), encoding="utf-8")
            (folder / "chat.json").write_text(json.dumps(_chat_of(recipe.tokenizer)), encoding="utf-8")
        examples = _read(cache, content)
        if examples is None:
            raise DataError(f"the examples do not come back from {cache.folder(content)} ({cache.damage}): try again")
    return _named(examples, entry), entry


def _records_of(corpus: Corpus, settings: list[Any], seed: int, report: Report) -> tuple[CorpusStats, dict[str, Any]]:
    """Read the records; returns what they are, and what leads to their examples from now on."""
    stats = CorpusStats(seed, corpus.path_of, alphabet=None)
    records = (Chunk(one.source, one.number, canonical(one).decode(), last=True) for one in corpus.records())
    for _ in stats.counted(records):
        report("reading the records", stats.documents, None)
    corpus.require_text(stats.documents_of, each=False)
    content = hash_of(settings, stats.digest, stats.places, sorted(corpus.validation), list(stats.documents_of.items()))
    return stats, {"fingerprint": content, "sources": list(stats.sources), "notes": corpus.notes()}


def _recalled(cache: Cache, key: str) -> Examples | None:
    entry = cache.recall(key)
    examples = entry and _read(cache, entry["fingerprint"])
    return _named(examples, entry) if entry and examples else None


def _named(examples: Examples, entry: Mapping[str, Any]) -> Examples:
    """Examples with the names and notes of the files that led there."""
    train, validation = (
        replace(split, where=Places(entry["sources"], split.where.places))
        for split in (examples.train, examples.validation)
    )
    return replace(examples, train=train, validation=validation, notes=entry["notes"] + examples.notes)


def _read(cache: Cache, fingerprint: str) -> Examples | None:
    """Examples from the cache; None when they are not there, or not as written, which `cache.damage` tells."""
    folder = cache.folder(fingerprint)
    if not folder.is_dir():
        return None
    try:
        if wrong := damage_within(folder):
            raise ValueError(wrong)
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        chat = json.loads((folder / "chat.json").read_text(encoding="utf-8"))
        train, validation = (read_split(folder, name, meta["kind"], meta["sources"]) for name in SPLITS)
        return Examples(
            kind=meta["kind"],
            train=train,
            validation=validation,
            tokenizer=_restored((folder / "tokenizer.json").read_text(encoding="utf-8"), chat),
            fingerprint=fingerprint,
            notes=[
                f"records skipped, {reason}: {count:,}, for example {meta['examples'][reason]}"
                for reason, count in meta["skipped"].items()
            ]
            + meta["notes"]
            + one_sided(train.desirable),
            tallies=(Tally(**meta["tallies"][0]), Tally(**meta["tallies"][1])),
            skipped=meta["skipped"],
        )
    except (OSError, EOFError, *MALFORMED, DataError) as error:
        cache.damage = one_line(error)
        return None


def _chat_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """What a tokenizer knows beyond its tokenizer.json."""
    template = tokenizer.chat_template
    return {
        "start": tokenizer.start, "end": tokenizer.end, "ends": sorted(tokenizer.ends),
        "template": template and [template.text, template.where, dict(template.words)],
    }  # fmt: skip


def _restored(tokenizer_json: str, chat: Mapping[str, Any]) -> Tokenizer:
    tokenizer = Tokenizer.from_json(tokenizer_json)
    tokenizer.start, tokenizer.end, tokenizer.ends = chat["start"], chat["end"], frozenset(chat["ends"])
    tokenizer.chat_template = ChatTemplate(*chat["template"]) if chat["template"] else None
    return tokenizer
