"""The numbers that an option may be: an interval, written where the option stands."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class Within:
    """The finite numbers of an interval, as it is written: Within("[0, 1)")."""

    interval: str
    hint: str = ""
    """What the bound means, where its number does not say it."""

    @property
    def ends(self) -> tuple[float, float]:
        low, high = self.interval[1:-1].split(",")
        return float(low), float(high)

    def __contains__(self, value: float) -> bool:
        low, high = self.ends
        return (
            math.isfinite(value)
            and (low < value or (low == value and self.interval[0] == "["))
            and (value < high or (high == value and self.interval[-1] == "]"))
        )

    def asks(self, value: float) -> str:
        """What a value that is not in it would have to do."""
        low, high = self.ends
        if not math.isfinite(value):
            said = "be a finite number"
        elif math.isfinite(high):
            said = f"lie in {self.interval}"
        elif low == 0:
            said = "not be negative" if self.interval[0] == "[" else "be above 0"
        else:
            said = f"be at least {low:g}"
        return f"{said}; {self.hint}" if self.hint else said


Count = Annotated[int, Within("[1, inf)")]
Whole = Annotated[int, Within("[0, inf)")]
Positive = Annotated[float, Within("(0, inf)")]
NotNegative = Annotated[float, Within("[0, inf)")]
Share = Annotated[float, Within("[0, 1]")]
Fraction = Annotated[float, Within("[0, 1)")]
Similarity = Annotated[float, Within("(0, 1]")]
