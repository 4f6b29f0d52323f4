"""What a corpus holds, counted: documents, lengths, what is repeated, tokens that are frequent and that never occur."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64

from limpid.config import DataConfig
from limpid.config.arguments import checked
from limpid.config.sections import BytesAndMore
from limpid.data.formats import Chunk
from limpid.data.shards.folder import TokensFolder, folders_of
from limpid.data.split import CorpusStats, Split
from limpid.data.survey.ngrams import Reading, text_corpus
from limpid.data.token_files import batched, encoded, encoder, make_tokenizer
from limpid.data.tokenizer import Tokenizer
from limpid.errors import DataError
from limpid.reporter import SILENT, Reporter

Array = np.ndarray
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
FREQUENT = 20
"""Tokens that are named, of those that are most frequent and of those that never occur."""
AT_ONCE = 1 << 22
"""Tokens of a shard that are counted at once."""


@dataclass(frozen=True, repr=False)
class Statistics:
    """What was counted; None where it cannot be known of what was given."""

    documents: int
    repeated_documents: int  # whose whole text an earlier one has
    bytes: int  # of text, in UTF-8
    characters: int | None
    lines: int | None  # that are not blank
    repeated_lines: int | None  # that an earlier line is equal to
    tokens: int  # with those that end documents
    vocab_size: int
    characters_per_document: dict[str, float] | None  # quantiles
    bytes_per_document: dict[str, float]
    tokens_per_document: dict[str, float]
    frequent: tuple[tuple[str, int], ...]  # tokens and how often they occur
    never: int  # tokens that do not
    never_named: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def bytes_per_token(self) -> float:
        return self.bytes / self.tokens

    def document(self) -> dict[str, Any]:
        """Plain values."""
        plain = asdict(self) | {"bytes_per_token": self.bytes_per_token}
        return plain | {name: list(plain[name]) for name in ("frequent", "never_named", "notes")}

    def __repr__(self) -> str:
        return f"<{self.documents:,} documents, {self.tokens:,} tokens, {self.bytes_per_token:.2f} bytes each>"


@checked
def statistics(
    paths: str | Sequence[str],
    *,
    tokenizer: str = "bpe",
    tokenizer_vocab_size: BytesAndMore | None = None,
    text_field: str = "text",
    leave_out: str | None = None,
    reporter: Reporter = SILENT,
) -> Statistics:
    """Count what is in a corpus: of text everything, of folders of tokens what tokens tell.

    tokenizer  whose tokens are counted, as for training; folders of tokens have their own
    """
    given = (paths,) if isinstance(paths, str) else tuple(paths)
    if folders := folders_of(list(given)):
        return _of_tokens(folders, reporter)
    data = DataConfig(given, text_field, tokenizer, tokenizer_vocab_size, leave_out=leave_out)
    return _of_text(data, reporter)


class Text:
    """Counts of text as it passes: 8 bytes are kept for each line, 32 for each document."""

    def __init__(self) -> None:
        self.bytes = self.characters = self._of_document = self._of_bytes = 0
        self.lengths, self.sizes, self.documents = array("q"), array("q"), array("Q")
        self.lines = array("q")
        self._text = hashlib.blake2b(digest_size=8)

    def add(self, chunk: Chunk) -> None:
        """Count a part of a document. Parts end with a line, but for lines longer than a part."""
        content = chunk.text.encode()
        self._text.update(content)
        self._of_document, self._of_bytes = self._of_document + len(chunk.text), self._of_bytes + len(content)
        self.lines.extend(hash(line) for line in chunk.text.split("\n") if line and not line.isspace())
        if chunk.last:
            self.lengths.append(self._of_document)
            self.sizes.append(self._of_bytes)
            self.documents.append(int.from_bytes(self._text.digest(), "big"))
            self.characters, self.bytes = self.characters + self._of_document, self.bytes + self._of_bytes
            self._of_document, self._of_bytes, self._text = 0, 0, hashlib.blake2b(digest_size=8)


def _of_text(data: DataConfig, reporter: Reporter) -> Statistics:
    corpus = text_corpus(data.paths, data.text_field, data.leave_out)
    stats = CorpusStats(0, corpus.path_of, alphabet=set() if data.tokenizer == "characters" else None)
    if data.tokenizer in ("bpe", "characters"):
        for _ in stats.counted(iter(Reading(corpus, reporter, "reading the text"))):
            pass
        corpus.require_text(stats.documents_of, each=False)
    split = Split(0, data.validation_fraction, stats)
    tokenizer, notes = make_tokenizer(data, corpus, split, reporter.progress)
    encode, text = encoder(tokenizer, tokenizer.dtype), Text()
    counts, tokens, of_document = np.zeros(tokenizer.vocab_size, np.int64), array("q"), 0
    for batch in batched(iter(Reading(corpus, reporter, "counting")), lambda chunk: chunk):
        for chunk, ids in zip(batch, encoded(batch, tokenizer, encode), strict=True):
            text.add(chunk)
            of_document += len(ids)
            counts += np.bincount(ids, minlength=len(counts))
            if chunk.last:
                tokens.append(of_document + (tokenizer.end_of_text is not None))
                of_document = 0
    reporter.close()
    if tokenizer.end_of_text is not None:
        counts[tokenizer.end_of_text] += len(tokens)
    if not tokens:
        raise DataError(f"no text in {', '.join(data.paths)}: give files, folders or globs that hold some")
    return Statistics(
        documents=len(tokens), repeated_documents=_repeated(text.documents), bytes=text.bytes,
        characters=text.characters, lines=len(text.lines), repeated_lines=_repeated(text.lines), tokens=sum(tokens),
        vocab_size=tokenizer.vocab_size, characters_per_document=_quantiles(text.lengths),
        bytes_per_document=_quantiles(text.sizes), tokens_per_document=_quantiles(tokens),
        **_named(counts, tokenizer), notes=(*notes, *corpus.notes()),
    )  # fmt: skip


def _of_tokens(folders: Sequence[TokensFolder], reporter: Reporter) -> Statistics:
    tokenizer = folders[0].tokenizer
    for other in folders[1:]:
        if other.contents.tokenizer != folders[0].contents.tokenizer:
            raise DataError(f"{other.path} has another tokenizer than {folders[0].path}: ask about one at a time")
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    parts = [part for folder in folders for part in folder.whole_shards()]
    total, done = sum(sidecar.tokens for _, sidecar in parts), 0
    for shard, sidecar in parts:
        ids = shard.tokens(sidecar)
        for at in range(0, len(ids), AT_ONCE):
            counts += np.bincount(ids[at : at + AT_ONCE], minlength=len(counts))
            done += min(AT_ONCE, len(ids) - at)
            reporter.progress("counting", done, total)
    reporter.close()
    tables = [shard.documents() for shard, _ in parts]
    texts, sizes, tokens = (np.concatenate([table[name] for table in tables]) for name in ("text", "bytes", "tokens"))
    return Statistics(
        documents=len(texts), repeated_documents=_repeated(texts), bytes=int(sizes.sum()),
        characters=None, lines=None, repeated_lines=None, tokens=int(tokens.sum()), vocab_size=tokenizer.vocab_size,
        characters_per_document=None, bytes_per_document=_quantiles(sizes), tokens_per_document=_quantiles(tokens),
        **_named(counts, tokenizer), notes=("characters and lines are counted of text alone",),
    )  # fmt: skip


def _repeated(hashes: Any) -> int:
    """How many are equal to an earlier one."""
    return len(hashes) - len(np.unique(np.asarray(hashes)))


def _quantiles(lengths: Any) -> dict[str, float]:
    """Lengths at some shares of the documents; each is the length of a document."""
    found = np.quantile(np.asarray(lengths, np.int64), QUANTILES, method="inverted_cdf")
    return {f"{share:g}": int(length) for share, length in zip(QUANTILES, found, strict=True)}


def _named(counts: Int64[Array, " vocabulary"], tokenizer: Tokenizer) -> dict[str, Any]:
    """Tokens that are most frequent, and those that never occur."""
    order = np.argsort(-counts, kind="stable")[:FREQUENT]
    never = np.flatnonzero(counts == 0)
    return {
        "frequent": tuple((tokenizer.token_text(int(id)), int(counts[id])) for id in order if counts[id]),
        "never": len(never),
        "never_named": tuple(tokenizer.token_text(int(id)) for id in never[:FREQUENT]),
    }
