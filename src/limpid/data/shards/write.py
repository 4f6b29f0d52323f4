"""A shard from its inputs, in one pass whose memory does not grow with them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from limpid.data.documents import Corpus, Source
from limpid.data.formats import Chunk
from limpid.data.shards.shard import DOCUMENT, DOCUMENTS, TOKENS, VERSION, Input, Shard, Sidecar
from limpid.data.shards.workers import Advance
from limpid.data.split import CHANGED
from limpid.data.token_files import Encoder, batched, encoded, encoder
from limpid.data.tokenizer import Tokenizer
from limpid.errors import DataError
from limpid.files import explained, file_written_atomically
from limpid.manifest import sha256

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class Job:
    """A shard to make."""

    shard: Shard
    corpus: Corpus  # its inputs alone
    tokenizer: str  # SHA-256 of the folder's
    settings: str


@dataclass
class Count:
    """What was found in one input."""

    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    texts: hashlib._Hash = field(default_factory=hashlib.sha256)


def make_shard(job: Job, advance: Advance) -> Sidecar:
    """Write the files of a shard; `advance` hears of bytes of text.

    Raises  DataError for an input that cannot be read, or changes meanwhile
    """
    tokenizer, encode = _opened(job.shard.folder / TOKENIZER, job.tokenizer)
    sources = job.corpus.sources
    before = [_state(source) for source in sources]
    hashes = [None if source.path is None else sha256(source.path) for source in sources]
    with explained(f"cannot write {job.shard.file(TOKENS)}"):
        job.shard.file(".json").unlink(missing_ok=True)  # what is written now is not what it describes
        with _written(job.shard.file(TOKENS)) as tokens, _written(job.shard.file(DOCUMENTS)) as documents:
            chunks = job.corpus.chunks()
            counts = _write(chunks, [source.name for source in sources], tokens, documents, tokenizer, encode, advance)
            advance(0)  # nothing takes its place when the process that asked for it is gone
    if [_state(source) for source in sources] != before:
        raise DataError(f"{job.shard.name}: {CHANGED}")
    refused = {name: (type(why).__name__, str(why)) for name, why in job.corpus.judged.items() if why is not None}
    inputs = tuple(
        Input(
            source.name, str(source.place), state[0] or count.bytes, state[1], sha or count.texts.hexdigest(),
            count.documents, count.tokens, refused.get(source.name),
        )
        for source, state, sha, count in zip(sources, before, hashes, counts, strict=True)
    )  # fmt: skip
    sidecar = Sidecar(
        version=VERSION, tokenizer=job.tokenizer, settings=job.settings, dtype=tokenizer.dtype.name,
        documents=sum(count.documents for count in counts), tokens=sum(count.tokens for count in counts),
        text_bytes=sum(count.bytes for count in counts), left_out=len(job.corpus.found_left_out), inputs=inputs,
        files={TOKENS: tokens.sha256, DOCUMENTS: documents.sha256},
    )  # fmt: skip
    job.shard.write(sidecar)
    return sidecar


def _write(
    chunks: Iterator[Chunk], names: list[str], tokens: Hashed, documents: Hashed, tokenizer: Tokenizer, encode: Encoder,
    advance: Advance,
) -> list[Count]:  # fmt: skip
    """Ids and a line of the table per document, as they come."""
    counts = [Count() for _ in names]
    numbers = {name: number for number, name in enumerate(names)}
    end = np.array([] if tokenizer.end_of_text is None else [tokenizer.end_of_text], tokenizer.dtype)
    text = hashlib.blake2b(digest_size=8)
    of_document = of_bytes = 0
    for batch in batched(chunks, lambda chunk: chunk):
        rows, done = [], 0
        for chunk, ids in zip(batch, encoded(batch, tokenizer, encode), strict=True):
            number = numbers[chunk.source]
            count, content = counts[number], chunk.text.encode()
            ids = np.concatenate([ids, end]) if chunk.last else ids
            tokens.write(ids.tobytes())
            text.update(content)
            count.texts.update(content)
            of_document, of_bytes, done = of_document + len(ids), of_bytes + len(content), done + len(content)
            if chunk.last:
                hashed = int.from_bytes(text.digest(), "big")
                rows.append((number, chunk.line, of_document, of_bytes, hashed))
                count.documents, count.tokens = count.documents + 1, count.tokens + of_document
                count.bytes += of_bytes
                of_document, of_bytes, text = 0, 0, hashlib.blake2b(digest_size=8)
        documents.write(np.array(rows, DOCUMENT).tobytes())
        advance(done)
    return counts


class Hashed:
    """A stream that is hashed as it is written."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._hash = stream, hashlib.sha256()

    def write(self, content: bytes) -> None:
        self._stream.write(content)
        self._hash.update(content)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


@contextlib.contextmanager
def _written(file: Path) -> Iterator[Hashed]:
    """A file to write under a name that no other process has; it takes its place when the block ends without error."""
    own = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    with file_written_atomically(own) as temporary, temporary.open("wb") as stream:
        yield Hashed(stream)
    own.replace(file)


def _state(source: Source) -> tuple[int, int]:
    """Size and time of change of a file; nothing of a dataset."""
    if source.path is None:
        return 0, 0
    with explained(f"cannot read {source.name}"):
        state = source.path.stat()
    return state.st_size, state.st_mtime_ns


@functools.lru_cache(1)
def _opened(file: Path, sha: str) -> tuple[Tokenizer, Encoder]:
    """The folder's tokenizer, kept from shard to shard with the words that it knows."""
    tokenizer = Tokenizer.load(file)
    return tokenizer, encoder(tokenizer, tokenizer.dtype)
