"""Distances from sketches alone, and in which way one tensor is another."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from limpid.doctor.baseline.difference import Difference
from limpid.doctor.baseline.sketch import PACKED, ROOM, SUMS, Sketch, sketch, step_between


def of(tensor: Tensor) -> Sketch:
    kept = sketch(tensor)
    assert kept is not None
    return kept


def test_squared_distances_are_right_in_the_mean_and_scatter_as_said() -> None:
    generator = torch.Generator().manual_seed(0)
    ratios = []
    for _ in range(400):
        x, d = torch.randn(2, 40, 30, generator=generator, dtype=torch.float64)
        estimate = of(x).distance(of(x + d)) * max(float(x.norm()), float((x + d).norm()))
        ratios.append((estimate / float(d.norm())) ** 2)
    kept = torch.tensor(ratios)
    assert abs(float(kept.mean()) - 1) < 4 * math.sqrt(2 / SUMS / len(ratios))
    assert float(kept.std()) < 1.2 * math.sqrt(2 / SUMS)


def test_packing_keeps_distances() -> None:
    kept = of(torch.randn(8, 17, 32))
    assert kept.distance(Sketch.unpacked(kept.packed())) < PACKED


def test_of_large_tensors_rows_are_read_that_are_spread() -> None:
    large = torch.randn(64, 128, 96)
    assert ROOM / 2 < of(large).count <= 2 * ROOM
    step = step_between((64, 128), 96)
    assert math.gcd(step, 64) == math.gcd(step, 128) == 1


X = torch.randn(8, 17, 32, generator=torch.Generator().manual_seed(1))


def with_part(index: tuple[object, ...], value: float) -> Tensor:
    changed = X.clone()
    changed[index] = value
    return changed


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (2 * X, "2 times what it was"),
        (-X, "the negative"),
        (X + 0.5, "plus 0.5"),
        (3 * X - 1, "3 times what it was plus -1"),
        (0 * X, "all zeros"),
        (X.flip(1), "the same numbers in other places"),
        (X[:, :16], "shape 8×16×32, then 8×17×32"),
        (with_part((slice(2, 4),), 1.0), "in rows 2 to 3 alone"),
        (with_part((..., slice(4, 6)), 0.0), "in columns 4 to 5 alone, 6% zeros, then 0%"),
        (X / 0, "not finite"),
    ],
)
def test_ways(now: Tensor, words: str) -> None:
    difference = Difference(of(X), of(now), 1e-6)
    assert difference.exists
    assert words in str(difference)


def test_rounding_is_no_difference() -> None:
    near = X * (1 + 1e-7 * torch.randn_like(X))
    assert not Difference(of(X), of(near), 1e-6).exists


def test_one_number_is_told_as_it_is() -> None:
    assert str(Difference(of(torch.tensor(2.0)), of(torch.tensor(3.0)), 1e-6)) == "3, then 2"
