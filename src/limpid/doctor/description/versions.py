"""Of which step the weights are that are evaluated, gone on with, and there at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from limpid.doctor.description.words import counted, listed, number
from limpid.doctor.devices import on_host

MOST = 4096
"""Updates whose weights are known again, at 100 bytes each."""
TOLD = 8
"""Evaluations, and returns to earlier weights, that are told one by one."""


@dataclass
class Versions:
    """By their bytes: which update left some entries of all weights so."""

    last: int = 0  # the step of the last update
    updates: int = 0
    back: list[tuple[int, int]] = field(default_factory=list)  # after which step weights were put back to which
    judged_as: Counter[str] = field(default_factory=Counter)  # what evaluated weights were
    losses: dict[str, dict[int, tuple[Tensor, int]]] = field(default_factory=dict)  # sums and counts of means that
    # loss functions returned without gradients, by function and by the step before them
    _known: dict[int, int] = field(default_factory=dict)  # step, by a hash of the entries
    _judged: int = -1

    def left(self, now: Tensor, step: int) -> None:
        """An update has been made."""
        self.last, self.updates = step, self.updates + 1
        if on_host(now) and len(self._known) < MOST:
            self._known[_hash(now)] = step

    def goes_on(self, now: Tensor, step: int) -> bool:
        """A step begins with weights that are not those that `step` left; whether an earlier one left them."""
        before = self._of(now)
        if before is not None:
            self.back.append((step, before))
        return before is not None

    def asks(self, step: int) -> bool:
        """Whether the weights of an evaluation after this step have not been looked at."""
        return step != self._judged

    def judged(self, now: Tensor, step: int) -> None:
        """The first pass without gradients after a step."""
        self._judged = step
        if on_host(now):
            before = self._of(now)
            self.judged_as[
                "as the last update left them" if before == step
                else "that no update left so" if before is None
                else f"those after step {number(before)}"
            ] += 1  # fmt: skip

    def loss(self, name: str, value: Tensor) -> None:
        """A loss function has returned this without gradients."""
        kept = self.losses.setdefault(name, {})
        if len(kept) < MOST or self.last in kept:
            total, count = kept.get(self.last, (0.0, 0))
            kept[self.last] = value.detach().float().mean() + total, count + 1

    def told(self, now: Tensor | None) -> Iterator[str]:
        """In sentences; nothing of weights that are always those of the last update."""
        if self.judged_as and set(self.judged_as) != {"as the last update left them"}:
            said = ", ".join(f"{kind} {counted(count, 'time')}" for kind, count in self.judged_as.most_common(4))
            yield f"weights in evaluations: {said}"
        for name, kept in self.losses.items():
            if 2 * len(kept) <= self.updates:  # at every step it is a part of the loss, or what is logged
                yield from _means(name, kept)
        if self.back:
            said = listed([f"after step {number(a)} to those after step {number(b)}" for a, b in self.back])
            yield f"weights were put back: {said}"
        known = None if now is None else self._of(now)
        if now is not None and self.last and known != self.last and len(self._known) < MOST:
            which = "none that an update left" if known is None else f"those that step {number(known)} left"
            yield f"weights now are {which}; the last step, {number(self.last)}, left others"

    def _of(self, now: Tensor) -> int | None:
        return self._known.get(_hash(now)) if on_host(now) else None


def _means(name: str, kept: dict[int, tuple[Tensor, int]]) -> Iterator[str]:
    """Mean losses by evaluation, and which was least."""
    means = {step: float(total) / count for step, (total, count) in kept.items()}
    if len(means) > 1:
        steps = list(means)
        shown = steps if len(steps) <= TOLD else [*steps[: TOLD // 2], *steps[-TOLD // 2 :]]
        said = ", ".join(f"{means[step]:.4g} after step {number(step)}" for step in shown)
        best = min(means, key=lambda step: means[step])
        also = "" if best in shown and len(steps) <= TOLD else f" of {number(len(steps))}, {means[best]:.4g}"
        yield f"{name} without gradients, by evaluation: {said}; least after step {number(best)}{also}"


def _hash(now: Tensor) -> int:
    return hash(now.view(torch.uint8).numpy().tobytes())
