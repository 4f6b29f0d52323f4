"""What is evaluated: a model with its tokenizer, and the documents that it is to predict."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from limpid.config import DataConfig
from limpid.data.documents import Corpus
from limpid.data.tokenizer import Tokenizer, load_tokenizer, start_token
from limpid.data.tokens import open_tokens
from limpid.errors import ConfigError
from limpid.model import Transformer
from limpid.model.weights import load_model
from limpid.run import Run
from limpid.source import ModelFolder, find_model
from limpid.training.mesh import best_device


@dataclass(frozen=True)
class EvaluatedModel:
    """A model to evaluate."""

    name: str
    transformer: Transformer
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
        return self.transformer.embed.tokens.weight.device.type

    def on_device(self) -> EvaluatedModel:
        """This model on the graphics processor, where there is one."""
        return replace(self, transformer=self.transformer.to(best_device()))


@dataclass(frozen=True)
class Documents:
    """Documents, and where they come from."""

    documents: tuple[str, ...]
    origin: str
    notes: tuple[str, ...] = ()


def open_evaluated_model(what: str) -> EvaluatedModel:
    """A checkpoint of a run, the newest unless it is named, or a Hugging Face folder.

    Raises  CheckpointError when there is no such model
    """
    source = find_model(what)
    tokenizer, model = load_tokenizer(source), load_model(source)
    start = start_token(source, tokenizer)
    if isinstance(source, ModelFolder):
        return EvaluatedModel(source.name, model, tokenizer, start)
    return EvaluatedModel(source.name, model, tokenizer, start, source.run, source.step)


def read_documents(model: EvaluatedModel, paths: Sequence[str], text_field: str) -> Documents:
    """The documents of files, folders, globs or standard input; with no path, those that a run held out.

    Raises  DataError for text that cannot be read, ConfigError when a model has no text of its own
    """
    if not paths:
        if model.run is None:
            raise ConfigError(
                f"{model.name} is a model, which has no held-out text of its own: give files, folders, globs, or - "
                "for standard input"
            )
        return _held_out(model.run, model.tokenizer)
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


def _held_out(run: Run, tokenizer: Tokenizer) -> Documents:
    config = run.read_config()
    tokens = open_tokens(run.fingerprint(), config.data, config.model.context_length, config.run.seed).validation
    ends = np.flatnonzero(tokens == tokenizer.end_of_text) if tokenizer.end_of_text is not None else np.empty(0, int)
    borders = np.concatenate([[0], ends + 1, [len(tokens)]])
    parts = (tokens[begin:end] for begin, end in itertools.pairwise(borders))
    documents = (tokenizer.decode(part[part != tokenizer.end_of_text].tolist()) for part in parts)
    return Documents(tuple(text for text in documents if text), "held-out text")
