"""Which operations could go to another format: the change of the loss that is foretold, and the one that is tried."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from limpid.operations.formats import OUTSIDE, Format, format_of, wishes_of
from limpid.operations.shadows import Forecast, Part, Told, forecast
from limpid.operations.tried import loss_with

NARROWEST_FIRST = ("float8_e4m3fn", "bfloat16", "float16")
"""Formats of the table."""
CANCELLED = 0.2
"""Of the size of its own roundings: a change smaller than that is one of differences that cancel."""
DEVIATIONS = 6.0
"""A sum of several parts is a value where it is so many times its own deviation: twice that is a third of it then."""
AT_MOST = 3.0
"""Sizes, or deviations, that no change exceeds."""
FACTOR = 1.5
"""A value that is foretold is right up to that."""
ULPS = 2.0
"""The loss is known to so many units in its last place; a value is four times that at least."""


@dataclass(frozen=True)
class Predicted:
    """The change of the loss that a format of some operations is foretold to make.

    One part is told to first order, with what it would make itself. Of several, those behind the first are given other
    numbers than were recorded: what is rounded off there is another draw, of the size that is known.
    """

    calls: int
    change: float  # Σ ⟨ḡ, δ⟩
    size: float  # √Σ (ḡ δ)² over what is read of the parts: of a change in which nothing cancels
    deviation: float  # the same of all parts but the first
    resolution: float  # of the loss itself

    @property
    def is_value(self) -> bool:
        """Whether the change is right up to a factor of 1.5; else it is only said what it does not exceed."""
        if abs(self.change) < 4 * self.resolution:
            return False
        return abs(self.change) >= (DEVIATIONS * self.deviation if self.deviation else CANCELLED * self.size)

    @property
    def at_most(self) -> float:
        """The size that it does not exceed."""
        if self.is_value:
            return FACTOR * abs(self.change)
        spread = self.deviation or self.size
        return abs(self.change) + AT_MOST * spread + self.resolution


@dataclass(frozen=True)
class Row:
    """A module, in each format by itself."""

    module: str
    formats: Mapping[str, Predicted]

    def narrowest(self, within: float) -> str:
        """The narrowest format that moves the loss by no more than that; nothing where it has to stay."""
        fits = (name for name, one in self.formats.items() if one.calls and one.at_most <= within and one.size)
        return next(fits, "")


@dataclass(frozen=True)
class WhatIf:
    """What was asked, foretold and tried; and every module by itself."""

    loss: float
    asked: Mapping[str, str]
    predicted: Predicted
    tried: float
    rows: tuple[Row, ...]

    @property
    def holds(self) -> bool:
        """Whether what was tried is within what was foretold."""
        if self.predicted.is_value:
            return 1 / FACTOR <= self.tried / self.predicted.change <= FACTOR
        return abs(self.tried) <= self.predicted.at_most

    def __str__(self) -> str:
        from limpid.operations.what_if_terminal import said

        return said(self)


def what_if(model: nn.Module, function: Callable[[], Tensor], state: Tensor, wanted: Mapping[str, str]) -> WhatIf:
    """Foretell from one forward and one backward pass, then take the forward pass in the formats that are asked for.

    wanted  patterns of modules, or PATTERN:OPERATION, and the formats of what fits
    state   of the generator of random numbers, with which the step began

    Raises  ConfigError
    """
    wishes = wishes_of(wanted)
    seen = dict[tuple[str, str], None]()

    def parts_of(module: str, operation: str) -> Sequence[Part]:
        seen[module, operation] = None
        asked = wishes.part_of(module, operation)
        names = _prefixes(module)
        table = [Part(name, format_of(form)) for name in names for form in NARROWEST_FIRST]
        return [*table, *([] if asked is None else [Part(f"asked {asked[0]}", asked[1])])]

    found = forecast(model, function, state, parts_of)
    wishes.require(seen)
    asked = [told for part, told in found.parts.items() if part.name.startswith("asked ")]
    tried = loss_with(model, function, state, wishes)
    return WhatIf(found.loss, dict(wanted), _together(asked, found), tried - found.loss, _rows(found))


def _prefixes(module: str) -> list[str]:
    """The module, and those that it is part of; but not the whole model."""
    names = module.split(".")
    return [".".join(names[: n + 1]) for n in range(len(names))] if module else [OUTSIDE]


def _together(parts: Sequence[Told], found: Forecast) -> Predicted:
    """Parts that are changed at once, in the order of the pass."""
    form = torch.finfo(torch.float32)
    return Predicted(
        sum(one.calls for one in parts),
        sum(one.adds for one in parts),
        math.sqrt(sum(one.square for one in parts)),
        math.sqrt(sum(one.square for one in parts[1:])),
        ULPS * form.eps * abs(found.loss),
    )


def _rows(found: Forecast) -> tuple[Row, ...]:
    names = dict.fromkeys(part.name for part in found.parts if not part.name.startswith("asked "))
    return tuple(
        Row(name, {form: _together([found.parts[Part(name, Format(form))]], found) for form in NARROWEST_FIRST})
        for name in names
    )
