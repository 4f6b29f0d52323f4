"""x Wᵀ + b in bfloat16 of float32 masters: limpid's own kernel, native/packed.cpp, rounds W straight into the layout in
which oneDNN's products read it; never keeps a rounded W."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from limpid.kernel_limits import is_packed, packed_entries
from limpid.model.kernels.native_call import Call, has_kernels, kernels, place, size
from limpid.model.kernels.unseen import is_unseen


class Packed(NamedTuple):
    """Room for a matrix in oneDNN's layout."""

    matrix: Tensor
    """What its products take; it says where its entries lie by no method of its own."""
    address: int


class _Rooms(threading.local):
    """One for each size of matrix, since it is read as soon as it is written."""

    def __init__(self) -> None:
        self.by_size: dict[tuple[int, int], Packed | None] = {}


ROOMS = _Rooms()


def serves(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel is there for the product of x and this matrix, and for its gradients."""
    return (
        (torch.compiler.is_compiling() or is_unseen(x))
        and type(weight) in (Tensor, nn.Parameter)
        and weight.dtype == torch.float32
        and weight.is_contiguous()
        and is_packed(x.numel() // max(1, x.shape[-1]), *weight.shape)
        and _has_rooms(x.device.type, x.dtype, *weight.shape)
    )


def native_product(
    x: Float[Tensor, "... d_in"], weight: Float[Tensor, "d_out d_in"], bias: Float[Tensor, " d_out"] | None
) -> Float[Tensor, "... d_out"]:
    """x Wᵀ + b in the format of x."""
    y: Tensor = NativeProduct.apply(x, weight, bias)
    return y


def held_bytes() -> int:
    """What this thread's rooms take."""
    rooms = [room for room in ROOMS.by_size.values() if room is not None]
    return sum(int(torch.ops.mkldnn._nbytes(room.matrix)) for room in rooms)


class NativeProduct(torch.autograd.Function):
    """x̄ = ȳ W, W̄ = ȳᵀ x, b̄ = Σ ȳ."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        y: Tensor = FORWARD(x, weight, bias)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, y_bar: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x, *learned = ctx.needs_input_grad
        x_bar = BACKWARD(y_bar, weight) if of_x else None
        return x_bar, *learned_gradients(y_bar, x, weight.dtype, *learned)


def learned_gradients(
    y_bar: Float[Tensor, "... d_out"], x: Float[Tensor, "... d_in"], dtype: torch.dtype, of_weight: bool, of_bias: bool
) -> tuple[Float[Tensor, "d_out d_in"] | None, Float[Tensor, " d_out"] | None]:
    """ȳᵀ x and Σ ȳ in this format, where they are asked for."""
    bars = y_bar.flatten(0, -2)
    return (
        (bars.T @ x.flatten(0, -2)).to(dtype) if of_weight else None,
        bars.sum(0).to(dtype) if of_bias else None,
    )


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    packed = _filled("pack_rows", weight, tuple(weight.shape))
    return _product(x, packed, None if bias is None else bias.to(x.dtype))


def _backward(y_bar: Tensor, weight: Tensor) -> Tensor:
    return _product(y_bar, _filled("pack_columns", weight, tuple(reversed(weight.shape))), None)


def _product(x: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x.contiguous(), packed.matrix, bias, "none", [], "")
    return y


def _filled(kernel: str, matrix: Tensor, shape: tuple[int, ...]) -> Packed:
    room = _room(*shape)
    if room is None:
        raise RuntimeError("oneDNN's layout is not the one that is written here: ask `serves` first")
    _write(kernel, matrix, room.address)
    return room


def _write(kernel: str, matrix: Tensor, address: int) -> None:
    counts = map(size, matrix.shape)
    getattr(kernels(), kernel)(place(matrix), ctypes.c_void_p(address), *counts, torch.get_num_threads())


def _has_rooms(device: str, dtype: torch.dtype, d_out: int, d_in: int) -> bool:
    """Whether products with a matrix of this size, and their gradients, have room for it in oneDNN's layout."""
    return has_kernels(device, dtype) and None not in (_room(d_out, d_in), _room(d_in, d_out))


_has_rooms._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _room(outputs: int, inputs: int) -> Packed | None:
    """Room for a matrix of this size; None where what the kernel writes is not what oneDNN does."""
    found = ROOMS.by_size
    if (outputs, inputs) not in found:
        found[outputs, inputs] = _made(outputs, inputs)
    return found[outputs, inputs]


def _made(outputs: int, inputs: int) -> Packed | None:
    """Room, filled by oneDNN and compared with what the kernel writes."""
    onednn = torch.ops.mkldnn
    needed = ("_linear_pointwise", "_reorder_linear_weight", "_nbytes", "data_ptr")
    if not torch.backends.mkldnn.is_available() or not all(hasattr(onednn, name) for name in needed):
        return None
    matrix = torch.arange(outputs * inputs, dtype=torch.float32).view(outputs, inputs).remainder_(251)
    theirs = onednn._reorder_linear_weight(matrix.to(torch.bfloat16))
    ours = torch.zeros(packed_entries(outputs, inputs), dtype=torch.bfloat16)
    if onednn._nbytes(theirs) != ours.nbytes:
        return None
    _write("pack_rows", matrix, ours.data_ptr())
    address = onednn.data_ptr(theirs)
    same = ctypes.string_at(address, ours.nbytes) == ctypes.string_at(ours.data_ptr(), ours.nbytes)
    return Packed(theirs, address) if same else None


def _forward_shapes(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def _backward_shapes(y_bar: Tensor, weight: Tensor) -> Tensor:
    return y_bar.new_empty(*y_bar.shape[:-1], weight.shape[1])


FORWARD = Call("packed_product", _forward, _forward_shapes)
BACKWARD = Call("packed_product_backward", _backward, _backward_shapes)
