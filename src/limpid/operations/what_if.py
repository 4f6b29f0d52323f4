"""Which operations could go to another format: the change of the loss that is foretold, and the one that is tried."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor, nn

from limpid.operations.formats import OUTSIDE, Format, format_of, wishes_of
from limpid.operations.higher import higher_orders
from limpid.operations.shadows import Forecast, Part, Told, forecast
from limpid.operations.tried import FormatOf, loss_with

NARROWEST_FIRST = ("float8_e4m3fn", "bfloat16", "float16")
"""Formats of the table."""
SURE = 6.0
"""A change is a value where it is so many times its own deviation: twice that is a third of it then."""
AT_MOST = 3.0
"""Deviations that are added to what is foretold, for the size that a change does not exceed."""
LEFT_OUT = 1 / 30
"""Of the size of what is read: what first order leaves out. So a value is a fifth of that size at least."""
FACTOR = 1.5
"""A value that is foretold is right up to that."""
NOISE = 8.0
"""Of what the loss is known to: second and third order, found with half of the differences, are known to that."""
ULPS = 2.0
"""The loss, a difference of numbers about 1 at least, is known to so many units in the last place."""


@dataclass(frozen=True)
class Predicted:
    """The change of the loss that a format of some operations is foretold to make.

    A part is told by what it would make itself, weighed to first order with the gradient where it is left. Parts
    behind the first are given other numbers than were recorded: what they round off is another draw, of known size.
    Second and third order are found with half of the differences. A pass that computes in 16 bits itself rounds anew
    behind every change, by as much as such a change.
    """

    calls: int
    first: float  # Σ ⟨ḡ, δ⟩
    second: float  # ½ ⟨δ, H δ⟩
    size: float  # √Σ (ḡ δ)² over what is read of the parts: of a change in which nothing cancels
    deviation: float
    resolution: float  # of the loss itself

    @property
    def change(self) -> float:
        return self.first + self.second

    @property
    def is_value(self) -> bool:
        """Whether the change is right up to a factor of 1.5; else it is only said what it does not exceed."""
        return abs(self.change) >= max(SURE * self.deviation, 4 * self.resolution) and self.size > 0

    @property
    def at_most(self) -> float:
        """The size that it does not exceed."""
        if self.is_value:
            return FACTOR * abs(self.change)
        return abs(self.change) + AT_MOST * self.deviation + self.resolution


@dataclass(frozen=True)
class Row:
    """A module, in each format by itself: foretold, in 8 bits tried."""

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
        return [*table, *([] if asked is None else [Part(asked[0], asked[1], True)])]

    found = forecast(model, function, state, parts_of)
    wishes.require(seen)
    asked = [told for part, told in found.parts.items() if part.is_asked]
    higher = higher_orders(model, function, state, found, sum(one.adds for one in asked))
    tried = loss_with(model, function, state, wishes.format_of)
    rows = _rows(found, lambda format_of: loss_with(model, function, state, format_of) - found.loss)
    return WhatIf(found.loss, dict(wanted), _together(asked, found, *higher), tried - found.loss, rows)


def _prefixes(module: str) -> list[str]:
    """The module, and those that it is part of; but not the whole model."""
    names = module.split(".")
    return [".".join(names[: n + 1]) for n in range(len(names))] if module else [OUTSIDE]


def _together(parts: Sequence[Told], found: Forecast, second: float = 0.0, third: float = 0.0) -> Predicted:
    """Parts that are changed at once, in the order of the pass."""
    resolution = ULPS * found.eps * max(abs(found.loss), 1.0)
    second, third = (one if abs(one) > NOISE * resolution else 0.0 for one in (second, third))
    squares = [one for part in parts for one in part.squares.values()]
    size = math.sqrt(sum(squares))
    return Predicted(
        sum(one.calls for one in parts),
        sum(one.adds for one in parts),
        second,
        size,
        math.hypot(math.sqrt(sum(squares[1:])), third, (1.0 if found.is_narrow else LEFT_OUT) * size),
        resolution,
    )


def _rows(found: Forecast, change: Callable[[FormatOf], float]) -> tuple[Row, ...]:
    """Modules in the order of the pass; in 8 bits, whose second order is not small, each is tried."""
    rows = []
    for name in dict.fromkeys(part.name for part in found.parts if not part.is_asked):
        told = {form: _together([found.parts[Part(name, Format(form))]], found) for form in NARROWEST_FIRST}
        for form, one in told.items():
            if Format(form).is_of_factors and one.size:
                told[form] = replace(one, first=change(partial(_inside, name, Format(form))), deviation=0.0)
        rows.append(Row(name, told))
    return tuple(rows)


def _inside(name: str, form: Format, module: str, operation: str) -> Format | None:
    return form if f"{module or OUTSIDE}.".startswith(f"{name}.") else None
