"""One source's bytes become documents: plain text, records of JSON or tables, compressed or not; parquet, the hub."""

from __future__ import annotations

import codecs
import functools
import gzip
import itertools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from limpid.data.records import json_document, json_lines, table_rows
from limpid.errors import DataError

READ_SIZE = 1 << 20  # bytes read at once
CHUNK_SIZE = 1 << 18  # characters of one document held at once
COMPRESSED = (".gz", ".zst")
JSON_LINES = (".jsonl", ".ndjson")
TABLES = (".csv", ".tsv")
HUB = "hf:"


@dataclass(frozen=True)
class Chunk:
    """A document, or a part of one that is too long to hold."""

    source: str
    line: int  # of the source, from 1; 0 when the source is one document
    text: str
    last: bool  # the document ends here

    @property
    def name(self) -> str:
        return document_name(self.source, self.line)


def document_name(source: str, line: int) -> str:
    """How a document is called: its file, and its line when the file holds several."""
    return f"{source}:{line}" if line else source


def chunks_of(path: Path, name: str, text_field: str) -> Iterator[Chunk]:
    """The documents of one file, in order; memory stays near one chunk.

    Raises  DataError naming the file and the place that cannot be read
    """
    empty = True
    for chunk in _chunks_of(path, name, text_field):
        empty = False
        yield chunk
    if empty:
        raise NoText(f"{name} holds no text: leave it out, or give another file")


def _chunks_of(path: Path, name: str, text_field: str) -> Iterator[Chunk]:
    ending = path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix
    if ending == ".parquet":
        return _parquet(path, name, text_field)
    texts = decoded(_bytes_of(path, name), name)
    if ending in JSON_LINES:
        return records(json_lines(texts, name), name, text_field)
    if ending == ".json":
        return records(json_document(texts, name), name, text_field)
    if ending in TABLES:
        return records(table_rows(texts, name, text_field), name, text_field)
    return _plain(texts, name)


class NotText(DataError):
    """A file's bytes are no text."""


class NoText(DataError):
    """A file holds nothing but white space."""


def _bytes_of(path: Path, name: str) -> Iterator[bytes]:
    """The bytes of a file, decompressed."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as stream:
                yield from iter(lambda: stream.read(READ_SIZE), b"")
        elif path.suffix == ".zst":
            yield from _zstandard(path)
        else:
            with path.open("rb") as stream:
                yield from iter(lambda: stream.read(READ_SIZE), b"")
    except EOFError as error:
        raise DataError(
            f"{name} is cut short: its {path.suffix} data ends too early; copy or download it again"
        ) from error
    except (gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
        raise DataError(
            f"{name} does not decompress ({' '.join(str(error).split())}): "
            f"copy or download it again, or drop {path.suffix} from its name if it is not compressed"
        ) from error
    except OSError as error:
        raise DataError(f"cannot read {name}: {error.strerror}; check its permissions or leave it out") from error


def _zstandard(path: Path) -> Iterator[bytes]:
    """Frame after frame. The library's own stream takes a file that is cut short for a whole one."""
    found, whole = bytearray(), True
    with path.open("rb") as stream:
        while block := stream.read(64):  # little at once: a few bytes may stand for a block of 128 KiB
            while block:
                if whole:
                    frame = zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj()
                found += frame.decompress(block)
                whole = frame.eof
                block = frame.unused_data if whole else b""
            if len(found) >= READ_SIZE:
                yield bytes(found)
                found.clear()
    if not whole:
        raise EOFError
    yield bytes(found)


def decoded(blocks: Iterator[bytes], name: str) -> Iterator[str]:
    """Text of blocks of UTF-8, without a byte-order mark."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    position = 0  # bytes decoded
    for block in itertools.chain(blocks, [b""]):
        waiting = decoder.getstate()[0]
        if (nul := block.find(b"\0")) >= 0:
            raise NotText(
                f"{name} is not text: byte {position + len(waiting) + nul} is NUL; "
                "leave it out, or save it as UTF-8 if an editor wrote it as UTF-16"
            )
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            offset = position + error.start
            raise NotText(
                f"{name} is not UTF-8: byte {offset} is 0x{error.object[error.start]:02x} ({error.reason}); "
                "leave it out, or convert it, for example with iconv -t UTF-8"
            ) from error
        yield text.removeprefix("\ufeff") if position == 0 else text
        position += len(waiting) + len(block) - len(decoder.getstate()[0])


def _plain(texts: Iterator[str], name: str) -> Iterator[Chunk]:
    """One document; a long one in chunks that end with a line, wherever its blocks do."""
    waiting, blank = "", True
    for text in texts:
        waiting += text
        blank = blank and not text.strip()
        while len(waiting) > CHUNK_SIZE:
            cut = waiting.rfind("\n", 0, CHUNK_SIZE) + 1 or CHUNK_SIZE
            yield Chunk(name, 0, waiting[:cut], last=False)
            waiting = waiting[cut:]
    if blank:
        raise NoText(f"{name} holds no text but white space: leave it out, or give another file")
    if waiting:
        yield Chunk(name, 0, waiting, last=True)


def records(found: Iterator[tuple[int, Any]], name: str, text_field: str) -> Iterator[Chunk]:
    """A document per record, which is an object with a field of text."""
    for number, record in found:
        where = document_name(name, number)
        if not isinstance(record, dict):
            raise DataError(f"{where} holds {record!r:.40}, expected an object with a field {text_field!r}")
        text = _field(record, text_field, where)
        if text:
            yield Chunk(name, number, text, last=True)


def _parquet(path: Path, name: str, text_field: str) -> Iterator[Chunk]:
    """A document per row."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(f"{name}: parquet needs an extra: pip install 'limpid[hub]'") from error
    try:
        with parquet.ParquetFile(path) as file:
            require_field(text_field, file.schema_arrow.names, name)
            batches = file.iter_batches(batch_size=1024, columns=[text_field])
            yield from _rows((batch.column(0).to_pylist() for batch in batches), name, text_field)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"cannot read {name} as parquet ({_one_line(error)}): copy or download it again") from error


def chunks_of_hub(name: str, text_field: str) -> Iterator[Chunk]:
    """A document per row of the training split of a dataset of the Hugging Face hub: hf:NAME or hf:NAME:CONFIG."""
    dataset = _hub_dataset(name)
    require_field(text_field, dataset.column_names, name)
    batches = dataset.select_columns([text_field]).iter(batch_size=1024)
    yield from _rows((batch[text_field] for batch in batches), name, text_field)


@functools.cache
def _hub_dataset(name: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"{name}: hub datasets need an extra: pip install 'limpid[hub]'") from error
    repository, _, configuration = name.removeprefix(HUB).partition(":")
    if not repository:
        raise DataError(f"{name} names no dataset: expected hf:NAME or hf:NAME:CONFIG")
    try:
        return datasets.load_dataset(repository, configuration or None, split="train")
    except Exception as error:  # whatever the network, the hub or the dataset's own files come up with
        raise DataError(
            f"cannot load {name} ({_one_line(error):.200}): expected hf:NAME or hf:NAME:CONFIG of a dataset "
            "with a training split, and a network to fetch it"
        ) from error


def _rows(columns: Iterator[list[Any]], name: str, text_field: str) -> Iterator[Chunk]:
    for number, value in enumerate(itertools.chain.from_iterable(columns), 1):
        if text := _field({text_field: value}, text_field, document_name(name, number)):
            yield Chunk(name, number, text, last=True)


def _field(record: dict[str, Any], text_field: str, where: str) -> str:
    require_field(text_field, list(record), where)
    text = record[text_field]
    if not isinstance(text, str):
        raise DataError(
            f"{where}: field {text_field!r} is {text!r:.40}, expected text: remove the line, or choose another "
            "--text-field"
        )
    return text


def require_field(text_field: str, fields: list[str], where: str) -> None:
    """Raise DataError, naming the fields there are, when `text_field` is none of them."""
    if text_field not in fields:
        there = ", ".join(fields[:8]) + (", …" if len(fields) > 8 else "") if fields else "none"
        raise DataError(f"{where} has no field {text_field!r}: its fields are {there}; choose one with --text-field")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
