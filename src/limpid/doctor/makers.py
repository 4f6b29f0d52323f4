"""What made a tensor: the last operation of its graph that is more than a look at the same numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

VIEWS = (
    *("View", "UnsafeView", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Permute", "Select", "Slice", "ToCopy"),
    *("Alias", "Clone", "T"),
)
SCALES = ("Mul", "Div")
LINEAR = ("Addmm", "Mm", "Bmm", "Baddbmm", "Convolution", "MkldnnConvolution", "Linear", "MkldnnLinear")
"""Operations that cannot give normalised numbers: sums of products with weights."""
FAR = 8
"""Views that are looked through."""


def maker(value: Tensor, known: Sequence[str], through: Sequence[str] = VIEWS) -> str:
    """Which of these operations the tensor came from, perhaps in another shape; else nothing."""
    return next((name for name, _ in path(value, through) if name in known), "")


def path(value: Tensor, through: Sequence[str] = VIEWS) -> Iterator[tuple[str, Any]]:
    """Name and node of the operations that a tensor came from, as far as each but the last is one of `through`."""
    node = value.grad_fn
    for _ in range(FAR):
        if node is None:
            return
        name = type(node).__name__.removesuffix("0").removesuffix("1").removesuffix("Backward")
        yield name, node
        if name not in through or not node.next_functions:
            return
        node = node.next_functions[0][0]


def of_a_linear_map(value: Tensor) -> bool:
    """Whether numbers come out of a linear layer or a convolution, perhaps divided by a temperature."""
    return bool(maker(value, LINEAR, (*VIEWS, *SCALES)))
