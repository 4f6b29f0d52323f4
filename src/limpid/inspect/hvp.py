"""A loss that can be differentiated twice, on the plain path: its value, gradient and products with its Hessian.

The product is exact: H v is the gradient of (gradient · v) (Pearlmutter 1994, doi:10.1162/neco.1994.6.1.147).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import functional_call

from limpid.inspect.watch import in_format
from limpid.model import Transformer
from limpid.objectives.losses import log_probabilities, next_token_loss

TOGETHER = 4
"""Rows that go through the model at once."""


class Loss:
    """Mean surprise of fixed rows, nats per token, as a function of all parameters as one vector."""

    def __init__(
        self,
        model: Transformer,
        inputs: Int[Tensor, "row position"],
        targets: Int[Tensor, "row position"],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model = in_format(model, dtype)
        self.parameters = dict(self.model.named_parameters())
        self.inputs, self.targets = inputs, targets

    @property
    def size(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters.values())

    @property
    def point(self) -> Float[Tensor, " parameter"]:
        """The parameters as they are."""
        return flat(self.parameters.values()).detach()

    def value(self, point: Float[Tensor, " parameter"] | None = None, rows: slice = slice(None)) -> float:
        """The loss there, on some of the rows."""
        parameters = self.parameters if point is None else self.split(point)
        with torch.no_grad():
            parts = [float(part) for part in self._parts(parameters, rows)]
        return sum(parts)

    def gradient(self, rows: slice = slice(None)) -> Float[Tensor, " parameter"]:
        """Its gradient at the parameters as they are."""
        total = torch.zeros_like(self.point)
        for part in self._parts(self.parameters, rows):
            total += flat(torch.autograd.grad(part, list(self.parameters.values())))
        return total

    def product(self, v: Float[Tensor, " parameter"]) -> Float[Tensor, " parameter"]:
        """H v at the parameters as they are."""
        learned = list(self.parameters.values())
        direction = list(self.split(v).values())
        total = torch.zeros_like(v)
        for part in self._parts(self.parameters, slice(None)):
            gradients = torch.autograd.grad(part, learned, create_graph=True)
            along = sum((g * d).sum() for g, d in zip(gradients, direction, strict=True))
            total += flat(torch.autograd.grad(cast(Tensor, along), learned))
        return total

    def numpy_product(self) -> Callable[[Any], Any]:
        """v ↦ H v for limpid.maths.lanczos."""
        dtype = self.point.dtype

        def product(v: Any) -> Any:
            return self.product(torch.as_tensor(v).to(dtype)).double().numpy()

        return product

    def split(self, vector: Float[Tensor, " parameter"]) -> dict[str, Tensor]:
        """One long vector as the arrays of the parameters."""
        sizes = [parameter.numel() for parameter in self.parameters.values()]
        return {
            name: part.view(parameter.shape)
            for (name, parameter), part in zip(self.parameters.items(), vector.split(sizes), strict=True)
        }

    def _parts(self, parameters: dict[str, Any], rows: slice) -> Iterator[Float[Tensor, ""]]:
        """The loss of a few rows at a time, each with its share of the mean."""
        inputs, targets = self.inputs[rows], self.targets[rows]
        for some, after in zip(inputs.split(TOGETHER), targets.split(TOGETHER), strict=True):
            logits = functional_call(self.model, parameters, (some,), {"path": "plain"})
            yield next_token_loss(log_probabilities(logits), after, targets.numel())


def flat(tensors: Any) -> Float[Tensor, " parameter"]:
    """Arrays as one long vector."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
