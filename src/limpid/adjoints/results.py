"""Results and directions held against others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from limpid.adjoints.adjoint import Along
from limpid.adjoints.directional import LUCK

Gradients = Sequence[Tensor | None]


def is_same(one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]], unit: float) -> bool:
    """Whether results are the same up to an order of summation that may change."""
    if len(one) != len(other):
        return False
    same = (abs(a - b) <= LUCK * unit * max(size, 1e-300) or a == b or a != a for (a, size), (b, _) in
            zip(one, other, strict=True))  # fmt: skip
    return all(same)


def towards(place: int, came: Tensor, expected: Tensor, bound: float) -> Along:
    """Both along their difference."""
    off = came.double() - expected.double()
    size = float(off.norm())
    there = float((expected.double() * off).sum()) / (size or 1.0)
    return Along(place, there + size, there, bound, float(expected.double().norm()))


def apart_by(one: Tensor, other: Tensor) -> float:
    """‖a - b‖ / ‖b‖ of what is finite."""
    off, size = (one.double() - other.double()).nan_to_num(0, 0, 0), other.double().nan_to_num(0, 0, 0)
    return float(off.norm()) / (float(size.norm()) or 1.0)


def is_told(one: Along) -> bool:
    return one.is_told or (one.given == 0 and one.expected == 0)


def wrong_of(found: Sequence[Along], inputs: int) -> list[Along]:
    """Directions of inputs that are apart in most of them."""
    wrong: list[Along] = []
    for number in range(inputs):
        own = [one for one in found if one.place == number]
        off = [one for one in own if one.is_apart]
        wrong += off if 2 * len(off) > len(own) else []
    return wrong


def worst_of(found: Sequence[Along]) -> Along | None:
    return max(found, key=lambda one: abs(one.given - one.expected) / (one.bound or 1), default=None)


def gives_back(results: Gradients, x: Tensor) -> bool:
    return any(one is not None and one.shape == x.shape and torch.equal(one, x) for one in results)


def hardly_differ(one: Gradients, other: Gradients, share: float = 0.99) -> bool:
    """Whether nearly all results, or a share of them, are the same to the bit."""
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    same, whole = sum(int((a == b).sum()) for a, b in pairs), sum(a.numel() for a, _ in pairs)
    return whole > 0 and same >= share * whole
