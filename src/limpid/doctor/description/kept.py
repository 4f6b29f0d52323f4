"""Whether weights stay as an update leaves them until the next one begins, and of which step those in use are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from limpid.doctor.description.entries import CLOSER, Entries
from limpid.doctor.description.outside import ROUNDING, OutsideChanges
from limpid.doctor.description.versions import Versions
from limpid.doctor.description.words import listed, number, patterns, share, span
from limpid.doctor.devices import together
from limpid.doctor.weights import sample

if TYPE_CHECKING:
    from limpid.doctor.description.course import Course
    from limpid.doctor.watched import Watched

TENSORS, ELEMENTS = 16, 64


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
    """The model's weights, from an update until the next pass; what else an optimizer holds, until the next update.

    On the host a reading of some entries takes a few microseconds, and is made at every update; elsewhere where a step
    is looked at.
    """

    changes: OutsideChanges = field(default_factory=OutsideChanges)
    versions: Versions = field(default_factory=Versions)
    others: Looks = field(default_factory=Looks)
    entries: Entries | None = None
    _left: tuple[Tensor, int] | None = None  # the last reading, and the step whose update had been made

    def updated(self, watched: Watched, step: int, looks: bool) -> None:
        """After an update."""
        if self.entries is None and not watched.info.shapeless:
            self.entries = Entries(watched.info)
        self._left = None
        if self.entries is not None and self.entries.tensors and (looks or self.entries.on_host):
            now = self.entries.now()
            self._left = now, step
            self.versions.left(now, step)
            self.changes.left(watched, self.entries)
        if looks:
            names = watched.info.names
            held = [p for p in watched.held if not is_lazy(p) and p.numel() and not p.is_meta]
            self.others.left([(f"number {i}", p) for i, p in enumerate(held) if id(p) not in names])

    def begins(self, watched: Watched) -> None:
        """Before the first backward pass of a step."""
        left, self._left = self._left, None
        if left is not None and self.entries is not None:
            now = self.entries.now()
            known = torch.equal(left[0], now) or self.versions.goes_on(now, left[1])
            self.changes.found(watched, self.entries, left[0], now, left[1], known)

    def evaluates(self) -> None:
        """Before a pass without gradients."""
        if self._left is not None and self.entries is not None and self.versions.asks(self._left[1]):
            self.versions.judged(self.entries.now(), self._left[1])

    def told(self, course: Course) -> Iterator[str]:
        """In sentences."""
        if self.entries is not None:
            yield from self.changes.told(self.entries, course)
            now = self.entries.now() if self.entries.on_host else None
            yield from self.versions.told(None if self.changes.are_usual else now)
            yield from () if now is None else _few(self.entries)
        yield from self.others.told("tensors of the optimizer outside of the model")


def _few(entries: Entries) -> Iterator[str]:
    """Of matrices with zeros or few different numbers."""
    zeros, different = entries.zeros(), entries.few_values()
    if zeros:
        least, most = share(min(zeros.values())), share(max(zeros.values()))
        some = least if least == most else f"{least} to {most}"
        yield f"exactly 0 now: {some} of the entries of {listed(patterns(zeros, entries.names))}"
    if different:
        counts = span(list(different.values()))
        names = listed(patterns(different, entries.names))
        yield f"{names} hold {counts} different numbers beside 0 now, of {number(CLOSER)} entries or fewer"


def _change(now: Tensor, before: Tensor) -> float:
    moved, size = float((now.float() - before.float()).norm()), float(before.float().norm())
    return moved / size if size else moved
