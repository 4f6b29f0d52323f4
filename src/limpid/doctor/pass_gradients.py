"""Gradients between the backward passes of one step: nobody may change them there, or passes count unequally."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from limpid.doctor.graph_leaves import reaches_any
from limpid.doctor.weights import sample

TENSORS, ELEMENTS = 16, 64
SAME = 1e-6
"""Relative difference of gradients that float32 rounds to."""
PARALLEL = 1e-3
"""1 less the cosine of gradients that are one but for a factor, in half precision too."""


class PassGradients:
    """Samples of gradients and weights at the borders of the backward passes of a step.

    What pass j added reaches the update times the product of all factors of the gaps after it.
    """

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        """`parameters` are what the optimizer trains; up to 16 of them are looked at."""
        usable = {name: p for name, p in parameters.items() if not is_lazy(p) and not p.is_meta and p.numel()}
        names = list(usable)[:: max(1, -(-len(usable) // TENSORS))]
        self.parameters = {name: usable[name] for name in names}
        self.passes = 0
        self.factors: list[Tensor] = []  # of each gap, (tensor,): what the gradients there were multiplied by
        self.weights_moved = False  # the passes were not made at one point
        self.used = False  # the update is made with what the last pass left, not with gradients made of several
        self.dropped: bool | None = None  # after the last pass some were set to 0, the others left; None if none were
        self.scaled: float | None = None  # what gradients are multiplied by after the last pass, if known
        self.turned: tuple[float, float] | None = None  # cosine of both and ratio of sizes, where they are not parallel
        self._left: list[Tensor] = []  # gradients after the last pass
        self._called_with: list[Tensor] = []  # and as the forward pass after it begins
        self._weights: list[Tensor] = []

    def called(self) -> None:
        """A forward pass begins."""
        self._called_with = self._gradients() if self._left else []

    def begins(self, loss: Any) -> None:
        """The backward pass of a loss is about to add to the gradients.

        Where its graph reaches no parameter, its forward pass may have added to them, as recorded kernels do it.
        """
        weights = [sample(p, ELEMENTS).clone() for p in self.parameters.values()]
        self.scaled, self.used = None, False
        if self._left:
            self.weights_moved |= any(not torch.equal(a, b) for a, b in zip(weights, self._weights, strict=True))
            factors = _factors(self._left, self._gradients())
            if self._called_with and not reaches_any(loss, {id(p) for p in self.parameters.values()}):
                factors = torch.where(factors.isnan(), _factors(self._left, self._called_with), factors)
            self.factors.append(factors)
        self._weights = weights

    def ended(self) -> None:
        """It has added to them."""
        self.passes += 1
        self._left = self._gradients()

    def shares(self) -> dict[str, float]:
        """Of each tensor that a pass had a gradient of, the least share in which any pass reaches the update."""
        if not self.factors:
            return {}
        least = torch.stack(self.factors).flip(0).cumprod(0).amin(0)
        return {name: share for name, share in zip(self.parameters, least.tolist(), strict=True) if share == share}

    def updating(self) -> None:
        """The update, or clipping, is about to use the gradients: those that the last pass left, but for one factor?"""
        if not self._left:
            return
        now = self._gradients()
        self.turned = _turned(self._left, now)
        if self.scaled is not None:
            return
        self.dropped = _dropped(self._left, now)
        factors = _factors(self._left, now)
        known = factors[~factors.isnan()]
        if known.numel() and float(known.max() - known.min()) <= SAME * float(known.abs().max()):
            self.scaled = float(known.mean())
        if self.factors:
            kept = [(a, b) for a, b in zip(self._left, now, strict=True) if bool(a.any())]
            cosines = [float(torch.cosine_similarity(a, b, dim=0)) for a, b in kept]
            self.used = bool(cosines) and min(cosines) > 1 - PARALLEL

    def _gradients(self) -> list[Tensor]:
        return [
            torch.zeros_like(sample(p, ELEMENTS), dtype=torch.float32)
            if p.grad is None or p.grad.is_sparse
            else sample(p.grad, ELEMENTS).float().clone()
            for p in self.parameters.values()
        ]


def _turned(before: Sequence[Tensor], after: Sequence[Tensor]) -> tuple[float, float] | None:
    """Cosine of all gradients before and after, and the ratio of their sizes; None where they are parallel."""
    a, b = torch.cat(list(before)).double(), torch.cat(list(after)).double()
    sizes = float(a.norm()), float(b.norm())
    if not all(sizes):
        return None
    cosine = float((a * b).sum()) / (sizes[0] * sizes[1])
    return None if cosine > 1 - PARALLEL else (cosine, sizes[1] / sizes[0])


def _dropped(before: Sequence[Tensor], after: Sequence[Tensor]) -> bool | None:
    """Whether elements that became 0 are all that changed, but for one factor; None where none became 0."""
    a, b = torch.cat(list(before)), torch.cat(list(after))
    kept = b != 0
    if not bool((a[~kept] != 0).any()):
        return None
    (factor,) = _factors([a[kept]], [b[kept]])
    return not bool(factor.isnan())


def _factors(before: Sequence[Tensor], after: Sequence[Tensor]) -> Tensor:
    """Of each tensor s in after = s before; nan where that does not hold, or there was nothing."""
    found = []
    for a, b in zip(before, after, strict=True):
        size = a.double().square().sum()
        s = (a.double() * b.double()).sum() / size
        left = (b.double() - s * a.double()).norm() / size.sqrt()
        found.append(torch.where(left <= SAME, s, torch.nan))
    return torch.stack(found).cpu()
