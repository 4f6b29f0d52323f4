"""How a text longer than the context is cut: every token is scored once, with as much before it as was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Int64

from limpid.errors import ConfigError

Array = np.ndarray
Convention = Literal["sliding", "transformers"]


@dataclass(frozen=True, eq=False)
class Window:
    """Tokens that go through the model together; only the last `scored` of them are scored."""

    tokens: Int64[Array, " position"]  # what goes in, and the last target
    scored: int
    place: int = 0  # of the first scored token in its document

    @property
    def length(self) -> int:
        """Positions that the model sees."""
        return len(self.tokens) - 1

    @property
    def unscored(self) -> int:
        """Positions whose prediction is not asked for."""
        return self.length - self.scored


@dataclass(frozen=True)
class Windows:
    """The cutting of every document.

    sliding       each document starts with the start token, if there is one, so that its first token is scored too;
                  every window is full, the last one as well. With stride = context these are lm-evaluation-harness's
                  rolling windows.
    transformers  as in Hugging Face's guide "Perplexity of fixed-length models": no start token, a window holds
                  `context` tokens with the last target, the last window may be shorter.
    """

    context: int  # tokens
    stride: int  # targets that each window after the first adds
    convention: Convention
    start: int | None  # id of the token that starts a document

    def __post_init__(self) -> None:
        least = 2 if self.convention == "transformers" else 1
        if self.context < least:
            raise ConfigError(f"context is {self.context} tokens: it must be at least {least}")
        if not 1 <= self.stride <= self.context:
            raise ConfigError(
                f"stride is {self.stride}: it must lie in 1 … {self.context}, the context; every token then has at "
                "least context - stride tokens before it"
            )

    def of(self, document: Int64[Array, " token"]) -> Iterator[Window]:
        """The windows of one document's tokens, in order. What has nothing before it in its window is not scored."""
        if self.convention == "transformers":
            yield from self._guide(document)
            return
        tokens = document if self.start is None else np.concatenate([[self.start], document])
        before = len(tokens) - len(document)
        scored_to, last = 0, len(tokens) - 1
        while scored_to < last:
            end = min(last, self.context if scored_to == 0 else scored_to + self.stride)
            yield Window(tokens[max(0, end - self.context) : end + 1], end - scored_to, scored_to + 1 - before)
            scored_to = end

    def _guide(self, tokens: Int64[Array, " token"]) -> Iterator[Window]:
        scored_to = 0  # tokens that are behind, scored or not
        for begin in range(0, len(tokens), self.stride):
            end = min(begin + self.context, len(tokens))
            scored = min(end - scored_to, end - begin - 1)  # a window's first token has nothing before it
            if scored > 0:
                yield Window(tokens[begin:end], scored, end - scored)
            scored_to = end
            if end == len(tokens):
                return
