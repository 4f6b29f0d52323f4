"""The list of documents that a corpus is read without: a line of JSON each, with whatever else is known of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from limpid.errors import DataError
from limpid.files import parse_json, read_whole, write_atomically


def write_list(file: Path, documents: Iterable[Mapping[str, Any]]) -> None:
    """Write down what to leave out: under `document` the absolute path and, of a file that holds several, the line."""
    lines = (json.dumps(document, ensure_ascii=False) + "\n" for document in documents)
    write_atomically(file, "".join(lines).encode(errors="surrogatepass"))


def read_list(file: Path) -> frozenset[str]:
    """What to leave out; raises DataError naming the line that says none."""
    found = set()
    try:
        lines = read_whole(file).decode(errors="surrogatepass").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {file}, the list of what to leave out ({error}): give another") from error
    for number, line in enumerate(lines, 1):
        try:
            document = parse_json(line)["document"]
        except (ValueError, KeyError, TypeError):
            document = None
        if not isinstance(document, str):
            raise DataError(
                f'{file}:{number} names no document to leave out: expected {{"document": "PATH:LINE"}}, as limpid data '
                "duplicates --output writes it"
            )
        found.add(document)
    return frozenset(found)
