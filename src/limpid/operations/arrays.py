"""PyTorch's tensors as NumPy's arrays, in their own format or in float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from limpid.operations.exact.movement import Raw

OWN = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.int8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.int8, ml_dtypes.float8_e5m2),
}
"""Formats that NumPy has not: whole numbers of the same size, and the format by another name."""


class Unreadable(Exception):
    """A tensor that is no plain array: sparse, complex, quantised, of another process."""


def raw(tensor: Tensor) -> Raw:
    """The numbers of a tensor as they are; on the processor nothing is copied.

    Raises  Unreadable
    """
    if tensor._is_zerotensor():
        return np.zeros(tensor.shape, np.float32)
    if tensor.layout != torch.strided or tensor.is_complex() or tensor.is_quantized or type(tensor) not in PLAIN:
        raise Unreadable(f"{type(tensor).__name__}, {tensor.dtype}, {tensor.layout}")
    with _disable_current_modes():  # this is no part of the step
        tensor = tensor.detach().cpu()
        if tensor.dtype not in OWN:
            return tensor.numpy()
        whole, own = OWN[tensor.dtype]
        return tensor.view(whole).numpy().view(own)


PLAIN = (Tensor, torch.nn.Parameter, torch.nn.Buffer)


def is_float(array: Raw) -> bool:
    """Whether it is of a format of fractions: those that NumPy has not are of kind V."""
    return array.dtype.kind in "fV"


def exact(array: Raw) -> Raw:
    """In float64, where it is of fractions."""
    return array.astype(np.float64) if is_float(array) else array


def mapped(value: Any, change: Any) -> Any:
    """A value with its tensors changed, in lists too."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return [mapped(one, change) for one in value]
    return value
