"""Weights that were equal when training began, such as copies of one table: whether they are still."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn.parameter import is_lazy

from limpid.doctor.description.words import listed, number, patterns
from limpid.doctor.devices import together
from limpid.doctor.weights import sample

if TYPE_CHECKING:
    from limpid.doctor.model_info import ModelInfo

ELEMENTS, FINER = 64, 4096
"""Entries by which tensors are found equal at first, and by which their distance is measured."""
FEWEST = 8
"""Entries of a tensor, and different numbers among those looked at, below which equality is chance."""
TOLD = 3
"""Groups of equal tensors that are told one by one."""


@dataclass
class Alike:
    """Groups of a model's tensors that began with the same numbers and are not one tensor."""

    groups: list[list[tuple[str, weakref.ref[Tensor]]]] | None = None

    def begins(self, info: ModelInfo) -> None:
        """Before the first update."""
        if self.groups is not None:
            return
        self.groups = []
        if info.sharded:
            return
        usable = {n: p for n, p in info.parameters.items() if not is_lazy(p) and not p.is_meta and p.numel() >= FEWEST}
        by_shape: dict[tuple[int, ...], list[str]] = {}
        for name, p in usable.items():
            if p.is_floating_point():
                by_shape.setdefault(tuple(p.shape), []).append(name)
        names = [name for same in by_shape.values() if len(same) > 1 for name in same]
        found: dict[tuple[object, ...], list[str]] = {}
        for name, values in zip(names, together([sample(usable[n], ELEMENTS) for n in names]), strict=True):
            numbers = tuple(values.tolist())
            if len(set(numbers)) >= FEWEST:
                found.setdefault((tuple(usable[name].shape), numbers), []).append(name)
        self.groups = [[(n, weakref.ref(usable[n])) for n in same] for same in found.values() if len(same) > 1]

    def told(self) -> Iterator[str]:
        """In sentences; many groups, as of layers that were copied from one, in one."""
        groups = self.groups or []
        apart = [(names, how) for names, how in map(_apart, groups) if how is not None]
        for names, how in apart[:TOLD] if len(apart) <= TOLD else ():
            now = f"are {how:.2g} of their size apart now" if how else "still are"
            yield f"{listed(names)} were equal when training began and {now}"
        if len(apart) > TOLD:
            equal = sum(not how for _, how in apart)
            names = patterns(name for same, _ in apart for name in same)
            yield (
                f"{number(len(apart))} groups of tensors were equal when training began, {number(equal)} of them still "
                f"are: {listed(names)}"
            )


def _apart(group: list[tuple[str, weakref.ref[Tensor]]]) -> tuple[list[str], float | None]:
    """The largest distance of one of a group from its first, over the first's size; None where one is gone."""
    held = [tensor() for _, tensor in group]
    kept = [one for one in held if one is not None]
    if len(kept) < len(held):
        return [], None
    first, *others = (one.float() for one in together([sample(tensor, FINER) for tensor in kept]))
    size = max(float(first.norm()), 1e-30)
    return [name for name, _ in group], max(float((one - first).norm()) / size for one in others)
