"""Ways to do a custom Function again: in float64, or in its own format where its kernels know no other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from limpid.adjoints.again import Applied, copy
from limpid.adjoints.directional import signs_of, steps
from limpid.adjoints.results import Gradients, apart_by
from limpid.adjoints.widened import Rounded, Widened, wider

DRAWS = 4
ASIDE = 32
"""Lengths of a step, by which inputs are moved from where slopes jump."""
SAME = 2.0**-3
"""Results in float64 that are further from the engine's are another function's: one that looks at formats."""


class Way(ABC):
    """A way to do a Function again."""

    wide: bool
    step: float  # unit that lengths of steps follow from

    def __init__(self, applied: Applied, unit: float, drawn: Sequence[torch.dtype]) -> None:
        self.applied, self.unit, self.drawn = applied, unit, drawn
        self.is_begun = False  # whether it can be done this way
        self.forward_off = 0.0  # by which results are off from the engine's, as a share of them

    @abstractmethod
    def forward(self, values: dict[int, Tensor]) -> list[Tensor | None]:
        """Results of these inputs."""

    @abstractmethod
    def backward(self, values: dict[int, Tensor]) -> list[Tensor]:
        """x̄ of these inputs."""

    @abstractmethod
    def scattered(self, values: dict[int, Tensor]) -> Iterator[list[Tensor]]:
        """x̄, as rounding may make it."""

    @abstractmethod
    def bounds_of(self, values: dict[int, Tensor]) -> Iterator[list[Tensor]]:
        """The same, where this way rounds."""

    @abstractmethod
    def given(self, tensor: Tensor) -> Tensor:
        """An input in the format of this way."""

    @abstractmethod
    def holds_for(self, results: Gradients) -> bool:
        """Whether it gives what the engine got."""

    def moved(self, values: dict[int, Tensor], place: int, x: Tensor) -> list[Tensor | None]:
        """Results with another value of one input."""
        return self.forward({**values, place: x})

    def aside(self, values: dict[int, Tensor]) -> dict[int, Tensor]:
        """Inputs a little moved, away from places where slopes jump."""
        generator, far = torch.Generator().manual_seed(17), max(2.0**-6, ASIDE * next(steps(self.step)))
        return {
            place: (x.double() + far * torch.rand(x.shape, generator=generator, dtype=torch.float64).to(x.device)
                    * signs_of(x, generator)).to(x.dtype)
            for place, x in values.items()
        }  # fmt: skip


class Wide(Way):
    """In float64, every operation."""

    wide, step = True, 2.0**-53

    def forward(self, values: dict[int, Tensor]) -> list[Tensor | None]:
        with Widened(self.drawn):
            return self.applied.forward({place: copy(one) for place, one in values.items()}, wide=True)

    def backward(self, values: dict[int, Tensor]) -> list[Tensor]:
        with Widened(self.drawn):
            return self.applied.backward(values, self.applied.gradients, wide=True)

    def scattered(self, values: dict[int, Tensor]) -> Iterator[list[Tensor]]:
        for seed in range(DRAWS):
            noise = Rounded(self.unit, seed, self.drawn)
            near = {place: noise.rounded(one) for place, one in values.items()}
            gradients = [None if one is None else noise.rounded(wider(one)) for one in self.applied.gradients]
            with noise:
                yield self.applied.backward(near, gradients, wide=True)

    def bounds_of(self, values: dict[int, Tensor]) -> Iterator[list[Tensor]]:
        yield from ()

    def given(self, tensor: Tensor) -> Tensor:
        return wider(tensor)

    def holds_for(self, results: Gradients) -> bool:
        found = self.forward({place: wider(self.applied.leaves[place]) for place in self.applied.owed})
        pairs = [(a, b) for a, b in zip(found, results, strict=True) if a is not None and b is not None]
        self.forward_off = max((apart_by(a, b) for a, b in pairs), default=0.0)
        return self.forward_off <= SAME


class Own(Way):
    """In its own format: of kernels that know no other."""

    wide = False

    def __init__(self, applied: Applied, unit: float, drawn: Sequence[torch.dtype]) -> None:
        super().__init__(applied, unit, drawn)
        self.step = unit

    def forward(self, values: dict[int, Tensor]) -> list[Tensor | None]:
        return self.applied.forward({place: copy(one) for place, one in values.items()}, wide=False)

    def backward(self, values: dict[int, Tensor]) -> list[Tensor]:
        return self.applied.backward(values, self.applied.gradients, wide=False)

    def scattered(self, values: dict[int, Tensor]) -> Iterator[list[Tensor]]:
        for seed in range(DRAWS):
            noise = Rounded(2 * self.unit, seed)
            near = {place: noise.rounded(one) for place, one in values.items()}
            gradients = [None if one is None else noise.rounded(one) for one in self.applied.gradients]
            yield self.applied.backward(near, gradients, wide=False)

    bounds_of = scattered

    def given(self, tensor: Tensor) -> Tensor:
        return tensor

    def holds_for(self, results: Gradients) -> bool:
        return True
