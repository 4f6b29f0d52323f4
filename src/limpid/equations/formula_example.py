"""What an example of a formula is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from limpid.maths import Formula


@dataclass(frozen=True)
class FormulaExample:
    """A formula, its inputs (floats are differentiated), its options, and PyTorch's way to the same value."""

    name: str
    formula: Formula[Any]
    inputs: tuple[Any, ...]
    twin: Callable[..., torch.Tensor]
    options: dict[str, Any] = field(default_factory=dict)
    distributions: bool = False
    """Whether inputs may only be moved so that their sums stay 1."""
