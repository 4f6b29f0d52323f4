"""How one forward pass runs: on which path, observed by whom. An argument: two models can be observed at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor, nn

Path = Literal["fast", "plain"]
"""fast: fused kernels, as training runs. plain: PyTorch's operations, every quantity formed, twice differentiable."""

Observe = Callable[[str, Tensor], Tensor]
"""Called with the name and value of every quantity that the path forms; the model goes on with what it returns."""


@dataclass(frozen=True)
class Mode:
    """How one forward pass runs."""

    path: Path = "fast"
    observe: Observe | None = None
    loss_scale: float = 1.0  # what the loss is multiplied by before backward: kernels round gradients that have it
    is_beside_output: bool = False  # whether the loss reads all of the table of tokens, too

    @property
    def plain(self) -> bool:
        return self.path == "plain"

    def once(self) -> Mode:
        """The same, but whatever is computed again is not shown again."""
        if self.observe is None:
            return self
        seen: set[str] = set()

        def first(name: str, value: Tensor) -> Tensor:
            if name in seen or self.observe is None:
                return value
            seen.add(name)
            return self.observe(name, value)

        return replace(self, observe=first)

    def report(self, name: str, value: Tensor) -> Tensor:
        """Show a quantity to the observer, if there is one."""
        return value if self.observe is None else self.observe(name, value)


FAST = Mode()


class Named:
    """What has a place in the vocabulary, such as blocks.3.attention."""

    name: str

    def report(self, mode: Mode, what: str, value: Tensor) -> Tensor:
        """Show a quantity of this part; the name is read only then, so that compiled code serves every block."""
        return value if mode.observe is None else mode.observe(f"{self.name}.{what}", value)


class Part(Named, nn.Module):
    """A named part of the model."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
