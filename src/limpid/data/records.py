"""Records of a file, one after the other: lines of JSON, an array of JSON, the rows of a table."""

from __future__ import annotations

import csv
import itertools
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

from limpid.errors import DataError

Records = Iterator[tuple[int, Any]]
"""Each with its number, from 1: the line of a file of lines, else its place."""
BETWEEN = re.compile(r"[\s,]*")
DELIMITERS = ",;\t"


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
    begun = ""
    for text in texts:
        begun += text
        if begun.strip():
            break
    texts = itertools.chain([begun], texts)
    if begun.lstrip()[:1] == "[":
        yield from _elements(texts, name)
        return
    try:
        yield from json_lines(texts, name)
    except DataError as error:
        raise DataError(
            f"{name} holds neither an array nor an object per line: give such a file, or rename it to .txt to train on "
            "it as it stands"
        ) from error


def _elements(texts: Iterator[str], name: str) -> Records:
    decoder = json.JSONDecoder()
    waiting, number, inside = "", 0, False
    for text in itertools.chain(texts, [None]):
        waiting += text or ""
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


def table_rows(texts: Iterator[str], name: str, text_field: str) -> Records:
    """A record per row of a table, whose first row names the columns; the delimiter is the one that finds the field."""
    csv.field_size_limit(sys.maxsize)
    read = (line + "\n" for line in lines(texts))
    first = next(read, "")
    found = [(next(csv.reader([first], delimiter=delimiter), []), delimiter) for delimiter in DELIMITERS]
    columns, delimiter = max(found, key=lambda pair: (text_field in pair[0], len(pair[0])))
    try:
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
