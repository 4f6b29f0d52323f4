"""Prompts from a file or standard input, one after the other: lines of text, or JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from limpid.config.options import shown
from limpid.data.conversation import asked_of_assistant
from limpid.errors import DataError
from limpid.files import open_to_read, parse_json, standard_input, user_path
from limpid.generation.completion import Prompt

RECORDS = (".jsonl", ".ndjson")
FIELDS = ("messages", "conversations", "prompt", "text")
"""Where a record's prompt is: the first of these that it has."""


def read_prompts(file: str) -> Iterator[Prompt]:
    """Each line's prompt as it comes; blank lines are passed over. `-` is standard input.

    A file ending in .jsonl holds records; so does any other whose first line is a JSON object.
    Raises  DataError naming the line that is no prompt, or a file without any
    """
    where = "standard input" if file == "-" else file
    records = Path(file).suffix.lower() in RECORDS
    first = True
    for number, line in enumerate(_lines(file), 1):
        if not line.strip():
            continue
        records = records or (first and isinstance(_object(line), dict))
        first = False
        yield _prompt(line, f"{where}, line {number}") if records else line
    if first:
        raise DataError(f"{where} holds no prompt: give one a line")


def count_lines(file: str) -> int | None:
    """How many lines a file has that are not blank; None for what is read only once."""
    if file == "-" or not user_path(file).is_file():
        return None
    return sum(1 for line in _lines(file) if line.strip())


def _lines(file: str) -> Iterator[str]:
    """Lines without what ends them; bytes that are no UTF-8 are refused where they stand."""
    try:
        stream = standard_input().buffer if file == "-" else open_to_read(user_path(file), file)
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}; give a file, or - for standard input") from error
    for number, line in enumerate(stream, 1):
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(f"{file}, line {number} is not UTF-8: save it as UTF-8") from error


def _prompt(line: str, where: str) -> Prompt:
    record = _object(line)
    field = next((name for name in FIELDS if isinstance(record, dict) and name in record), None)
    if field is None:
        raise DataError(f"{where} is {shown(line)}: expected a JSON object with one of {', '.join(FIELDS)}")
    found = record[field]
    if isinstance(found, list) and found:
        return asked_of_assistant(found, where)
    if not isinstance(found, str):
        raise DataError(f"{where}: {field} is {shown(found)}: expected text, or a list of messages")
    return found


def _object(line: str) -> Any:
    """What a line of JSON says; None where it is none."""
    try:
        return parse_json(line)
    except ValueError:
        return None
