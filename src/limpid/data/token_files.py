"""A corpus becomes files of token ids: the tokenizer chosen or trained, both splits written."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from limpid.config import DataConfig
from limpid.data.documents import Corpus
from limpid.data.formats import Chunk
from limpid.data.new_tokenizer import byte_tokenizer, character_tokenizer, chosen_vocab_size, train_bpe
from limpid.data.split import CorpusStats, Split, hash_uniform
from limpid.data.tokenizer import Tokenizer
from limpid.data.words import Words
from limpid.errors import DataError
from limpid.reporter import Report

Array = np.ndarray
Piece = TypeVar("Piece")
Encoder = Callable[[list[str]], list[Array]]

BPE_SAMPLE = 64 * 2**20  # bytes of text that BPE learns from at most
AT_ONCE = 2**20  # characters tokenized together


def write_tokens(
    folder: Path, chunks: Iterator[tuple[bool, Chunk]], tokenizer: Tokenizer, stats: CorpusStats, report: Report
) -> dict[str, Any]:
    """Write both splits and where the training documents start; memory stays near one batch of chunks.

    Returns what is needed to read them: number format, tokens and bytes of text of (training, validation), and of each
    path its number, its documents, and what each split has of it (documents, bytes, tokens)
    """
    dtype = tokenizer.dtype
    encode = encoder(tokenizer, dtype)
    end = np.array([] if tokenizer.end_of_text is None else [tokenizer.end_of_text], dtype)
    documents = array("q")
    counts = {path: np.zeros((2, 3), np.int64) for path in stats.documents_of}  # (split, what)
    train_tokens, done, starts = 0, 0, [True, True]
    with (folder / "train.bin").open("wb") as train, (folder / "validation.bin").open("wb") as validation:
        for batch in batched(chunks, lambda pair: pair[1]):
            found = encoded([chunk for _, chunk in batch], tokenizer, encode)
            for (held_out, chunk), ids in zip(batch, found, strict=True):
                if starts[held_out] and not held_out:
                    documents.extend((train_tokens, stats.sources[chunk.source], chunk.line))
                ids = np.concatenate([ids, end]) if chunk.last else ids
                (validation if held_out else train).write(ids.tobytes())
                path = stats.path_of.get(chunk.source, 0)
                counts[path][int(held_out)] += (starts[held_out], len(chunk.text.encode()), len(ids))
                starts[held_out] = chunk.last
                train_tokens += 0 if held_out else len(ids)
                done += len(chunk.text)
            report("tokenizing", done, stats.characters)
    np.save(folder / "documents.npy", np.frombuffer(documents, np.int64).reshape(-1, 3))
    _, byte_counts, tokens = np.sum(list(counts.values()), axis=0).T.tolist()
    paths = [[path, documents, *counts[path].tolist()] for path, documents in stats.documents_of.items()]
    return {
        "dtype": dtype.name, "tokens": tokens, "bytes": byte_counts,
        "sources": list(stats.sources), "places": stats.places, "paths": paths,
    }  # fmt: skip


def batched(pieces: Iterator[Piece], chunk_of: Callable[[Piece], Chunk]) -> Iterator[list[Piece]]:
    """Pieces in lists of about AT_ONCE characters."""
    batch, characters = [], 0
    for piece in pieces:
        batch.append(piece)
        characters += len(chunk_of(piece).text)
        if characters >= AT_ONCE:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def encoder(tokenizer: Tokenizer, dtype: np.dtype[Any]) -> Encoder:
    """Texts to ids: word by word where that is the same."""
    if tokenizer.splits_at_words:
        return Words(tokenizer.encode_batch, dtype).ids
    return lambda texts: [np.array(ids, dtype) for ids in tokenizer.encode_batch(texts)]


def encoded(chunks: list[Chunk], tokenizer: Tokenizer, encode: Encoder) -> list[Array]:
    """Ids of each chunk; raises DataError naming the one that the tokenizer cannot encode."""
    try:
        return encode([chunk.text for chunk in chunks])
    except DataError:
        for chunk in chunks:
            try:
                tokenizer.encode(chunk.text)
            except DataError as error:
                raise DataError(f"{chunk.name}: {error}") from error
        raise


def make_tokenizer(data: DataConfig, corpus: Corpus, split: Split, report: Report) -> tuple[Tokenizer, list[str]]:
    """The tokenizer that the configuration asks for, and what a user should know about it."""
    match data.tokenizer:
        case "bytes":
            return byte_tokenizer(), []
        case "characters":
            return character_tokenizer(split.stats.alphabet or ()), []
        case "bpe":
            return _trained(data.tokenizer_vocab_size, corpus, split, report)
        case path:
            tokenizer = Tokenizer.load(path)
            return tokenizer, _doubts(tokenizer, path, next(corpus.chunks()))


def _trained(vocab_size: int | None, corpus: Corpus, split: Split, report: Report) -> tuple[Tokenizer, list[str]]:
    stats = split.stats
    asked = vocab_size or chosen_vocab_size(stats.bytes)
    share = BPE_SAMPLE / stats.bytes
    notes = []
    if share < 1:
        notes.append(f"BPE learned from {BPE_SAMPLE >> 20} MiB of the {stats.bytes / 2**20:,.0f} MiB of text")

    def sample() -> Iterator[str]:
        read = 0
        for number, (held_out, chunk) in enumerate(split.assign(corpus.chunks())):
            read += len(chunk.text)
            if not held_out and hash_uniform(split.seed, number, 1) < share:
                report("training the tokenizer", read, stats.characters)
                yield chunk.text

    tokenizer = train_bpe(sample(), asked)
    if tokenizer.vocab_size < asked:
        notes.append(f"BPE stopped at {tokenizer.vocab_size} of {asked} tokens: no pair is left that occurs twice")
    return tokenizer, notes


def _doubts(tokenizer: Tokenizer, path: str, chunk: Chunk) -> list[str]:
    """What a tokenizer from elsewhere does to a text."""
    notes = []
    text = chunk.text[:1000]
    if tokenizer.decode(tokenizer.encode(text)) != text:
        notes.append(f"tokenizer {path} does not give every text back exactly: what it drops, the model never sees")
    if tokenizer.end_of_text is None:
        notes.append(f"tokenizer {path} has no end-of-text token: documents follow each other without a mark")
    return notes
