"""What is evaluated: a model, and the documents that it is to predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from limpid.config import DataConfig
from limpid.config.options import require, shown
from limpid.data.documents import Corpus
from limpid.data.held_out import held_out_documents
from limpid.errors import ConfigError
from limpid.loaded import Head, LoadedModel, Opened, open_model
from limpid.source import Source
from limpid.training.mesh import best_device


@dataclass(frozen=True)
class Documents:
    """Documents, and where they come from."""

    documents: tuple[str, ...]
    origin: str
    notes: tuple[str, ...] = ()


def open_evaluated_model(what: str | Path | Source | Opened, head: Head = "vocabulary") -> LoadedModel:
    """A model to evaluate, on the graphics processor where there is one; one in memory stays where it lies.

    Raises  CheckpointError when there is no such model, or it predicts no token where that is asked of it
    """
    opened = open_model(what, head)
    return opened if isinstance(what, tuple) else replace(opened, transformer=opened.transformer.to(best_device()))


def read_documents(model: LoadedModel, paths: Sequence[str], text: str | None, text_field: str) -> Documents:
    """The documents of files, folders, globs or standard input, or a text; with neither, those that a run held out.

    Raises  DataError for text that cannot be read, ConfigError when a model has no text of its own
    """
    if text is not None:
        require(not paths, f"text and {shown(paths[0])} are both to be read: leave one out" if paths else "")
        return Documents((text,), "the given text")
    if not paths:
        if model.run is None:
            raise ConfigError(
                f"{model.name} is a model, which has no held-out text of its own: give files, folders, globs, or - "
                "for standard input"
            )
        return Documents(tuple(held_out_documents(model.run)), "held-out text")
    corpus = Corpus(DataConfig(paths=tuple(paths), text_field=text_field))
    documents, parts = [], []
    for chunk in corpus.chunks():
        parts.append(chunk.text)
        if chunk.last:
            documents.append("".join(parts))
            parts = []
    named = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    return Documents(tuple(documents), "standard input" if named == "-" else named, tuple(corpus.notes()))


def sample_documents(documents: Documents, most: int, sizes: Sequence[int], seed: int) -> list[int]:
    """Which documents to take, in order, so that they hold about `most` tokens: drawn without regard to their place."""
    order = np.random.default_rng(seed).permutation(len(documents.documents))
    held = np.cumsum(np.asarray(sizes)[order])
    count = int(np.searchsorted(held, most)) + 1
    return sorted(int(i) for i in order[:count])
