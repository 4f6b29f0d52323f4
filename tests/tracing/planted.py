"""Faults planted in fused kernels, and which quantities may be blamed for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

import limpid.model.attention
import limpid.model.kernels.attention
import limpid.model.mlp
import limpid.model.norm
from limpid import kernel_limits
from limpid.model.kernels import native_call
from limpid.model.kernels.attention import ShortAttention
from limpid.model.kernels.linear_cross_entropy import LinearCrossEntropy
from limpid.model.kernels.native_activation import NativeActivation
from limpid.model.kernels.native_attention import NativeAttention
from limpid.model.kernels.native_norm import NativeNorm
from limpid.model.kernels.native_product import NativeProduct
from limpid.model.kernels.native_rotation import NativeRotation
from limpid.model.kernels.rms_norm import FusedRMSNorm
from limpid.model.kernels.rotation import FusedRotation
from limpid.tracing.local import compare_operations
from limpid.tracing.record import Record
from limpid.tracing.verdict import Beyond

Fault = Callable[[Tensor], Tensor]


def times(factor: float) -> Fault:
    return lambda x: x * factor


def one_entry(x: Tensor) -> Tensor:
    """The largest entry one percent too large: in bf16 that is one or two units in the last place."""
    x = x.clone(memory_format=torch.contiguous_format)
    flat = x.view(-1)
    flat[flat.abs().argmax()] *= 1.01
    return x


def one_of_the_first_axis(x: Tensor) -> Tensor:
    """One head of attention, or one row of the batch: negated."""
    x = x.clone()
    x[-1] *= -1
    return x


def one_row(x: Tensor) -> Tensor:
    """One row of every matrix dropped: that of the third position, or token."""
    x = x.clone()
    x[..., min(2, x.shape[-2] - 1), :] = 0
    return x


FAULTS: dict[str, Fault] = {
    "1% too large": times(1.01), "3% too large": times(1.03), "halved": times(0.5), "wrong sign": times(-1.0),
    "one entry 1% too large": one_entry, "one head or row negated": one_of_the_first_axis, "one row dropped": one_row,
}  # fmt: skip
OF_ROWS = ("one head or row negated", "one row dropped")


@dataclass(frozen=True)
class Result:
    """One result of a kernel, forward or backward; a fault there is pinned when nothing but `blamed` disagrees."""

    kernel: type
    passed: str
    place: int
    variant: str
    blamed: tuple[str, ...]  # ends of names and kinds
    rows: bool = True  # a scalar or a vector has no heads and no rows

    @property
    def own(self) -> bool:
        """Whether it is a kernel that some processors alone have."""
        return self.kernel.__name__.startswith("Native")

    @property
    def faults(self) -> list[str]:
        return [name for name in FAULTS if self.rows or name not in OF_ROWS]


class PyTorchsSilu(torch.autograd.Function):
    """PyTorch's own kernels, forward and backward, where a fault can be planted between them and autograd."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.nn.functional.silu(x)

    @staticmethod
    def backward(ctx, bar):
        (x,) = ctx.saved_tensors
        return torch.ops.aten.silu_backward(bar, x)


class PyTorchsLayerNorm(torch.autograd.Function):
    """The same for layer norm."""

    @staticmethod
    def forward(ctx, x, shape, weight, bias, eps):
        y, mean, inverse = torch.ops.aten.native_layer_norm(x, shape, weight, bias, eps)
        ctx.save_for_backward(x, mean, inverse, weight, bias)
        return y

    @staticmethod
    def backward(ctx, bar):
        x, mean, inverse, weight, bias = ctx.saved_tensors
        bars = torch.ops.aten.native_layer_norm_backward(
            bar.contiguous(), x, weight.shape, mean, inverse, weight, bias, [True] * 3
        )
        return bars[0], None, bars[1], bars[2], None


class PyTorchsAttention(torch.autograd.Function):
    """The same for attention beyond the positions up to which `ShortAttention` is faster."""

    @staticmethod
    def forward(ctx, query, key, value, visible, window):
        heads = [x.detach().requires_grad_() for x in (query, key, value)]
        with torch.enable_grad():
            ctx.graph = heads, ATTENTION(*heads, visible, window)
        return ctx.graph[1].detach()

    @staticmethod
    def backward(ctx, bar):
        heads, mixed = ctx.graph
        return *torch.autograd.grad(mixed, heads, bar), None, None


ATTENTION = limpid.model.kernels.attention.attention


MAPS = ("query", "key", "value", "attention.output", "mlp.gate", "mlp.up", "mlp.output")
"""Ends of the names of linear maps."""

RESULTS = {
    "attention: mixed": Result(ShortAttention, "forward", 0, "llama", ("attention.mixed forward",)),
    "attention: query": Result(ShortAttention, "backward", 0, "llama", ("attention.query_rotated backward",)),
    "attention: key": Result(ShortAttention, "backward", 1, "llama", ("attention.key_rotated backward",)),
    "attention: value": Result(ShortAttention, "backward", 2, "llama", ("attention.value backward",)),
    "RMS norm": Result(FusedRMSNorm, "forward", 0, "llama", ("norm1 forward", "norm2 forward", "final_norm forward")),
    "RMS norm: stream": Result(
        FusedRMSNorm, "backward", 0, "llama",
        ("residual1 backward", "residual2 backward", "embed.tokens backward"),
    ),
    "RMS norm: gain": Result(
        FusedRMSNorm, "backward", 1, "llama",
        ("norm1.weight backward", "norm2.weight backward", "final_norm.weight backward"), rows=False,
    ),
    "layer norm": Result(
        PyTorchsLayerNorm, "forward", 0, "gpt-2", ("norm1 forward", "norm2 forward", "final_norm forward")
    ),
    "layer norm: stream": Result(
        PyTorchsLayerNorm, "backward", 0, "gpt-2",
        ("residual1 backward", "residual2 backward", "embed.sum backward"),
    ),
    "layer norm: gain": Result(
        PyTorchsLayerNorm, "backward", 2, "gpt-2",
        ("norm1.weight backward", "norm2.weight backward", "final_norm.weight backward"), rows=False,
    ),
    "layer norm: bias": Result(
        PyTorchsLayerNorm, "backward", 3, "gpt-2",
        ("norm1.bias backward", "norm2.bias backward", "final_norm.bias backward"), rows=False,
    ),
    "rotation": Result(
        FusedRotation, "forward", 0, "llama",
        ("_rotated forward", "attention.query backward", "attention.key backward"),  # backward, it is applied again
    ),
    "rotation: backward": Result(
        FusedRotation, "backward", 0, "llama", ("attention.query backward", "attention.key backward")
    ),
    "gate: silu": Result(PyTorchsSilu, "forward", 0, "llama", ("mlp.hidden forward", "mlp.up backward")),
    "gate: gate": Result(PyTorchsSilu, "backward", 0, "llama", ("mlp.gate backward",)),
    "cross-entropy: loss": Result(LinearCrossEntropy, "forward", 0, "llama", ("loss forward",), rows=False),
    "cross-entropy: hidden": Result(LinearCrossEntropy, "backward", 0, "llama", ("final_norm backward",)),
    "cross-entropy: matrix": Result(LinearCrossEntropy, "backward", 1, "qwen3", ("logits.weight backward",)),
}  # fmt: skip
"""Of kernels whose roundings are repeated, or that do one operation: any fault is found."""

SAMPLED_RESULTS = {
    "PyTorch's attention: mixed": Result(PyTorchsAttention, "forward", 0, "llama", ("attention.mixed forward",)),
    "PyTorch's attention: query": Result(
        PyTorchsAttention, "backward", 0, "llama", ("attention.query_rotated backward",)
    ),
    "PyTorch's attention: key": Result(PyTorchsAttention, "backward", 1, "llama", ("attention.key_rotated backward",)),
    "PyTorch's attention: value": Result(PyTorchsAttention, "backward", 2, "llama", ("attention.value backward",)),
}
"""Of kernels that are judged by random rounding."""

OWN_RESULTS = {
    "attention: mixed": Result(NativeAttention, "forward", 0, "wide", ("attention.mixed forward",)),
    "attention: query": Result(NativeAttention, "backward", 0, "wide", ("attention.query_rotated backward",)),
    "attention: key": Result(NativeAttention, "backward", 1, "wide", ("attention.key_rotated backward",)),
    "attention: value": Result(NativeAttention, "backward", 2, "wide", ("attention.value backward",)),
    "RMS norm": Result(NativeNorm, "forward", 0, "wide", ("norm1 forward", "norm2 forward", "final_norm forward")),
    "RMS norm: stream": Result(
        NativeNorm, "backward", 0, "wide", ("residual1 backward", "residual2 backward", "embed.tokens backward")
    ),
    "RMS norm: gain": Result(
        NativeNorm, "backward", 1, "wide",
        ("norm1.weight backward", "norm2.weight backward", "final_norm.weight backward"), rows=False,
    ),
    "layer norm: stream": Result(
        NativeNorm, "backward", 0, "wide gpt-2", ("residual1 backward", "residual2 backward", "embed.sum backward")
    ),
    "layer norm: bias": Result(
        NativeNorm, "backward", 2, "wide gpt-2",
        ("norm1.bias backward", "norm2.bias backward", "final_norm.bias backward"), rows=False,
    ),
    "rotation": Result(
        NativeRotation, "forward", 0, "wide",
        ("_rotated forward", "attention.query backward", "attention.key backward"),  # backward, it is applied again
    ),
    "gate: silu": Result(NativeActivation, "forward", 0, "wide", ("mlp.hidden forward",)),
    "gate: gate": Result(NativeActivation, "backward", 0, "wide", ("mlp.gate backward",)),
    "gate: up": Result(NativeActivation, "backward", 1, "wide", ("mlp.up backward",)),
    "gelu": Result(NativeActivation, "forward", 0, "wide gpt-2", ("mlp.hidden forward",)),
    "gelu: up": Result(NativeActivation, "backward", 0, "wide gpt-2", ("mlp.up backward",)),
    "product": Result(
        NativeProduct, "forward", 0, "wide", tuple(f"{name} forward" for name in MAPS)
    ),
    "product: input": Result(
        NativeProduct, "backward", 0, "wide",
        ("norm1 backward", "attention.mixed backward", "norm2 backward", "mlp.hidden backward"),
    ),
    "product: matrix": Result(
        NativeProduct, "backward", 1, "wide", tuple(f"{name}.weight backward" for name in MAPS), rows=False
    ),
    "product: bias": Result(
        NativeProduct, "backward", 2, "wide gpt-2", tuple(f"{name}.bias backward" for name in MAPS), rows=False
    ),
}  # fmt: skip
"""Of kernels in bfloat16 that some processors have, and which serve there."""


@contextmanager
def pytorchs_kernels() -> Iterator[None]:
    """A model in which PyTorch's own kernels are called by classes in which a fault can be planted."""
    with pytest.MonkeyPatch.context() as model:
        model.setitem(limpid.model.mlp.ACTIVATIONS, "silu", PyTorchsSilu.apply)
        model.setattr(limpid.model.norm.F, "layer_norm", PyTorchsLayerNorm.apply)
        model.setattr(limpid.model.attention, "attention", PyTorchsAttention.apply)
        yield


@contextmanager
def planted(result: Result, fault: Fault) -> Iterator[None]:
    """The kernel with a fault in one of its results."""
    original = result.kernel.__dict__[result.passed]

    def faulty(*arguments):
        results = original.__func__(*arguments)
        if not isinstance(results, tuple):
            return fault(results)
        return tuple(fault(part) if at == result.place else part for at, part in enumerate(results))

    with pytorchs_kernels(), pytest.MonkeyPatch.context() as kernel:
        kernel.setattr(kernel_limits, "PACKED_PRODUCT", 1)  # the models here are small
        if not result.own:
            kernel.setattr(native_call, "library", lambda: None)
        if result.kernel is ShortAttention:  # some processors use it for other formats alone
            attention = limpid.model.kernels.attention
            kernel.setattr(attention, "materialised_positions", lambda itemsize: kernel_limits.MATERIALISED_POSITIONS)
        kernel.setattr(result.kernel, result.passed, staticmethod(faulty))
        yield


def disagreements(file: Path) -> list[str]:
    """Every check of a quantity or gradient that rounding does not explain."""
    checks = [check for one in compare_operations(Record(file)) for check in (one.forward, *one.backward)]
    return [f"{check.name} {check.kind}" for check in checks if isinstance(check.verdict, Beyond)]


def pinned(result: Result, found: list[str]) -> bool:
    """Found, and nothing else accused."""
    return bool(found) and all(one.endswith(result.blamed) for one in found)
