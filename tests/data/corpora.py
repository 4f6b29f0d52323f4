"""Small corpora, and how they are asked for."""

import os
from pathlib import Path

from limpid.config import DataConfig
from limpid.data.formats import Chunk

CONTEXT = 13


def corpus(folder: Path, documents: int = 53) -> Path:
    """A folder of files that each say their number, with time stamps that have settled."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(documents):
        file = folder / f"{number:03d}.txt"
        file.write_text(f"document {number} says {number * number} and é ☃\n" * (1 + number % 5))
        os.utime(file, ns=(10**18 + number, 10**18 + number))
    return folder


def data(*paths: Path | str, tokenizer: str = "bytes", **options: object) -> DataConfig:
    return DataConfig(paths=tuple(map(str, paths)), tokenizer=tokenizer, **options)


def document(text: str) -> Chunk:
    return Chunk("a", 0, text, last=True)
