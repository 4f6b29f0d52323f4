"""Which operations could go to another format: the change of the loss that is foretold, and the one that is tried."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor, nn

from limpid.errors import ConfigError
from limpid.operations.along import tried_along
from limpid.operations.formats import OUTSIDE, Format, format_of, wishes_of
from limpid.operations.higher import higher_orders
from limpid.operations.shadows import Forecast, Part, Told, forecast
from limpid.operations.tried import loss_with
from limpid.reporter import SILENT, Report

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

    Of what is asked for, each part rounds as it does in a pass with all of them changed, and what it leaves behind is
    weighed to first order with the gradient of the step as it is; second and third order are found with half of it. Of
    a row each part is by itself, given what the step gave it; entered again, it is given other numbers than were
    recorded, and what it rounds off then is another draw, of known size. A pass that computes in 16 bits itself rounds
    anew behind every change, by as much as such a change.
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
class Asked:
    """One of the parts that are asked for, all of them changed: what it adds to the loss, to first order."""

    module: str
    format: str
    adds: float


@dataclass(frozen=True)
class WhatIf:
    """What was asked, foretold and tried; and every module by itself."""

    loss: float
    asked: Mapping[str, str]
    predicted: Predicted
    parts: tuple[Asked, ...]
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

    def _repr_html_(self) -> str:
        from limpid.operations.notebook import what_if_page

        return what_if_page(self)


def what_if(
    model: nn.Module,
    function: Callable[[], Tensor],
    state: Tensor,
    wanted: Mapping[str, str],
    *,
    by_module: bool = True,
    report: Report = SILENT.progress,
) -> WhatIf:
    """Take the forward pass in the formats that are asked for, and foretell it from the gradient of the step as it is.

    wanted     patterns of modules, or PATTERN:OPERATION, and the formats of what fits
    state      of the generator of random numbers, with which the step began
    by_module  every module by itself, too

    Raises  ConfigError
    """
    wishes = wishes_of(wanted)
    function = _of_one_number(function)
    report("the forward pass in other formats", 0, None)
    along = tried_along(model, function, state, wishes)
    wishes.require(along.seen)
    report("what each part of it does", 0, None)
    found = forecast(model, function, state, _table if by_module else _none, along.differences)
    asked = {part: told for part, told in found.parts.items() if part.is_asked}
    first = sum(one.adds for one in asked.values())
    second, third = higher_orders(model, function, state, along.differences, found.loss, first)
    predicted = _together(list(asked.values()), found, (second, third))
    parts = tuple(Asked(part.name or OUTSIDE, part.form.name, told.adds) for part, told in asked.items())
    rows = _rows(model, function, state, found, report)
    return WhatIf(found.loss, dict(wanted), predicted, parts, along.loss - found.loss, rows)


def _of_one_number(function: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The function, held to what it is to give."""
    expected = "expected a function without arguments that gives the loss, a tensor of one number"
    if not callable(function):
        raise ConfigError(f"function is {function!r}: {expected}")

    def given() -> Tensor:
        loss = function()
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            what = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
            raise ConfigError(f"the function gives {what}: {expected}")
        return loss

    return given


def each_module(
    model: nn.Module, function: Callable[[], Tensor], state: Tensor, report: Report = SILENT.progress
) -> tuple[float, tuple[Row, ...]]:
    """The loss, and every module by itself in each format of the table.

    Raises  ConfigError
    """
    report("what each module does in each format", 0, None)
    found = forecast(model, function, state, _table)
    return found.loss, _rows(model, function, state, found, report)


def _table(module: str, operation: str) -> list[Part]:
    """The module, and those that it is part of, but not the whole model: in each format of the table."""
    names = module.split(".")
    above = [".".join(names[: n + 1]) for n in range(len(names))] if module else [OUTSIDE]
    return [Part(name, format_of(form)) for name in above for form in NARROWEST_FIRST]


def _none(module: str, operation: str) -> list[Part]:
    return []


def _together(parts: Sequence[Told], found: Forecast, higher: tuple[float, float] | None = None) -> Predicted:
    """Parts that are changed at once, in the order of the pass.

    higher  second and third order, of parts that were tried along: what they round off is no other draw
    """
    resolution = ULPS * found.eps * max(abs(found.loss), 1.0)
    second, third = (one if abs(one) > NOISE * resolution else 0.0 for one in higher or (0.0, 0.0))
    squares = [one for part in parts for one in part.squares.values()]
    size = math.sqrt(sum(squares))
    redrawn = math.sqrt(sum(squares[1:])) if higher is None else 0.0
    deviation = math.hypot(redrawn, third, (1.0 if found.is_narrow else LEFT_OUT) * size)
    adds, calls = sum(one.adds for one in parts), sum(one.calls for one in parts)
    return Predicted(calls, adds, second, size, deviation, resolution)


def _rows(
    model: nn.Module, function: Callable[[], Tensor], state: Tensor, found: Forecast, report: Report
) -> tuple[Row, ...]:
    """Modules in the order of the pass; in 8 bits, whose second order is not small, each is tried."""
    rows = []
    names = list(dict.fromkeys(part.name for part in found.parts if not part.is_asked))
    for number, name in enumerate(names):
        report(f"{name} by itself", number, len(names))
        told = {form: _together([found.parts[Part(name, Format(form))]], found) for form in NARROWEST_FIRST}
        for form, one in told.items():
            if Format(form).is_of_factors and one.size:
                loss = loss_with(model, function, state, partial(_inside, name, Format(form)))
                told[form] = replace(one, first=loss - found.loss, deviation=0.0)
        rows.append(Row(name, told))
    return tuple(rows)


def _inside(name: str, form: Format, module: str, operation: str) -> Format | None:
    return form if f"{module or OUTSIDE}.".startswith(f"{name}.") else None
