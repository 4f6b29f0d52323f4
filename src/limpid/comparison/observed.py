"""What was observed of one variant: values and gradients by name, each with the format it was kept in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Int
from torch import Tensor, nn

from limpid.maths.operation import Array
from limpid.maths.rounding import FORMATS
from limpid.objectives import NEXT_TOKEN, Objective
from limpid.tracing.verdict import Check
from limpid.training.precision import NAMES


@dataclass
class Observed:
    """One variant, run over a batch."""

    name: str
    way: str  # path and precision
    parameters: dict[str, Array]  # as this variant has them, exact
    tokens: Int[Array, "batch position"]
    targets: Int[Array, "batch position"]
    values: dict[str, Array] = field(default_factory=dict)  # exact
    gradients: dict[str, Array] = field(default_factory=dict)  # of quantities and parameters, exact
    stored: dict[str, Any] = field(default_factory=dict)  # format of each observed value
    compute: Any = None  # format of what goes into matrix products
    summed: Any = None  # format in which products are summed
    kept: Any = None  # format of parameters and residual stream
    kernels: list[Check] = field(
        default_factory=list
    )  # each redone from its own inputs, where it is known how it rounds
    given: dict[str, Array] = field(default_factory=dict)  # other arrays of the batch that the objective takes
    objective: Objective = NEXT_TOKEN
    grad_norm: float | None = None  # of all parameters' gradients together
    roundings: int = 1  # intermediate results that one operation rounds to its format

    @property
    def arrays(self) -> dict[str, Array]:
        """Every array of the batch, numbers as float64."""
        every = {"tokens": self.tokens, "targets": self.targets, **self.given}
        return {name: array.astype(np.float64) if array.dtype.kind == "f" else array for name, array in every.items()}

    def rounds_like(self, other: Observed) -> bool:
        """Whether both keep every quantity in the same formats."""
        formats = (self.compute, self.summed, self.kept, self.roundings)
        common = self.stored.keys() & other.stored.keys()
        return (
            formats == (other.compute, other.summed, other.kept, other.roundings)
            and all(self.stored[name] == other.stored[name] for name in common)
            and all(self.stored.get(name, self.compute) == self.compute for name in self.stored.keys() ^ common)
            and all(other.stored.get(name, other.compute) == other.compute for name in other.stored.keys() ^ common)
        )

    def record(self, name: str, value: Tensor) -> None:
        """Keep a value and the format it was in."""
        self.values[name] = value.detach().double().numpy()
        self.stored[name] = FORMATS[NAMES[value.dtype]]

    def record_parameter_gradients(self, model: nn.Module) -> None:
        """Keep the gradient of every parameter that has one."""
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                self.gradients[name] = parameter.grad.double().numpy()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        self.grad_norm = float(nn.utils.get_total_norm(gradients))
