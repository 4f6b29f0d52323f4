"""A corpus becomes files of token ids: the tokenizer chosen or trained, both splits written."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from limpid.config import DataConfig
from limpid.data.documents import Corpus
from limpid.data.formats import Piece
from limpid.data.split import Census, Split, draw
from limpid.data.tokenizer import Tokenizer, byte_tokenizer, character_tokenizer, chosen_vocab_size, train_bpe
from limpid.errors import DataError
from limpid.progress import Report

BPE_SAMPLE = 64 * 2**20  # bytes of text that BPE learns from at most
AT_ONCE = 2**20  # characters tokenized together


def write_tokens(
    folder: Path, pieces: Iterator[tuple[bool, Piece]], tokenizer: Tokenizer, census: Census, report: Report
) -> dict[str, Any]:
    """Write both splits and where the training documents start; memory stays near one batch of pieces.

    Returns what is needed to read them: number format, and tokens and bytes of text of (training, validation)
    """
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32)
    end = [] if tokenizer.end_of_text is None else [tokenizer.end_of_text]
    documents = array("q")
    tokens, byte_counts, done, starts = [0, 0], [0, 0], 0, True
    with (folder / "train.bin").open("wb") as train, (folder / "validation.bin").open("wb") as validation:
        for batch in _batched(pieces):
            encoded = _encoded([piece for _, piece in batch], tokenizer)
            for (held_out, piece), ids in zip(batch, encoded, strict=True):
                if starts and not held_out:
                    documents.extend((tokens[0], census.sources[piece.source], piece.line))
                starts = piece.last
                ids = ids + end if piece.last else ids
                (validation if held_out else train).write(np.array(ids, dtype).tobytes())
                tokens[held_out] += len(ids)
                byte_counts[held_out] += len(piece.text.encode())
                done += len(piece.text)
            report("tokenizing", done, census.characters)
    np.save(folder / "documents.npy", np.frombuffer(documents, np.int64).reshape(-1, 3))
    return {"dtype": dtype.name, "tokens": tokens, "bytes": byte_counts, "sources": list(census.sources)}


def _batched(pieces: Iterator[tuple[bool, Piece]]) -> Iterator[list[tuple[bool, Piece]]]:
    """Pieces in lists of about AT_ONCE characters."""
    batch, characters = [], 0
    for held_out, piece in pieces:
        batch.append((held_out, piece))
        characters += len(piece.text)
        if characters >= AT_ONCE:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _encoded(pieces: list[Piece], tokenizer: Tokenizer) -> list[list[int]]:
    try:
        return tokenizer.encode_batch([piece.text for piece in pieces])
    except DataError:
        for piece in pieces:
            try:
                tokenizer.encode(piece.text)
            except DataError as error:
                raise DataError(f"{piece.name}: {error}") from error
        raise


def make_tokenizer(data: DataConfig, corpus: Corpus, split: Split, report: Report) -> tuple[Tokenizer, list[str]]:
    """The tokenizer that the configuration asks for, and what a user should know about it."""
    match data.tokenizer:
        case "bytes":
            return byte_tokenizer(), []
        case "characters":
            return character_tokenizer(split.census.alphabet), []
        case "bpe":
            return _trained(data.tokenizer_vocab_size, corpus, split, report)
        case path:
            tokenizer = Tokenizer.load(path)
            return tokenizer, _doubts(tokenizer, path, next(corpus.pieces()))


def _trained(vocab_size: int | None, corpus: Corpus, split: Split, report: Report) -> tuple[Tokenizer, list[str]]:
    census = split.census
    asked = vocab_size or chosen_vocab_size(census.bytes)
    share = BPE_SAMPLE / census.bytes
    notes = []
    if share < 1:
        notes.append(f"BPE learned from {BPE_SAMPLE >> 20} MiB of the {census.bytes / 2**20:,.0f} MiB of text")

    def sample() -> Iterator[str]:
        read = 0
        for number, (held_out, piece) in enumerate(split(corpus.pieces())):
            read += len(piece.text)
            if not held_out and draw(split.seed, number, 1) < share:
                report("training the tokenizer", read, census.characters)
                yield piece.text

    tokenizer = train_bpe(sample(), asked)
    if tokenizer.vocab_size < asked:
        notes.append(f"BPE stopped at {tokenizer.vocab_size} of {asked} tokens: no pair is left that occurs twice")
    return tokenizer, notes


def _doubts(tokenizer: Tokenizer, path: str, piece: Piece) -> list[str]:
    """What a tokenizer from elsewhere does to a text."""
    notes = []
    text = piece.text[:1000]
    if tokenizer.decode(tokenizer.encode(text)) != text:
        notes.append(f"tokenizer {path} does not give every text back exactly: what it drops, the model never sees")
    if tokenizer.end_of_text is None:
        notes.append(f"tokenizer {path} has no end-of-text token: documents follow each other without a mark")
    return notes
