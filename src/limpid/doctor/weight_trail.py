"""A few weights after each update: whether training goes on from them, and what is evaluated lies among them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from limpid.doctor.devices import joined, together
from limpid.doctor.rules.weights_over_time import WEIGHTS_PUT_BACK
from limpid.doctor.weights import sample

FEW = 8
"""Elements of a tensor that are kept from one step to the next."""
MOST = 4096
"""Steps whose first weights are remembered, at about 200 bytes each."""

MARGIN = 0.02
"""By how much a number must lie beyond its past to lie outside of it: formats of eight bits round by less."""

ROUNDINGS = 2.0
"""Of float32: one where a number is added to a weight, one where it is taken off."""


class Start(NamedTuple):
    """The step that these weights began, and the count of steps that the optimizer had then."""

    step: int
    counted: float


class Outside(NamedTuple):
    """Evaluated weights that lie outside of all that they were in training."""

    shrunk: float  # share of the elements that are nearer to 0 than they ever were
    grown: float  # share of those that are further from it
    ratio: float  # median of what is evaluated over what was trained last
    elements: int  # that kept their sign in training


class WeightTrail:
    """A few elements of three tensors, as updates leave them and as passes find them."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.evaluated = False  # whether a pass without gradients has come since the last update
        self.outside: Outside | None = None  # of the first such pass
        self.evaluated_at: Tensor | None = None  # the weights of that pass, element by element
        self.kept: Tensor | None = None  # as the last update left them; None once the next step has begun
        self._low: Tensor | None = None  # least and largest so far, element by element
        self._high: Tensor | None = None
        self._started: dict[bytes, Start] = {}
        self._first = sys.maxsize  # the first step that was seen
        self._goes_on = False  # whether the run began elsewhere, with weights that nobody saw here

    def _now(self) -> Tensor:
        return joined([sample(p, FEW).float() for p in self.parameters])

    def updated(self) -> None:
        """After an update."""
        self.kept, self.evaluated, self.outside, self.evaluated_at = self._now(), False, None, None
        self._low = self.kept if self._low is None else torch.minimum(self._low, self.kept)
        self._high = self.kept if self._high is None else torch.maximum(self._high, self.kept)

    def evaluates(self) -> None:
        """Before a pass without gradients."""
        if not self.evaluated and self.kept is not None and self._low is not None and self._high is not None:
            now = self.evaluated_at = self._now()
            if not self._goes_on and not torch.equal(now, self.kept):
                self.outside = _outside(now, self.kept, self._low, self._high)
        self.evaluated = True

    def has_moved(self) -> bool:
        """Whether weights are not those that the last update left."""
        return self.kept is not None and not torch.equal(self._now(), self.kept)

    def begins(self, step: int, count: float, look: bool) -> tuple[bool | None, Start | None]:
        """Before the first pass of a step: whether weights moved since the update, and the step that they began before.

        None where it is not known, or they never began one.
        """
        moved, before = None, None
        if self.kept is None and self._low is None:
            self._low = self._high = self._now()
            self._goes_on = count > 0
        now = self._now()
        now, kept = together([now, now if self.kept is None else self.kept])  # one look at a device
        if self.kept is not None and (look or self.evaluated):
            moved = self._has_moved(now, kept)
        if len(now):
            key = now.numpy().tobytes()
            away = self.kept is not None and not torch.equal(now, kept)
            before = self._started.get(key) if away else None
            if before is not None and before.step > self._first and _at_bounds(now[now != kept]):
                before = None
            if len(self._started) < MOST:
                self._first = min(self._first, step)
                self._started.setdefault(key, Start(step, count))
        self.kept = None
        return moved, before

    def _has_moved(self, now: Tensor, kept: Tensor) -> bool:
        """Whether weights differ by more than what was added for an evaluation and taken off again leaves."""
        seen = None if self.evaluated_at is None else self.evaluated_at.to(kept.device)
        largest = kept.abs() if seen is None else torch.maximum(kept.abs(), seen.abs())
        return bool(((now - kept).abs() > ROUNDINGS * torch.finfo(torch.float32).eps * largest).any())


def _at_bounds(moved: Tensor) -> bool:
    """Whether what changed since the update is few elements, or of few sizes: clipped to a bound, or rounded."""
    return len(moved) < WEIGHTS_PUT_BACK["few"] or 2 * len(moved.abs().unique()) <= len(moved)


def _outside(now: Tensor, last: Tensor, low: Tensor, high: Tensor) -> Outside | None:
    """Which elements lie beyond their own past, of those that kept their sign: no average of the past does."""
    kept = (low * high > 0) & (now * last > 0)
    if not bool(kept.any()):
        return None
    now, last, low, high = (one[kept] for one in (now, last, low, high))
    least, most = torch.minimum(low.abs(), high.abs()), torch.maximum(low.abs(), high.abs())
    shrunk, grown = (
        float((now.abs() < (1 - MARGIN) * least).double().mean()),
        float((now.abs() > (1 + MARGIN) * most).double().mean()),
    )
    return Outside(shrunk, grown, float((now / last).median()), int(kept.sum()))


def steps_counted(optimizers: list[Any]) -> float:
    """Steps that an optimizer's own state counts; 1 of one that remembers without counting, 0 of one that does not."""
    for optimizer in optimizers:
        for state in getattr(optimizer, "state", {}).values():
            count = state.get("step") if isinstance(state, dict) else None
            if count is not None:
                return float(count)
            return float(bool(state))
    return 0.0
