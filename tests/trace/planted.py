"""Faults planted in fused kernels, and which quantities may be blamed for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import limpid.model.attention
import limpid.model.mlp
from limpid.model.kernels.attention import ShortAttention
from limpid.model.kernels.linear_cross_entropy import LinearCrossEntropy
from limpid.model.kernels.rms_norm import FusedRMSNorm
from limpid.model.kernels.rotation import FusedRotation
from limpid.trace.local import compare_operations
from limpid.trace.record import Record
from limpid.trace.verdict import Beyond

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
    x[..., 2, :] = 0
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

    def has(self, fault: str) -> bool:
        """A scalar or a vector has no heads and no rows."""
        return fault not in OF_ROWS or (self.kernel, self.passed, self.place) not in (
            (FusedRMSNorm, "backward", 1), (LinearCrossEntropy, "forward", 0)
        )  # fmt: skip


class Activation(torch.autograd.Function):
    """silu as a kernel of its own, so that a fault can be planted in it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.nn.functional.silu(x)

    @staticmethod
    def backward(ctx, bar):
        (x,) = ctx.saved_tensors
        return torch.ops.aten.silu_backward(bar, x)


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
        ("norm1.weight backward", "norm2.weight backward", "final_norm.weight backward"),
    ),
    "rotation": Result(
        FusedRotation, "forward", 0, "llama",
        ("_rotated forward", "attention.query backward", "attention.key backward"),  # backward, it is applied again
    ),
    "rotation: backward": Result(
        FusedRotation, "backward", 0, "llama", ("attention.query backward", "attention.key backward")
    ),
    "gate: silu": Result(Activation, "forward", 0, "llama", ("mlp.hidden forward", "mlp.up backward")),
    "gate: gate": Result(Activation, "backward", 0, "llama", ("mlp.gate backward",)),
    "cross-entropy: loss": Result(LinearCrossEntropy, "forward", 0, "llama", ("loss forward",)),
    "cross-entropy: hidden": Result(LinearCrossEntropy, "backward", 0, "llama", ("final_norm backward",)),
    "cross-entropy: matrix": Result(LinearCrossEntropy, "backward", 1, "qwen3", ("logits.weight backward",)),
}  # fmt: skip


@contextmanager
def planted(result: Result, fault: Fault) -> Iterator[None]:
    """The kernel with a fault in one of its results."""
    original, activation = result.kernel.__dict__[result.passed], limpid.model.mlp.ACTIVATIONS["silu"]

    def faulty(*arguments):
        results = original.__func__(*arguments)
        if not isinstance(results, tuple):
            return fault(results)
        return tuple(fault(part) if at == result.place else part for at, part in enumerate(results))

    setattr(result.kernel, result.passed, staticmethod(faulty))
    limpid.model.mlp.ACTIVATIONS["silu"] = Activation.apply
    try:
        yield
    finally:
        setattr(result.kernel, result.passed, original)
        limpid.model.mlp.ACTIVATIONS["silu"] = activation


def disagreements(file: Path) -> list[str]:
    """Every check of a quantity or gradient that rounding does not explain."""
    checks = [check for one in compare_operations(Record(file)) for check in (one.forward, *one.backward)]
    return [f"{check.name} {check.kind}" for check in checks if isinstance(check.verdict, Beyond)]


def pinned(result: Result, found: list[str]) -> bool:
    """Found, and nothing else accused."""
    return bool(found) and all(one.endswith(result.blamed) for one in found)
