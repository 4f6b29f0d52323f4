"""What is inspected: a run or a Hugging Face model, a text for it, and rows of tokens to measure on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, Integer
from torch import Tensor

from limpid.config import TrainConfig
from limpid.data.batches import validation_batches
from limpid.data.held_out import data_of, first_document, held_out_tokens
from limpid.data.joined import Joined
from limpid.data.tokenizer import Tokenizer
from limpid.errors import ConfigError, DataError, LimpidError
from limpid.loaded import Opened, open_model
from limpid.model import Transformer
from limpid.run import Run

SHOWN = 40
"""Tokens of a run's own text: as many as an attention map can name."""
LONGEST = 256
"""Tokens of a text that are looked at one by one: every pair of them is a number of every head."""
ROW = 64
"""Tokens of a row that loss and curvature are measured on, at most."""
SHORTEST = 4
"""Tokens of such a row, at least, unless the context is shorter."""


@dataclass(frozen=True)
class ModelAndText:
    """A model and what it is asked about."""

    name: str
    model: Transformer  # as it was opened: float32
    tokenizer: Tokenizer
    tokens: tuple[int, ...]  # of the text
    origin: str  # where the text comes from
    config: TrainConfig | None = None  # of the run
    step: int | None = None
    validation: Integer[np.ndarray, " token"] | Joined | None = None  # enough for two rows
    notes: tuple[str, ...] = ()

    @property
    def shown(self) -> tuple[int, ...]:
        """The tokens that are looked at one by one."""
        return self.tokens[: min(LONGEST, self.model.config.context_length)]

    @property
    def text(self) -> list[str]:
        """Each token that is looked at, in printable characters."""
        return [self.tokenizer.token_text(token) for token in self.shown]

    @property
    def inputs(self) -> Int[Tensor, "1 position"]:
        return torch.tensor([self.shown])

    def rows(self, count: int) -> tuple[Int[Tensor, "row position"], Int[Tensor, "row position"]]:
        """At most `count` rows and the token after each of theirs: held-out ones of a run, else parts of the text.

        Where there are not two rows of ROW tokens, they are shorter.
        Raises  ConfigError when a text is too short for two rows
        """
        context = self.model.config.context_length
        longest = min(context, ROW)
        if self.validation is not None and len(self.validation) > 2 * longest:
            batch = next(iter(validation_batches(self.validation, longest, count, count)))
            return torch.as_tensor(batch["tokens"]), torch.as_tensor(batch["targets"])
        if self.validation is None and len(self.tokens) < _fewest(context):
            raise ConfigError(
                f"the text has {len(self.tokens)} tokens, expected at least {_fewest(context)}: a loss is "
                "measured on rows cut from it; give a longer --text"
            )
        whole = self.tokens if self.validation is None else self.validation[:].tolist()
        labels = len(whole) - 1
        length = min(longest, max(SHORTEST, labels // count))
        number = min(count, labels // length)
        tokens = torch.tensor(whole[: number * length + 1])
        return tokens[:-1].view(number, length), tokens[1:].view(number, length)


def open_model_and_text(what: str | Path | Run | Opened, text: str | None) -> ModelAndText:
    """A model, with a text or, of a run, the start of its held-out one.

    Raises  CheckpointError when there is no such model, ConfigError for a text that cannot be used
    """
    opened = open_model(what)
    name, model, tokenizer, run = opened.name, opened.transformer, opened.tokenizer, opened.run
    if run is None:
        if text is None:
            raise ConfigError(f'{name} is a model, which has no text of its own: give one, as in --text "To be or not"')
        return ModelAndText(name, model, tokenizer, _encoded(text, tokenizer, model), "the given text")
    config = run.read_config()
    notes: tuple[str, ...] = ()
    validation = None
    try:
        data = data_of(run, config, run.fingerprint())
        validation = held_out_tokens(data)
        begin = first_document(data, min(SHOWN, config.model.context_length))
    except LimpidError as error:
        if text is None:
            raise
        begin, notes = (), (f"held-out tokens are left out: {error}",)
    origin = "held-out text" if validation is not None and len(validation) else "a record that was trained on"
    if text is not None:
        begin, origin = _encoded(text, tokenizer, model), "the given text"
    fewest = _fewest(config.model.context_length)
    if validation is not None and len(validation) < fewest:
        notes = (f"held-out tokens are left out: there are {len(validation)}, expected at least {fewest} for rows",)
        validation = None
    return ModelAndText(name, model, tokenizer, begin, origin, config, opened.step, validation, notes)


def single_token(word: str, tokenizer: Tokenizer, option: str) -> int:
    """The one token that spells `word`.

    Raises  ConfigError naming the tokens when there are several
    """
    tokens = tokenizer.encode(word)
    if len(tokens) == 1:
        return tokens[0]
    spelled = ", ".join(repr(tokenizer.token_text(token)) for token in tokens) or "none"
    spaced = " " + word
    hint = f"{spaced!r} is one" if len(tokenizer.encode(spaced)) == 1 else "give one of them"
    raise ConfigError(f"{option} {word!r} is {len(tokens)} tokens ({spelled}), expected one: {hint}")


def _encoded(text: str, tokenizer: Tokenizer, model: Transformer) -> tuple[int, ...]:
    try:
        tokens = tuple(tokenizer.encode(text))
    except DataError as error:
        raise ConfigError(f"--text cannot be tokenized: {error}") from error
    if not tokens:
        raise ConfigError(f"--text is {text!r}, which has no tokens: give at least one")
    model.require_known(max(tokens))
    return tokens


def _fewest(context_length: int) -> int:
    """Tokens of two rows, and the target of the last."""
    return 2 * min(SHORTEST, context_length) + 1
