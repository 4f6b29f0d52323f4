"""PyTorch's operations by name, and the tensors among what they are given and give."""

from __future__ import annotations

from typing import Any

from torch import Tensor

DRAWN = {
    "bernoulli", "rand", "randn", "rand_like", "randn_like", "randint", "randint_like", "randperm", "uniform", "normal",
    "exponential", "multinomial", "random", "geometric", "log_normal", "cauchy", "empty", "empty_like",
    "empty_strided", "new_empty", "new_empty_strided", "resize", "set",
}  # fmt: skip
"""Random numbers, and memory that is not written yet."""


def short_name(operation: Any) -> str:
    """`add` of aten::add_.Tensor."""
    name = operation._schema.name.partition("::")[2]
    return name if name.endswith("__") else name.rstrip("_")


def outputs_of(made: Any) -> list[Tensor | None]:
    """Tensors that came out, None where something else did."""
    several = made if isinstance(made, list | tuple) else [made]
    return [one if isinstance(one, Tensor) else None for one in several]


def mapped(value: Any, change: Any) -> Any:
    """A value with its tensors changed, in lists too."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return [mapped(one, change) for one in value]
    return value
