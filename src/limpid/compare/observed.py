"""What was observed of one variant: values and gradients by name, each with the format it was kept in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from limpid.maths.operation import Array
from limpid.maths.rounding import FORMATS
from limpid.training.precision import NAMES


@dataclass
class Observed:
    """One variant, run over a batch."""

    name: str
    parameters: dict[str, Array]  # as this variant has them, exact
    tokens: Array  # (batch, position)
    targets: Array  # (batch, position)
    values: dict[str, Array] = field(default_factory=dict)  # exact
    gradients: dict[str, Array] = field(default_factory=dict)  # of quantities and parameters, exact
    stored: dict[str, Any] = field(default_factory=dict)  # format of each observed value
    compute: Any = None  # format of what goes into matrix products
    summed: Any = None  # format in which products are summed
    kept: Any = None  # format of parameters and residual stream
    roundings: int = 1  # intermediate results that one operation rounds to its format

    def record(self, name: str, value: Tensor) -> None:
        """Keep a value and the format it was in."""
        self.values[name] = value.detach().double().numpy()
        self.stored[name] = FORMATS[NAMES[value.dtype]]

    def record_parameter_gradients(self, model: nn.Module) -> None:
        """Keep the gradient of every parameter that has one."""
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                self.gradients[name] = parameter.grad.double().numpy()
