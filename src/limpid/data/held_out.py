"""What a run held out, and what its rows were made of: of plain text, or of the records that it tunes on."""

from __future__ import annotations

import itertools

import numpy as np
from jaxtyping import Integer

from limpid.config import TrainConfig, TuneConfig
from limpid.config.tuning import KINDS
from limpid.data import tokens as text_tokens
from limpid.data.joined import Joined
from limpid.data.token_splits import Tokens
from limpid.data.tokenizer import Tokenizer
from limpid.data.tokenizer_folder import load_tokenizer
from limpid.data.tokens import open_tokens
from limpid.data.tuning import examples
from limpid.data.tuning.examples import Examples, Wanted, open_examples
from limpid.run import Run
from limpid.source import Checkpoint

Array = np.ndarray


def data_of(run: Run, config: TrainConfig, fingerprint: str) -> Tokens | Examples:
    """What a run trained on, as long as it is the same.

    Raises  CheckpointError when it is another one now; DataError when it cannot be read
    """
    if config.tune is None:
        return open_tokens(fingerprint, config.data, config.model.context_length, config.run.seed)
    return open_examples(fingerprint, _wanted(run, config, config.tune))


def wanted(config: TrainConfig, tune: TuneConfig, tokenizer: Tokenizer, chat_template: str | None = None) -> Wanted:
    """What the examples of a run depend on. A chat template that is named is kept by the run, with its tokenizer."""
    return Wanted(
        data=config.data,
        kind=KINDS[tune.objective],
        tokenizer=tokenizer,
        context_length=config.model.context_length - (tune.objective == "reward"),  # whose last token is read, too
        seed=config.run.seed,
        chat_template=chat_template,
        too_long=tune.too_long,
        skip_bad_rows=tune.skip_bad_rows,
    )


def _wanted(run: Run, config: TrainConfig, tune: TuneConfig) -> Wanted:
    return wanted(config, tune, load_tokenizer(Checkpoint(run, 0)))


def changed_since(data: Tokens | Examples, run: Run, config: TrainConfig) -> str | None:
    """What became of the records that a run tunes on, where they are other ones now: it goes on with those it had."""
    if isinstance(data, Tokens) or config.tune is None:
        return None
    return examples.changed_since(data, _wanted(run, config, config.tune))


def named_as_given(data: Tokens | Examples, run: Run, config: TrainConfig) -> Tokens | Examples:
    """The same with the names that the run's files have now: what is kept has those of where it was first read."""
    if isinstance(data, Tokens):
        return text_tokens.named_as_given(data, config.data, config.run.seed)
    assert config.tune is not None
    return examples.named_as_given(data, _wanted(run, config, config.tune))


def held_out_tokens(data: Tokens | Examples) -> Integer[Array, " token"] | Joined:
    """Every token that is held out, document after document."""
    return data.validation.tokens if isinstance(data, Examples) else data.validation


def first_document(data: Tokens | Examples, most: int) -> tuple[int, ...]:
    """How the held-out text begins, at most up to the end of its first document.

    Of records it is the first with its answer; where none is held out, the first to train on.
    """
    if isinstance(data, Examples):
        split = data.validation if data.validation.records else data.train
        return tuple(split.answer(0).tokens[:most].tolist())
    tokens = tuple(int(token) for token in data.validation[:most])
    end = tokens.index(data.tokenizer.end_of_text) if data.tokenizer.end_of_text in tokens else len(tokens)
    return tokens[:end] if end >= 2 else tokens


def opening(run: Run, characters: int = 24) -> str:
    """The first words that a run held out; of records the first prompt."""
    data = data_of(run, run.read_config(), run.fingerprint())
    if isinstance(data, Tokens):
        return data.opening(characters)
    split = data.validation if data.validation.records else data.train
    return data.tokenizer.decode(split.prompt(0))


def held_out_documents(run: Run) -> list[str]:
    """The texts that a run on plain text held out, without the marks between them."""
    data = data_of(run, run.read_config(), run.fingerprint())
    tokens = held_out_tokens(data)[:]
    end = data.tokenizer.end_of_text
    ends = np.flatnonzero(tokens == end) if end is not None else np.empty(0, int)
    borders = np.concatenate([[0], ends + 1, [len(tokens)]])
    parts = (tokens[begin:after] for begin, after in itertools.pairwise(borders))
    texts = (data.tokenizer.decode(part[part != end].tolist()) for part in parts)
    return [text for text in texts if text]
