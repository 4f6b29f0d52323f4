"""`limpid data`: a corpus as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Literal

from limpid.config.flags import read
from limpid.config.options import word_of
from limpid.errors import ConfigError

BELOW = ("tokenize", "statistics", "duplicates", "decontaminate")


@dataclass(frozen=True)
class DataFlags:
    """Prepare a corpus, and know what is in it. `limpid help data WHAT` lists the options of each.

    limpid data tokenize texts/ -o tokens      for many runs: limpid train tokens
    limpid data statistics texts/              documents, lengths, repetitions
    limpid data duplicates texts/              what is there twice, or nearly
    limpid data decontaminate texts/ test.jsonl
    """

    what: Literal["tokenize", "statistics", "duplicates", "decontaminate"] = field(metadata={"positional": "WHAT"})
    """What to do."""


def verb(argv: Sequence[str]) -> int:
    if argv and argv[0] in BELOW:
        return int(import_module(f"limpid.verbs.data_{argv[0]}").verb(argv[1:]))
    if argv and not argv[0].startswith("-"):
        word_of(BELOW, argv[0], "the word after data")
    if not argv:
        raise ConfigError(f"data takes a word that says what to do: {', '.join(BELOW)}; see limpid data --help")
    read("data", DataFlags, argv)
    raise AssertionError("a word that is known was handed on")
