"""Folders of tokens as the splits that a run reads: where each document lies is worked out once, tokens stay there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from limpid.config import DataConfig
from limpid.data.cache import Cache, hash_of
from limpid.data.joined import Joined
from limpid.data.left_out import read_list
from limpid.data.shards.divide import Part, divided
from limpid.data.shards.folder import TokensFolder
from limpid.data.token_splits import Counts, PathTokens, Tokens
from limpid.data.tokenizer import Tokenizer, read_tokenizer_file
from limpid.errors import DataError
from limpid.files import one_line, user_path
from limpid.manifest import damage_within
from limpid.reporter import Report

Array = np.ndarray
VERSION = 1


def joined(folders: Sequence[TokensFolder], data: DataConfig, seed: int, report: Report) -> Tokens:
    """The splits of folders of tokens, as the text that they were made of would be split.

    Raises  DataError naming a file that is missing, damaged or of another tokenizer
    """
    tokenizer = _one_tokenizer(folders, data)
    parts = [Part(path, *found) for path, folder in enumerate(folders) for found in folder.whole_shards()]
    by_path, held_out = bool(data.weights), range(len(data.paths), len(folders))
    leave_out = frozenset() if data.leave_out is None else read_list(user_path(data.leave_out))
    fingerprint = hash_of(
        "shards", VERSION, seed, data.validation_fraction, by_path, list(held_out), sorted(leave_out),
        [[part.path, part.sidecar.files, part.sidecar.tokenizer] for part in parts],
    )  # fmt: skip
    cache = Cache()
    layout = _layout(cache, fingerprint)
    if layout is None:
        report("dividing the documents", 0, None)
        stretches, notes = divided(parts, data, seed, frozenset(held_out), leave_out, tokenizer)
        with cache.filled(fingerprint, lambda: _layout(cache, fingerprint) is not None) as folder:
            stretches.write(folder, notes)
        layout = _layout(cache, fingerprint)
        if layout is None:
            raise DataError(f"what was written to {cache.folder(fingerprint)} does not read back: see to the disk")
    meta, (train, validation), documents = layout
    files = [part.shard.tokens(part.sidecar) for part in parts]
    splits = [
        Joined(files, pieces, length, tokenizer.dtype)
        for pieces, length in zip((train, validation), meta["tokens"], strict=True)
    ]
    paths = tuple(PathTokens(number, read, Counts(*a), Counts(*b)) for number, read, a, b in meta["paths"])
    counts = [Counts(*map(sum, zip(*(one[split] for one in paths), strict=True))) for split in (2, 3)]
    sources = [one.name for part in parts for one in part.sidecar.inputs]
    return Tokens(
        train=splits[0],
        validation=splits[1],
        tokenizer=tokenizer,
        fingerprint=fingerprint,
        counts=(counts[0], counts[1]),
        documents=documents,
        sources=sources,
        notes=meta["notes"],
        paths=paths,
    )


def _one_tokenizer(folders: Sequence[TokensFolder], data: DataConfig) -> Tokenizer:
    """The tokenizer of all folders; raises DataError for folders of several, or where another one was asked for."""
    first = folders[0]
    for other in folders[1:]:
        if other.contents.tokenizer != first.contents.tokenizer:
            raise DataError(
                f"{other.path} was tokenized with another tokenizer than {first.path}: tokenize it again, with "
                f"--tokenizer {first.path / 'tokenizer.json'}"
            )
    tokenizer = first.tokenizer
    if data.tokenizer in ("bytes", "characters"):
        same = first.contents.asked == data.tokenizer
    else:
        same = data.tokenizer == "bpe" or read_tokenizer_file(data.tokenizer) == tokenizer.to_json()
    if not same or data.tokenizer_vocab_size not in (None, tokenizer.vocab_size):
        raise DataError(
            f"{first.path} was tokenized with its own tokenizer of {tokenizer.vocab_size} tokens: leave --tokenizer "
            "and --tokenizer-vocab-size out, or tokenize the text again"
        )
    return tokenizer


def _layout(cache: Cache, fingerprint: str) -> tuple[dict[str, Any], tuple[Array, Array], Array] | None:
    """What was worked out before; None where it was not, or is damaged."""
    folder = cache.folder(fingerprint)
    if not folder.is_dir() or damage_within(folder):
        return None
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        train, validation = np.load(folder / "train.npy"), np.load(folder / "validation.npy")
        return meta, (train, validation), np.load(folder / "documents.npy", mmap_mode="r")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"cannot open {folder} ({one_line(error)}): remove it, or see to the disk") from error
