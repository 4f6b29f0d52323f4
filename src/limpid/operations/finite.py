"""Where numbers end: the calls that made infinities, or no number at all, of what had none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from limpid.operations.arrays import is_float


def ended(given: dict[str, Any], results: list[Tensor | None]) -> str:
    """`nan` or `inf`, where results hold some and no argument does; else nothing.

    given  arguments as arrays, as they were before the call
    """
    odd = [one for one in results if one is not None and not _is_finite(one)]
    if not odd:
        return ""
    with _disable_current_modes():
        has_nan = any(bool(one.isnan().any()) for one in odd)
    inputs = [one.astype(np.float32) for one in _arrays(given) if is_float(one) and one.dtype.kind != "c"]
    if any(np.isnan(one).any() for one in inputs):
        return ""
    if has_nan:
        return "nan"
    return "" if any(np.isinf(one).any() for one in inputs) else "inf"


def _is_finite(result: Tensor) -> bool:
    if type(result) is not Tensor or not result.is_floating_point() or result.layout != torch.strided or result.is_meta:
        return True
    with _disable_current_modes():  # this is no part of the step
        return bool(torch.isfinite(result.detach().float() if result.element_size() == 1 else result.detach()).all())


def _arrays(value: Any) -> Iterator[Any]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _arrays(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _arrays(one)
