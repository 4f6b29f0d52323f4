"""How rates, the gradient's norm and the loss went, step by step."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from limpid.doctor.description.words import number

if TYPE_CHECKING:
    from limpid.doctor.step_record import StepRecord

GROUPS, SHOWN = 6, 9
"""Groups whose rates are kept, and updates of which one is told."""
FIFTHS, ENOUGH = 5, 4
"""Parts of a run, and the numbers that each must have."""


@dataclass
class Course:
    """One number a step each; not a number where there is none."""

    rates: dict[int, array[float]] = field(default_factory=dict)  # by group, of its updates
    norms: array[float] = field(default_factory=lambda: array("d"))
    losses: array[float] = field(default_factory=lambda: array("d"))
    first: int | None = None  # number of the first step

    def take(self, record: StepRecord) -> None:
        """Add a step."""
        self.first = record.number if self.first is None else self.first
        self.losses.append(math.nan if record.loss is None else record.loss)
        norm = record.norm if record.true_norm is None else record.true_norm
        if norm is not None and math.isfinite(norm):
            self.norms.append(norm)
        for group, rate in record.group_rates.items() if record.has_rates else ():
            if group in self.rates or len(self.rates) < GROUPS:
                self.rates.setdefault(group, array("d")).append(rate)

    def rates_of(self, group: int) -> str:
        """The rates of some updates, the first and the last among them."""
        rates = self.rates.get(group, ())
        if len(rates) < 2:
            return ""
        count = min(SHOWN, len(rates))
        at = sorted({round(i * (len(rates) - 1) / (count - 1)) for i in range(count)})
        said = ", ".join(f"{rates[i]:.3g}" for i in at)
        return f"; at updates {', '.join(number(i + 1) for i in at)}: {said}"

    def around(self, steps: Sequence[int]) -> str:
        """The losses of steps, and of those after them."""
        said = []
        for step in steps[:FIFTHS]:
            index = step - (self.first or 0)
            pair = self.losses[index : index + 2].tolist() if index >= 0 else []
            if len(pair) == 2 and all(map(math.isfinite, pair)):
                said.append(f"{pair[0]:.3g} and {pair[1]:.3g}")
        return f"; loss before and after: {', '.join(said)}" if said else ""


def fifths(values: Sequence[float]) -> str:
    """Means of the parts of a run of numbers, where there are enough of them."""
    if len(values) < FIFTHS * ENOUGH:
        return ""
    size = len(values) // FIFTHS
    means = [sum(values[i * size : (i + 1) * size]) / size for i in range(FIFTHS)]
    return f"; means of its fifths: {', '.join(f'{mean:.4g}' for mean in means)}"
