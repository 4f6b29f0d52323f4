"""Text to batches: documents, tokenizers, splits; and what `limpid data` does to a corpus as a whole."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from limpid.data.shards.make import tokenize as tokenize
    from limpid.data.survey.decontaminate import decontaminate as decontaminate
    from limpid.data.survey.duplicates import duplicates as duplicates
    from limpid.data.survey.statistics import statistics as statistics

HOMES = {
    "tokenize": "limpid.data.shards.make",
    "statistics": "limpid.data.survey.statistics",
    "duplicates": "limpid.data.survey.duplicates",
    "decontaminate": "limpid.data.survey.decontaminate",
}
"""What `limpid data` does, by the same names."""


def __getattr__(name: str) -> Any:
    """Functions are found on first use."""
    if name in HOMES:
        return getattr(import_module(HOMES[name]), name)
    raise AttributeError(f"limpid.data has no function {name!r}; there are {', '.join(HOMES)}")
