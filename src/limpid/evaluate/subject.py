"""What is judged, and on what: a model with its tokenizer, and documents to predict."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from limpid.config import DataConfig
from limpid.data.documents import Corpus
from limpid.data.tokenizer import Tokenizer, load_tokenizer
from limpid.data.tokens import open_tokens
from limpid.errors import ConfigError
from limpid.model import Transformer
from limpid.model.weights import load_model
from limpid.run import Run
from limpid.source import ModelFolder, find_model
from limpid.training.checkpoint import read_record
from limpid.training.mesh import best_device


@dataclass(frozen=True)
class Subject:
    """A model to judge."""

    name: str
    model: Transformer
    tokenizer: Tokenizer
    start: int | None  # id of the token that every document starts with
    run: Run | None = None
    step: int | None = None

    @property
    def title(self) -> str:
        return self.name if self.step is None else f"{self.name} after step {self.step:,}"

    @property
    def device(self) -> str:
        """Where its weights lie: cpu or cuda."""
        return self.model.embed.tokens.weight.device.type

    def moved(self) -> Subject:
        """The same on the graphics processor, where there is one."""
        return replace(self, model=self.model.to(best_device()))


@dataclass(frozen=True)
class Texts:
    """Documents, and where they come from."""

    documents: tuple[str, ...]
    origin: str
    notes: tuple[str, ...] = ()


def open_subject(what: str) -> Subject:
    """A checkpoint of a run, the newest unless it is named, or a Hugging Face folder.

    Raises  CheckpointError when there is no such model
    """
    source = find_model(what)
    tokenizer, model = load_tokenizer(source), load_model(source)
    if isinstance(source, ModelFolder):
        return Subject(source.name, model, tokenizer, _start_token(source.path, tokenizer))
    return Subject(source.name, model, tokenizer, tokenizer.end_of_text, source.run, source.step)


def texts(subject: Subject, paths: Sequence[str], text_field: str) -> Texts:
    """The documents of files, folders, globs or standard input; with no path, those that a run held out.

    Raises  DataError for text that cannot be read, ConfigError when a model has no text of its own
    """
    if not paths:
        if subject.run is None:
            raise ConfigError(
                f"{subject.name} is a model, which has no held-out text of its own: give files, folders, globs, or - "
                "for standard input"
            )
        return _held_out(subject.run, subject.tokenizer)
    corpus = Corpus(DataConfig(paths=tuple(paths), text_field=text_field))
    documents, parts = [], []
    for chunk in corpus.chunks():
        parts.append(chunk.text)
        if chunk.last:
            documents.append("".join(parts))
            parts = []
    named = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    return Texts(tuple(documents), "standard input" if named == "-" else named, tuple(corpus.notes()))


def sample(documents: Texts, most: int, sizes: Sequence[int], seed: int) -> list[int]:
    """Which documents to take, in order, so that they hold about `most` tokens: drawn without regard to their place."""
    order = np.random.default_rng(seed).permutation(len(documents.documents))
    held = np.cumsum(np.asarray(sizes)[order])
    count = int(np.searchsorted(held, most)) + 1
    return sorted(int(i) for i in order[:count])


def fingerprint(run: Run) -> str:
    """What a run was trained on; equal for equal text, split and tokenizer."""
    return str(read_record(run.checkpoint(run.latest_checkpoint()))["data"])


def _held_out(run: Run, tokenizer: Tokenizer) -> Texts:
    config = run.read_config()
    tokens = open_tokens(fingerprint(run), config.data, config.model.context_length, config.run.seed).validation
    ends = np.flatnonzero(tokens == tokenizer.end_of_text) if tokenizer.end_of_text is not None else np.empty(0, int)
    borders = np.concatenate([[0], ends + 1, [len(tokens)]])
    parts = (tokens[begin:end] for begin, end in itertools.pairwise(borders))
    documents = (tokenizer.decode(part[part != tokenizer.end_of_text].tolist()) for part in parts)
    return Texts(tuple(text for text in documents if text), "held-out text")


def _start_token(folder: Path, tokenizer: Tokenizer) -> int | None:
    """The token that a Hugging Face model starts a text with: its beginning of sequence, else its end of text."""
    settings, config = (_json(folder / name) for name in ("tokenizer_config.json", "config.json"))
    word = settings.get("bos_token")
    content = word.get("content") if isinstance(word, dict) else word
    if isinstance(content, str) and (id := tokenizer.special_id(content)) is not None:
        return id
    id = config.get("bos_token_id")
    return id if isinstance(id, int) and 0 <= id < tokenizer.vocab_size else tokenizer.end_of_text


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
