"""The texts that a run is validated on, each with its own tokens: one by default, or several by name."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt

from limpid.config import DataConfig
from limpid.data.joined import Joined
from limpid.data.token_splits import Tokens

Array = np.ndarray


@dataclass(frozen=True)
class ValidationSet:
    """Held-out text that has a loss of its own."""

    name: str
    """Empty where the user gave none."""
    tokens: UInt[Array, " token"] | Joined
    bytes: int
    """Of its text, without ends of text."""

    def in_bits_per_byte(self, loss: float) -> float:
        """A loss in nats per token as bits per byte of this text."""
        return loss / math.log(2) / (self.bytes / len(self.tokens))


def validation_sets(tokens: Tokens, data: DataConfig) -> tuple[ValidationSet, ...]:
    """The sets in the order in which they were given; the first is the one that decides which checkpoint is best."""
    if len(data.validation_sets) < 2:
        name = next(iter(data.validation_sets), "")
        return (ValidationSet(name, tokens.validation, tokens.validation_bytes),)
    first = len(data.paths or ("",))  # paths to validate on are numbered after those to train on
    ends = list(itertools.accumulate(path.held_out.tokens for path in tokens.paths))
    places = {path.path - first: (path, end) for path, end in zip(tokens.paths, ends, strict=True)}
    sets = []
    for name, members in data.validation_sets.items():
        own = [places[member] for member in members if member in places]
        parts = [tokens.validation[end - path.held_out.tokens : end] for path, end in own]
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        sets.append(ValidationSet(name, joined, sum(path.held_out.bytes for path, _ in own)))
    return tuple(sets)
