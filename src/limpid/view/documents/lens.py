"""The logit lens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LensToken:
    """A token that would come next."""

    id: int
    text: str
    probability: float


@dataclass(frozen=True)
class LensCell:
    """What the residual stream says of the next token at one position after one block."""

    likeliest: tuple[LensToken, ...]  # the likeliest first
    target: float | None  # probability of the token that comes; None where there is no label
    rank: int | None  # of the token that comes: 1 is the likeliest
    kl: float  # nats, KL(the model's own prediction ‖ this one)


@dataclass(frozen=True)
class LensRow:
    """The residual stream after one block, read out."""

    name: str  # of the stream there
    title: str
    cells: tuple[LensCell, ...]  # by position


@dataclass(frozen=True)
class LensView:
    """What would be predicted if the residual stream ended after each block: the logit lens of one row of the batch."""

    row: int
    first: int  # position
    positions: int  # of the whole row
    targets: tuple[str | None, ...]  # the text that comes after each position
    layers: tuple[LensRow, ...]
