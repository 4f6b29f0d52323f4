"""A prompt, and what comes next."""

from __future__ import annotations

from dataclasses import dataclass

from limpid.jsonable import Finite


@dataclass(frozen=True)
class PlayToken:
    """A token that a model was given, and how likely it was after those before it."""

    id: int
    text: str
    probability: Finite | None  # None of the first


@dataclass(frozen=True)
class Choice:
    """A token that may come next."""

    id: int
    text: str
    logit: Finite
    probability: Finite


@dataclass(frozen=True)
class PlayDocument:
    """What a model says of the next token. Temperature, top-k and top-p are moved in the page, on the exact logits."""

    model: str
    prompt: tuple[PlayToken, ...]
    next: tuple[Choice, ...]  # the likeliest, the likeliest first
    rest: Finite  # probability of all others
    entropy: Finite  # bits
    logits: str  # base64 of float32, little-endian: of the whole vocabulary
    attention: tuple[tuple[tuple[Finite, ...], ...], ...] | None  # block, head, position: of the last token
    context_length: int
