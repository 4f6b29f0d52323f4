"""Values and the chain rule: operations in the order they ran, and one loop back through them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from limpid.maths.operation import Array, Operation


@dataclass(frozen=True)
class Link:
    """One application of an operation: which named inputs became which named output, and what was saved."""

    name: str
    operation: Operation
    inputs: tuple[str, ...]
    saved: Any


@dataclass
class Chain:
    """A computation that remembers itself.

    values  every named array: parameters, the batch, then each quantity as it is computed
    links   the operations that were applied, in order
    """

    values: dict[str, Array]
    links: list[Link] = field(default_factory=list)

    def apply(self, name: str, operation: Operation, *inputs: str) -> str:
        """Compute the quantity `name` from named inputs; returns the name, to be used as an input further on."""
        self.values[name], saved = operation.forward(*(self.values[i] for i in inputs))
        self.links.append(Link(name, operation, inputs, saved))
        return name

    def backward(self, output: str) -> dict[str, Array]:
        """Gradients of the scalar `output` with respect to everything it was computed from.

        The chain rule for a value used k times: its gradient is the sum of k contributions.
        """
        gradients: dict[str, Array] = {output: np.ones_like(self.values[output])}
        for link in reversed(self.links):
            if link.name not in gradients:
                continue  # computed, but the output does not depend on it
            contributions = link.operation.backward(gradients[link.name], link.saved)
            for name, contribution in zip(link.inputs, contributions, strict=True):
                if contribution is None:
                    continue
                gradients[name] = gradients[name] + contribution if name in gradients else contribution
        return gradients


class Outline(Chain):
    """A chain that only notes which operation makes what from what: nothing is computed."""

    def made(self, name: str) -> bool:
        """Whether an operation makes this array: parameters and the batch are given."""
        return any(link.name == name for link in self.links)

    def apply(self, name: str, operation: Operation, *inputs: str) -> str:
        self.values[name] = np.empty(0)
        self.links.append(Link(name, operation, inputs, None))
        return name
