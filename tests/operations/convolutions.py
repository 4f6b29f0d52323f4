"""Whether PyTorch's own convolutions of bfloat16 round once, as sums in float32 do: not on every processor."""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

TERMS = 512
"""Roundings of float32 that a sum may take: twice those of the longest here, over two pictures of 16 × 16."""


@functools.cache
def rounds_once() -> bool:
    """Held against float64, without any of limpid; where they do not, a verdict that says so is right."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 8, 16, 16), (8, 8, 3, 3), (2, 8, 16, 16))
    given = [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]
    found, exact, sizes = (
        _gradients(*made) for made in (given, [one.double() for one in given], [one.double().abs() for one in given])
    )
    single, half = torch.finfo(torch.float32).eps, torch.finfo(torch.bfloat16).eps
    return all(
        bool(((mine.double() - true).abs() <= half / 2 * true.abs() + TERMS * single * size).all())
        for mine, true, size in zip(found, exact, sizes, strict=True)
    )


def _gradients(x: Tensor, weight: Tensor, given: Tensor) -> tuple[Tensor, ...]:
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    return torch.autograd.grad(F.conv2d(x, weight, padding=1), (x, weight), given)
