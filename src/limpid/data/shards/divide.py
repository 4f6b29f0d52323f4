"""Which documents of shards a run trains on and which it holds out: the same draws that divide a text."""

from __future__ import annotations

import itertools
import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt64

from limpid.config import DataConfig
from limpid.data.records import document_name
from limpid.data.shards.shard import Shard, Sidecar
from limpid.data.split import CorpusStats, Split, hash_uniform
from limpid.data.tokenizer import Tokenizer
from limpid.errors import DataError

Array = np.ndarray
TRAIN, HELD_OUT, LEFT_OUT = 0, 1, 2
STRETCH = np.dtype(
    [(name, np.int64) for name in ("split", "path", "shard", "start", "tokens", "bytes", "documents", "source", "line")]
)
"""Tokens of one document that lie together: in which split, of which path, where they lie, how much they are, and the
document that begins there (1 or 0, its source, its line)."""
BLOCK = 1 << 20
"""Tokens whose bytes are counted at once."""


@dataclass(frozen=True)
class Part:
    """A shard among those of a run."""

    path: int  # which of the given paths it is of
    shard: Shard
    sidecar: Sidecar


def divided(
    parts: Sequence[Part], data: DataConfig, seed: int, held_out: frozenset[int], leave_out: frozenset[str],
    tokenizer: Tokenizer,
) -> tuple[Stretches, list[str]]:  # fmt: skip
    """Every document in its split, and what a user should know about that."""
    rows, texts = _table(parts)
    kept = np.ones(len(rows), bool)
    if leave_out:
        places = [one.place for part in parts for one in part.sidecar.inputs]
        kept[:] = [document_name(places[row["source"]], int(row["line"])) not in leave_out for row in rows]
    stats = CorpusStats(seed, alphabet=None)
    stats.draws = array("d", (hash_uniform(seed, number) for number in range(int(kept.sum()))))
    stats.texts = array("Q", texts[kept].tobytes())
    for path, name in enumerate([*data.paths, *data.validation_paths]):
        stats.documents_of[path] = int((kept & (rows["path"] == path)).sum())
        if not stats.documents_of[path]:
            raise DataError(f"{name} holds no documents: leave it out")
    split = Split(seed, data.validation_fraction, stats, bool(data.weights), held_out)
    rows["split"] = LEFT_OUT
    rows["split"][kept] = np.where(split.held_out, HELD_OUT, TRAIN)
    if held_out:
        rows["split"][np.flatnonzero(kept)[split.in_both]] = LEFT_OUT
    notes = split.notes()
    if leave_out:
        notes.append(f"documents left out because --leave-out lists them: {int((~kept).sum()):,}")
    alone = [] if held_out else _alone(rows, kept, by_path=bool(data.weights))
    rows = _with_ends_held_out(rows, alone, data.validation_fraction, parts, tokenizer)
    return Stretches(rows, dict(stats.documents_of)), notes


@dataclass(frozen=True)
class Stretches:
    """All documents in order, each a stretch of tokens, or several where its end is held out."""

    rows: Array  # STRETCH
    documents_of: dict[int, int]  # by path

    def write(self, folder: Path, notes: list[str]) -> None:
        """Write down what leads from a split to the shards: stretches that touch are one piece."""
        splits = [self.rows[self.rows["split"] == split] for split in (TRAIN, HELD_OUT)]
        for name, rows in zip(("train.npy", "validation.npy"), splits, strict=True):
            np.save(folder / name, _pieces(rows))
        train = splits[TRAIN]
        begins = train["documents"] == 1
        starts = _before(train["tokens"])
        np.save(folder / "documents.npy", np.stack([starts, train["source"], train["line"]], axis=1)[begins])
        paths = [[path, read, *(_counts(rows, path) for rows in splits)] for path, read in self.documents_of.items()]
        meta = {"tokens": [int(rows["tokens"].sum()) for rows in splits], "paths": paths, "notes": notes}
        (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def _table(parts: Sequence[Part]) -> tuple[Array, UInt64[Array, " document"]]:
    """Every document of every shard as one stretch, and the hash of its text."""
    tables = [part.shard.documents() for part in parts]
    firsts = itertools.accumulate((len(part.sidecar.inputs) for part in parts), initial=0)
    rows = np.zeros(sum(map(len, tables)), STRETCH)
    texts, at = np.empty(len(rows), np.uint64), 0
    for number, (part, table, first) in enumerate(zip(parts, tables, firsts, strict=False)):
        here = rows[at : at + len(table)]
        here["path"], here["shard"], here["documents"] = part.path, number, 1
        here["start"], here["source"] = _before(table["tokens"]), table["input"].astype(np.int64) + first
        for name in ("tokens", "bytes", "line"):
            here[name] = table[name]
        if int(table["tokens"].sum()) != part.sidecar.tokens:
            raise DataError(f"{part.shard.file('.documents')} does not add up to its tokens: tokenize again")
        texts[at : at + len(table)] = table["text"]
        at += len(table)
    return rows, texts


def _alone(rows: Array, kept: Array, by_path: bool) -> list[int]:
    """Documents that are the only one, of all or of their path."""
    numbers = np.flatnonzero(kept)
    groups = rows["path"][numbers] if by_path else np.zeros(len(numbers), np.int64)
    return [int(numbers[groups == group][0]) for group in np.unique(groups) if (groups == group).sum() == 1]


def _with_ends_held_out(
    rows: Array, alone: list[int], fraction: float, parts: Sequence[Part], tokenizer: Tokenizer
) -> Array:
    """Of a document that is alone, the last part of its tokens is held out; the mark ends both parts."""
    for number in reversed(alone):
        row = rows[number]
        mark = int(tokenizer.end_of_text is not None)
        train = int((1 - fraction) * (row["tokens"] - mark))
        part = parts[row["shard"]]
        ids = part.shard.tokens(part.sidecar)[row["start"] + train : row["start"] + row["tokens"] - mark]
        stretches = np.array([row] * (2 + mark), STRETCH)
        stretches["split"] = [TRAIN] * (1 + mark) + [HELD_OUT]
        stretches["tokens"] = [train, *[1] * mark, row["tokens"] - train]
        stretches["start"] = [row["start"], *[row["start"] + row["tokens"] - 1] * mark, row["start"] + train]
        held_out = _bytes(ids, tokenizer)
        stretches["bytes"] = [row["bytes"] - held_out, *[0] * mark, held_out]
        stretches["documents"] = [1, *[0] * mark, 1]
        rows = np.concatenate([rows[:number], stretches, rows[number + 1 :]])
    return rows


def _bytes(ids: Array, tokenizer: Tokenizer) -> int:
    """Bytes of text that tokens stand for."""
    sizes = tokenizer.sizes
    if sizes is None:
        return len(tokenizer.decode(ids.tolist()).encode())
    return sum(int(sizes[ids[at : at + BLOCK]].sum()) for at in range(0, len(ids), BLOCK))


def _pieces(rows: Array) -> Int64[Array, "piece 3"]:
    """Where each piece begins in the split, its shard, and where it begins there."""
    filled = rows[rows["tokens"] > 0]
    starts, ends = filled["start"], filled["start"] + filled["tokens"]
    touches = np.zeros(len(filled), bool)
    touches[1:] = (filled["shard"][1:] == filled["shard"][:-1]) & (starts[1:] == ends[:-1])
    return np.stack([_before(filled["tokens"]), filled["shard"], starts], axis=1)[~touches]


def _before(counts: Int64[Array, " row"]) -> Int64[Array, " row"]:
    """How much comes before each."""
    return np.cumsum(counts, dtype=np.int64) - counts


def _counts(rows: Array, path: int) -> list[int]:
    """Documents, bytes and tokens of a path."""
    own = rows[rows["path"] == path]
    return [int(own[name].sum()) for name in ("documents", "bytes", "tokens")]
