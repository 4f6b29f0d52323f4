"""One source becomes documents: plain text, or the records of JSON, tables, parquet, arrow, the hub."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from limpid.data.columns import arrow_rows, hub_rows, parquet_rows
from limpid.data.decoding import COMPRESSED, NoText, bytes_of, decoded
from limpid.data.records import Records, begin, document_name, json_document, json_lines, table_rows, text_of

Found = TypeVar("Found")
CHUNK_SIZE = 1 << 18  # characters of one document held at once
JSON_LINES = (".jsonl", ".ndjson")
TABLES = (".csv", ".tsv")
RECORD_FILES = ".jsonl, .json, .csv, .tsv or .parquet, compressed or not"
JSON_BEGINS = re.compile(r'\s*(\[\s*)?\{\s*"')
"""An object with a name, or an array of them: no prose begins like this."""
JSON_SHOWS = 64  # characters, by which that can be seen


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


class Record(NamedTuple):
    """What one line, element or row says, before it is a document."""

    source: str
    number: int  # of the source, from 1
    value: Any

    @property
    def line(self) -> int:
        return self.number

    @property
    def name(self) -> str:
        return document_name(self.source, self.number)


def chunks_of(path: Path, name: str, text_field: str) -> Iterator[Chunk]:
    """The documents of one file, in order; memory stays near one chunk.

    Raises  DataError naming the file and the place that cannot be read
    """
    return _or_none(_chunks_of(path, name, text_field), name)


def chunks_of_stream(blocks: Iterator[bytes], name: str, text_field: str) -> Iterator[Chunk]:
    """The same of bytes that no name says more of: records of JSON where they begin as such, else text."""
    begun, texts = begin(decoded(blocks, name), JSON_SHOWS)
    if JSON_BEGINS.match(begun):
        return _or_none(_each(json_document(texts, name), name, text_field), name)
    return _plain(texts, name)


def chunks_of_hub(name: str, text_field: str) -> Iterator[Chunk]:
    """The documents of a dataset of the Hugging Face hub."""
    return _each(hub_rows(name, text_field), name, text_field)


def records_of(path: Path, name: str) -> Iterator[Record]:
    """The records of one file, each with all of its fields.

    Raises  DataError for what cannot be read, and for a file of plain text, which has none
    """
    found = _records_of(path, name, None)
    if found is None:
        raise NoText(f"{name} is no file of records: give {RECORD_FILES}")
    return _or_none(itertools.starmap(functools.partial(Record, name), found), name, "record")


def records_of_stream(blocks: Iterator[bytes], name: str) -> Iterator[Record]:
    """The same of JSON that no name says more of."""
    found = json_document(decoded(blocks, name), name)
    return _or_none(itertools.starmap(functools.partial(Record, name), found), name, "record")


def records_of_hub(name: str) -> Iterator[Record]:
    """The records of a dataset of the Hugging Face hub."""
    return itertools.starmap(functools.partial(Record, name), hub_rows(name, None))


def _chunks_of(path: Path, name: str, text_field: str) -> Iterator[Chunk]:
    records = _records_of(path, name, text_field)
    return _plain(decoded(bytes_of(path, name), name), name) if records is None else _each(records, name, text_field)


def _records_of(path: Path, name: str, text_field: str | None) -> Records | None:
    """The records of a file, by its ending; None of plain text. Of columns the one that is asked for, or all."""
    ending = path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix
    if ending == ".parquet":
        return parquet_rows(path, name, text_field)
    if ending == ".arrow":
        return arrow_rows(path, name, text_field)
    if ending not in (*JSON_LINES, ".json", *TABLES):
        return None
    texts = decoded(bytes_of(path, name), name)
    if ending in TABLES:
        return table_rows(texts, name, text_field)
    return json_lines(texts, name) if ending in JSON_LINES else json_document(texts, name)


def _or_none(all_found: Iterator[Found], name: str, what: str = "text") -> Iterator[Found]:
    """The same; NoText when there is none."""
    empty = True
    for found in all_found:
        empty = False
        yield found
    if empty:
        raise NoText(f"{name} holds no {what}: leave it out, or give another file")


def _each(records: Records, name: str, text_field: str) -> Iterator[Chunk]:
    """A document per record that holds text."""
    for number, record in records:
        if text := text_of(record, text_field, name, number):
            yield Chunk(name, number, text, last=True)


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
