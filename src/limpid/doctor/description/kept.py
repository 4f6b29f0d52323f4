"""Whether weights stay as an update leaves them until the next one begins with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn.parameter import is_lazy

from limpid.doctor.description.words import number
from limpid.doctor.devices import together
from limpid.doctor.weights import sample

if TYPE_CHECKING:
    from limpid.doctor.watched import Watched

TENSORS, ELEMENTS = 16, 64
ROUNDING = 1e-6
"""Relative change that taking an average off again may leave in float32."""


@dataclass
class Looks:
    """Tensors as they were left, held against what they are later."""

    kept: list[tuple[str, Tensor, Tensor]] = field(default_factory=list)  # name, tensor, what some entries were
    looks: int = 0
    changed: int = 0
    most: tuple[float, str] = (0.0, "")  # the largest change, relative, and of which tensor

    def left(self, tensors: Sequence[tuple[str, Tensor]]) -> None:
        """Keep some entries of up to 16 tensors, spread evenly."""
        chosen = tensors[:: max(1, -(-len(tensors) // TENSORS))]
        values = together([sample(tensor, ELEMENTS) for _, tensor in chosen])
        self.kept = [(name, t, value.clone()) for (name, t), value in zip(chosen, values, strict=True)]

    def found(self) -> None:
        """Hold what was kept against what is there."""
        kept, self.kept = self.kept, []
        if not kept:
            return
        now = together([sample(tensor, ELEMENTS) for _, tensor, _ in kept])
        changes = [(_change(new, old), name) for new, (name, _, old) in zip(now, kept, strict=True)]
        self.looks += 1
        self.changed += max(changes)[0] > ROUNDING
        self.most = max(self.most, *changes)

    def told(self, whose: str) -> Iterator[str]:
        if self.changed:
            yield (
                f"{whose} were other than the last update had left them before {number(self.changed)} of "
                f"{number(self.looks)} updates that were looked at, by up to {self.most[0]:.2g} of their size "
                f"({self.most[1]})"
            )


@dataclass
class KeptWeights:
    """What an optimizer holds: the model's weights, until the next pass; others, until the next update."""

    weights: Looks = field(default_factory=Looks)
    others: Looks = field(default_factory=Looks)

    def updated(self, watched: Watched) -> None:
        """After an update that is looked at."""
        names = watched.info.names
        held = [p for p in watched.held if not is_lazy(p) and p.numel() and not p.is_meta]
        self.weights.left([(names[id(p)], p) for p in held if id(p) in names])
        self.others.left([(f"number {i}", p) for i, p in enumerate(held) if id(p) not in names])

    def told(self) -> Iterator[str]:
        """In sentences."""
        yield from self.weights.told("weights")
        yield from self.others.told("tensors of the optimizer outside of the model")


def _change(now: Tensor, before: Tensor) -> float:
    moved, size = float((now.float() - before.float()).norm()), float(before.float().norm())
    return moved / size if size else moved
