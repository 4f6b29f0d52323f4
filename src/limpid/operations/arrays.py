"""PyTorch's tensors as NumPy's arrays, in their own format or in float64."""

from __future__ import annotations

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
PLAIN = (Tensor, torch.nn.Parameter, torch.nn.Buffer)


class Unreadable(Exception):
    """A tensor that is no plain array: sparse, quantised, without numbers, of another process. Says which."""


def raw(tensor: Tensor) -> Raw:
    """The numbers of a tensor as they are; on the processor nothing is copied.

    Raises  Unreadable
    """
    _must_be_plain(tensor)
    with _disable_current_modes():  # this is no part of the step
        tensor = tensor.detach()
        if tensor._is_zerotensor():
            tensor = torch.zeros_like(tensor)
        tensor = tensor.cpu().resolve_conj().resolve_neg()
        if tensor.dtype not in OWN:
            return tensor.numpy()
        whole, own = OWN[tensor.dtype]
        return tensor.view(whole).numpy().view(own)


def address(tensor: Tensor) -> int:
    """Where the memory begins that a tensor shares with its views.

    Raises  Unreadable
    """
    _must_be_plain(tensor)
    return tensor.untyped_storage().data_ptr()


def storage(tensor: Tensor) -> Tensor:
    """All of the memory that it shares with its views, in a row.

    Raises  Unreadable
    """
    _must_be_plain(tensor)
    with _disable_current_modes():  # this is no part of the step
        count = tensor.untyped_storage().nbytes() // tensor.element_size()
        return tensor.detach().as_strided((count,), (1,), 0)


def _must_be_plain(tensor: Tensor) -> None:
    form = str(tensor.dtype).removeprefix("torch.")
    if type(tensor) not in PLAIN:
        raise Unreadable(f"a {type(tensor).__name__} of {form}")
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise Unreadable(f"a tensor of {form} inside a transform of torch.func")
    if tensor.layout != torch.strided:
        raise Unreadable(f"a {str(tensor.layout).removeprefix('torch.')} tensor of {form}")
    if tensor.is_meta:
        raise Unreadable(f"a meta tensor of {form}, without numbers")
    if tensor.is_quantized:
        raise Unreadable(f"a quantised tensor of {form}")


def is_float(array: Raw) -> bool:
    """Whether it is of a format of fractions, complex ones too: those that NumPy has not are of kind V."""
    return array.dtype.kind in "fVc"


def exact(array: Raw) -> Raw:
    """In float64, or pairs of it, where it is of fractions."""
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    return array.astype(np.float64) if is_float(array) else array


def parts(array: Raw) -> Raw:
    """Real numbers: of complex ones both parts, along a last axis."""
    return np.stack([array.real, array.imag], -1) if array.dtype.kind == "c" else array
