"""What is seen of one way through a model: values and gradients by name, each in the format it was kept in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from limpid.maths.operation import Array


@dataclass
class Taken:
    """One way, taken over a batch."""

    name: str
    parameters: dict[str, Array]  # as this way has them, exact
    tokens: Array  # (batch, position)
    targets: Array
    values: dict[str, Array] = field(default_factory=dict)  # exact
    gradients: dict[str, Array] = field(default_factory=dict)  # of quantities and parameters, exact
    stored: dict[str, Any] = field(default_factory=dict)  # format of each value that was seen
    compute: Any = None  # format of what goes into matrix products
    summed: Any = None  # format in which products are summed
    kept: Any = None  # format of parameters and residual stream
    roundings: int = 1  # intermediate results that one operation rounds to its format
