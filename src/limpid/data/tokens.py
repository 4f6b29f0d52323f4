"""A corpus as tokens: split, tokenized, kept on disk, led back to its documents."""

from __future__ import annotations

import glob
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from limpid.config import DataConfig
from limpid.data.cache import Cache, hash_of
from limpid.data.documents import Corpus
from limpid.data.joined import Joined
from limpid.data.shards.folder import folders_of
from limpid.data.shards.read import joined
from limpid.data.split import CHANGED, CorpusStats, Digest, Split
from limpid.data.token_files import make_tokenizer, write_tokens
from limpid.data.token_splits import Counts, PathTokens, Tokens
from limpid.data.tokenizer import Tokenizer, read_tokenizer_file
from limpid.errors import CheckpointError, DataError
from limpid.files import MALFORMED, one_line, user_path
from limpid.manifest import damage_within
from limpid.reporter import Report

Array = np.ndarray
VERSION = 1
UNSETTLED = 2 * 10**9  # nanoseconds: a file younger than this may change again within one tick of its time stamp


def prepare(data: DataConfig, context_length: int, seed: int, progress: Report | None = None) -> Tokens:
    """The tokens of a corpus: from the cache when neither text, split nor tokenizer changed, else made now.

    Raises  DataError for text that cannot be read or is too short
    """
    report = _sparing(progress)
    if folders := folders_of([*data.paths, *data.validation_paths]):
        return _require_length(joined(folders, data, seed, report), data, context_length)
    corpus, cache, settings = Corpus(data), Cache(), _settings(data, seed)
    manifest = corpus.manifest()
    quick = _key(settings, data, corpus, manifest)
    tokens = _recalled(cache, quick) if manifest else None
    if tokens is None:
        began = time.time_ns()
        tokens, entry = _prepared(data, seed, corpus, cache, settings, report)
        if manifest and max(max(times) for _, _, _, *times in manifest) < began - UNSETTLED:
            cache.remember(quick, entry)
    if cache.damage:
        note = f"the tokens kept from before were not whole, and were made again ({cache.damage})"
        tokens = replace(tokens, notes=[*tokens.notes, note])
    return _require_length(tokens, data, context_length)


def open_tokens(fingerprint: str, data: DataConfig, context_length: int, seed: int) -> Tokens:
    """The tokens of a run: from the cache, or made again from its text. What was said of them when it began is not
    said again.

    Raises  CheckpointError when the text is no longer the run's; DataError when it cannot be read
    """
    cache = Cache()
    if folders := folders_of([*data.paths, *data.validation_paths]):
        tokens: Tokens | None = joined(folders, data, seed, _sparing(None))
        why = "come from shards that were made anew"
    else:
        tokens = _read(cache, fingerprint)
        why = f"are damaged ({cache.damage})" if cache.damage else f"are no longer in {cache.path}"
    if tokens is None:
        if "-" in (*data.paths, *data.validation_paths):
            raise DataError(
                f"the run's text came from standard input, and its tokens {why}: start a new run with the same text"
            )
        tokens = prepare(data, context_length, seed)
    tokens = replace(tokens, notes=[])
    if tokens.fingerprint != fingerprint:
        raise CheckpointError(
            f"the run's data has changed: its tokens had fingerprint {fingerprint[:8]} and {why}, those of "
            f"{', '.join(data.paths) or 'the Python standard library'} now have {tokens.fingerprint[:8]}; "
            "bring the old text (and tokenizer) back, or start a new run"
        )
    return _require_length(tokens, data, context_length)


def named_as_given(tokens: Tokens, data: DataConfig, seed: int) -> Tokens:
    """The same tokens with the names that a configuration's files have now, where they are the text that was read."""
    if isinstance(tokens.train, Joined) or not lies_in_files(data):
        return tokens
    cache, corpus = Cache(), Corpus(data)
    entry = cache.recall(_key(_settings(data, seed), data, corpus, corpus.manifest()))
    return _named(tokens, entry) if entry and entry["fingerprint"] == tokens.fingerprint else tokens


def lies_in_files(data: DataConfig) -> bool:
    """Whether all that a configuration names lies in files or folders: a pipe is not to be opened for its name."""
    places = [user_path(path) for path in (*data.paths, *data.validation_paths) if not glob.has_magic(path)]
    return all(place.is_file() or place.is_dir() for place in places)


def _key(settings: list[Any], data: DataConfig, corpus: Corpus, manifest: Any) -> str:
    """What the same files, unchanged and given alike, are remembered by."""
    return hash_of(settings, data.text_field, bool(data.weights), list(corpus.path_of.items()), manifest)


def _settings(data: DataConfig, seed: int) -> list[Any]:
    """All but the text that tokens depend on."""
    words = ("bpe", "bytes", "characters")
    tokenizer = data.tokenizer if data.tokenizer in words else read_tokenizer_file(data.tokenizer)
    return [VERSION, seed, data.validation_fraction, tokenizer, data.tokenizer_vocab_size]


def _prepared(
    data: DataConfig, seed: int, corpus: Corpus, cache: Cache, settings: list[Any], report: Report
) -> tuple[Tokens, dict[str, Any]]:
    """Read the text; tokenize it unless that was done for the same text, wherever it lay.

    Returns the tokens, and what leads to them from now on
    """
    stats = CorpusStats(seed, corpus.path_of, alphabet=set() if data.tokenizer == "characters" else None)
    for _ in stats.counted(corpus.chunks()):
        report("reading the text", stats.bytes, None)
    by_path = bool(data.weights)
    corpus.require_text(stats.documents_of, each=by_path)
    arrangement = list(map(list, stats.documents_of.items()))
    if by_path or corpus.validation:  # which documents are held out, and where a path begins, depends on it
        settings = [*settings, by_path, sorted(corpus.validation), arrangement]
    content = hash_of(settings, stats.digest)
    before = cache.recall(content)
    known = _read(cache, before["fingerprint"]) if before else None
    if known is None:
        split = Split(seed, data.validation_fraction, stats, by_path, corpus.validation)
        tokenizer, notes = make_tokenizer(data, corpus, split, report)
        fingerprint = hash_of(content, tokenizer.to_json())
        _make(fingerprint, corpus, split, tokenizer, split.notes() + notes, cache, report)
        cache.remember(content, {"fingerprint": fingerprint})
        known = _read(cache, fingerprint)
        if known is None:
            raise DataError(
                f"tokenizer {data.tokenizer} does not come back from its own JSON as it was, as one does whose tokens "
                "share an id: give another"
            )
    entry = {
        "fingerprint": known.fingerprint, "sources": list(stats.sources), "places": stats.places,
        "notes": corpus.notes(), "paths": arrangement,
    }  # fmt: skip
    return _named(known, entry), entry


def _make(
    fingerprint: str, corpus: Corpus, split: Split, tokenizer: Tokenizer, notes: list[str], cache: Cache, report: Report
) -> None:
    """Fill the cache's folder for `fingerprint`."""
    again = Digest()
    with cache.filled(fingerprint, lambda: _read(cache, fingerprint) is not None) as folder:
        chunks = split.assign(again.of(corpus.chunks()))
        meta = write_tokens(folder, chunks, tokenizer, split.stats, report)
        if str(again) != split.stats.digest:
            raise DataError(CHANGED)
        (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
        (folder / "meta.json").write_text(json.dumps(meta | {"notes": notes}), encoding="utf-8")


def _recalled(cache: Cache, key: str) -> Tokens | None:
    """The tokens that `key` leads to, with the names and notes of the text that led there."""
    entry = cache.recall(key)
    tokens = entry and _read(cache, entry["fingerprint"])
    if not entry or not tokens:
        return None
    return _named(tokens, entry)


def _named(tokens: Tokens, entry: dict[str, Any]) -> Tokens:
    """Tokens with the names and notes of the text that led there, where its documents lie in files and paths alike."""
    same = entry.get("paths") == [[path.path, path.documents] for path in tokens.paths]
    sources = entry["sources"] if tokens.places in (None, entry.get("places")) else tokens.sources
    return replace(tokens, sources=sources, notes=entry["notes"] + tokens.notes, paths=tokens.paths if same else ())


def _read(cache: Cache, fingerprint: str) -> Tokens | None:
    """Tokens from the cache; None when they are not there, or not as they were written, which `cache.damage` tells.

    Raises  DataError when the system refuses just now (too many open files, no memory to map): the tokens are kept
    """
    folder = cache.folder(fingerprint)
    if not folder.is_dir():
        return None
    try:
        if wrong := damage_within(folder):
            raise ValueError(wrong)
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        dtype = np.dtype(meta["dtype"])
        train, validation = (
            _mapped(folder / name, dtype, count)
            for name, count in zip(("train.bin", "validation.bin"), meta["tokens"], strict=True)
        )
        tokenizer = Tokenizer.from_json((folder / "tokenizer.json").read_text(encoding="utf-8"))
        documents = np.load(folder / "documents.npy", mmap_mode="r")
        paths = tuple(PathTokens(n, read, Counts(*a), Counts(*b)) for n, read, a, b in meta.get("paths", ()))
        held_out = sum(path.held_out.documents for path in paths) or int((validation == tokenizer.end_of_text).sum())
        train_counts, held_out_counts = map(
            Counts, (len(documents), held_out), meta["bytes"], meta["tokens"]
        )  # tokens from before paths were counted end their documents with a mark
        return Tokens(
            train=train,
            validation=validation,
            tokenizer=tokenizer,
            fingerprint=fingerprint,
            counts=(train_counts, held_out_counts),
            documents=documents,
            sources=meta["sources"],
            notes=meta["notes"],
            places=meta.get("places"),
            paths=paths,
        )
    except (FileNotFoundError, EOFError, *MALFORMED, DataError) as error:
        cache.damage = one_line(error)
        return None
    except OSError as error:
        raise DataError(
            f"cannot open the tokens in {folder}: {error.strerror}; they are kept, so close other programs or raise "
            "the limit (ulimit -n), and start again"
        ) from error


def _mapped(file: Path, dtype: np.dtype[Any], count: int) -> Array:
    """The whole file, unless its length is another; an empty file cannot be mapped."""
    if file.stat().st_size != count * dtype.itemsize:
        raise ValueError(f"{file} is cut short")
    return np.memmap(file, dtype, "r") if count else np.empty(0, dtype)


def _require_length(tokens: Tokens, data: DataConfig, context_length: int) -> Tokens:
    """The same tokens, when each split holds at least one row, and each path with a weight; else a DataError."""
    held_out = "give more to validate on" if data.validation else "raise --validation-fraction"
    lengths = {
        "the training split": (len(tokens.train), "lower --validation-fraction"),
        "the validation split": (len(tokens.validation), held_out),
    }
    if len(data.validation_sets) > 1:
        for name, size in _held_out_of(tokens, data).items():
            lengths[f"validation set {name or 'without a name'}"] = (size, held_out)
    for path, (start, end) in tokens.regions.items() if data.weights else ():
        if path < len(data.weights):
            lengths[data.paths[path]] = (end - start, "leave it out")
    for name, (length, change) in lengths.items():
        if length <= context_length:
            raise DataError(
                f"{name} has {length} tokens, expected at least {context_length + 1} (one row of "
                f"context_length {context_length} and its last target): give more text, lower "
                f"--context-length, or {change}"
            )
    return tokens


def _held_out_of(tokens: Tokens, data: DataConfig) -> dict[str, int]:
    """Tokens of each set to validate on."""
    first = len(data.paths or ("",))
    sizes = {path.path - first: path.held_out.tokens for path in tokens.paths}
    return {name: sum(sizes.get(i, 0) for i in members) for name, members in data.validation_sets.items()}


def _sparing(progress: Report | None) -> Report:
    """The same report at most twenty times a second, so that short documents do not wait for it."""
    last, when = "", 0.0

    def report(what: str, done: int, total: int | None) -> None:
        nonlocal last, when
        now = time.monotonic()
        if progress is not None and (what != last or done == total or now - when >= 0.05):
            last, when = what, now
            progress(what, done, total)

    return report
