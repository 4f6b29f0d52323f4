"""Documents read, and refusals heard."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from limpid.config import DataConfig
from limpid.data.documents import Corpus
from limpid.errors import DataError

TEXTS = ["one\r\nline, naïve ☃\n", "two\u2028three 🦊", "  \n"]
JSON_LINES = "".join(json.dumps({"id": n, "text": text}) + "\n" for n, text in enumerate(TEXTS)).encode()
PACKED = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstandard.compress}


def read(*paths: Path | str, text_field: str = "text") -> list[str]:
    """The documents of some paths, their chunks joined."""
    documents, waiting = [], ""
    for chunk in Corpus(DataConfig(paths=tuple(map(str, paths)), text_field=text_field)).chunks():
        waiting += chunk.text
        if chunk.last:
            documents.append(waiting)
            waiting = ""
    assert not waiting
    return documents


def names(*paths: Path | str) -> list[str]:
    return [chunk.name for chunk in Corpus(DataConfig(paths=tuple(map(str, paths)))).chunks()]


def written(file: Path, content: bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def refusal(act: Callable[[], Any]) -> str:
    """The one line that bad input leads to."""
    with pytest.raises(DataError) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)
