"""Records of a file, one after the other: lines of JSON, an array of JSON, the rows of a table; and their text."""

from __future__ import annotations

import csv
import itertools
import json
import re
import sys
from collections.abc import Collection, Iterator
from typing import Any

from limpid.data.conversation import conversation_text
from limpid.errors import DataError

Records = Iterator[tuple[int, Any]]
"""Each with its number, from 1: the line of a file of lines, else its place."""
BETWEEN = re.compile(r"[\s,]*")
DELIMITERS = ",;\t"
CONVERSATIONS = ("messages", "conversations")
"""Fields of a conversation, which stand in for a field of text that is not there."""


def json_lines(texts: Iterator[str], name: str) -> Records:
    """A record per line that is not blank."""
    for number, line in enumerate(lines(texts), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{name}:{number} is not JSON ({error}): mend or remove the line") from error


def json_document(texts: Iterator[str], name: str) -> Records:
    """A record per element of an array, or per line where the file begins with an object; one element is held at once.

    Raises  DataError for JSON of another kind, with the element that is not JSON
    """
    begun, texts = begin(texts)
    if begun.lstrip()[:1] == "[":
        yield from _elements(texts, name)
        return
    found = json_lines(texts, name)
    try:
        first = next(found, None)
    except DataError as error:
        raise DataError(
            f"{name} holds neither an array nor an object per line: give such JSON, or a file that ends in .txt to "
            "train on it as it stands"
        ) from error
    if first is not None:
        yield first
        yield from found


def begin(texts: Iterator[str], characters: int = 1) -> tuple[str, Iterator[str]]:
    """How a text begins, to so many characters that are not blank at its start; and all of it."""
    begun = ""
    for text in texts:
        begun += text
        if len(begun.lstrip()) >= characters:
            break
    return begun, itertools.chain([begun], texts)


def _elements(texts: Iterator[str], name: str) -> Records:
    decoder = json.JSONDecoder()
    waiting, enough, number, inside = "", 0, 0, False
    for text in itertools.chain(texts, [None]):
        waiting += text or ""
        if text is not None and len(waiting) < enough:
            continue
        place = 0
        while True:
            place = BETWEEN.match(waiting, place).end()  # type: ignore[union-attr]
            if not inside and waiting[place : place + 1] == "[":
                place, inside = place + 1, True
                continue
            if waiting[place : place + 1] == "]":
                return
            try:
                value, end = decoder.raw_decode(waiting, place)
            except (ValueError, RecursionError) as error:
                if text is None:
                    raise DataError(f"{name}:{number + 1} is not JSON ({error}): mend or remove it") from error
                break  # the element goes on in the next text
            number, place = number + 1, end
            yield number, value
        waiting = waiting[place:]
        enough = 2 * len(waiting)  # a long element is begun anew a few times, not with each text


def table_rows(texts: Iterator[str], name: str, text_field: str | None) -> Records:
    """A record per row of a table, whose first row names the columns; the delimiter is the one that finds the field."""
    csv.field_size_limit(sys.maxsize)
    read = (line + "\n" for line in lines(texts))
    first = next(read, "")
    try:
        found = [(next(csv.reader([first], delimiter=delimiter), []), delimiter) for delimiter in DELIMITERS]
        columns, delimiter = max(found, key=lambda pair: (text_field in pair[0], len(pair[0])))
        for number, row in enumerate(csv.reader(read, delimiter=delimiter, strict=True), 1):
            if row:
                yield number, dict(zip(columns, row, strict=False))
    except csv.Error as error:
        raise DataError(
            f"{name} is no table ({error}): mend it, or rename it to .txt to train on it as it stands"
        ) from error


def lines(texts: Iterator[str]) -> Iterator[str]:
    """Lines that end with a newline and nothing else: strings of JSON may hold every other separator."""
    waiting = ""
    for text in texts:
        *whole, rest = text.split("\n")
        if whole:
            yield waiting + whole[0]
            yield from whole[1:]
            waiting = rest
        else:
            waiting += rest
    yield waiting


def document_name(source: str, line: int) -> str:
    """How a document is called: its file, and its line when the file holds several."""
    return f"{source}:{line}" if line else source


def text_of(record: Any, text_field: str, source: str, line: int) -> str:
    """The text of a record: itself, or what its field holds, which may be a conversation.

    Raises  DataError for a record without such a field, or with something else in it
    """
    if isinstance(record, str):
        return record
    if not isinstance(record, dict):
        where = document_name(source, line)
        raise DataError(f"{where} holds {record!r:.40}, expected an object with a field {text_field!r}, or text")
    text = record.get(text_field)
    if isinstance(text, str):
        return text
    where = document_name(source, line)
    field = field_of(record, text_field, where)
    text = record[field]
    if isinstance(text, str):
        return text
    if isinstance(text, list):
        return conversation_text(text, where)
    raise DataError(
        f"{where}: field {field!r} is {text!r:.40}, expected text or messages: remove the line, or choose another "
        "--text-field"
    )


def field_of(fields: Collection[str], text_field: str, where: str) -> str:
    """The field that holds the text: `text_field`, or that of a conversation; a DataError names those there are."""
    for field in (text_field, *CONVERSATIONS):
        if field in fields:
            return field
    there = ", ".join([*fields][:8]) + (", …" if len(fields) > 8 else "") if fields else "none"
    raise DataError(f"{where} has no field {text_field!r}: its fields are {there}; choose one with --text-field")
