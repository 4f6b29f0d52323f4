"""The same twenty Functions, each with a fault of its backward pass that kernels were published with."""

from typing import Any, ClassVar

import torch
from benchmarks.custom_functions import right
from benchmarks.custom_functions.right import turned
from torch import Tensor


class Scores(right.Scores):
    """Without the scale 1 / √d."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        query, key = ctx.saved_tensors
        return gradient.to(key.dtype) @ key, gradient.to(query.dtype).mT @ query


class Gain(right.Gain):
    """The gain's gradient added up over the wrong axes, which are as long."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, gain = ctx.saved_tensors
        return gradient * gain, (gradient * x).sum((0, 2))


class Masked(right.Masked):
    """The saved mask is left out."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None


class Linear(right.Linear):
    """The weight's gradient is made where the bias's is asked for."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        to_weight = rows.mT @ x.flatten(0, -2).to(rows.dtype) if ctx.needs_input_grad[2] else None
        return gradient @ weight.to(gradient.dtype), to_weight, rows.sum(0) if ctx.needs_input_grad[2] else None


class Sigmoid(right.Sigmoid):
    """Its result is kept beside what autograd watches, and written over by what comes next."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.y = torch.sigmoid(x)
        return ctx.y


class Chunked(right.Chunked):
    """Chunks are added up in bfloat16."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        total = torch.zeros_like(weight, dtype=torch.bfloat16)
        for rows, inputs in zip(gradient.flatten(0, -2).split(2), x.flatten(0, -2).split(2), strict=True):
            total += rows.to(total.dtype).mT @ inputs.to(total.dtype)
        return gradient @ weight.to(gradient.dtype), total.to(weight.dtype)


class Doubled(right.Doubled):
    """The gradient is read as if it lay in memory row by row."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradient.as_strided(x.shape, x.contiguous().stride()) * (2 + 3 * x * x)


class Product(right.Product):
    """The second factor gets nothing."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        _, b = ctx.saved_tensors
        return gradient * b, None


class Difference(right.Difference):
    """Both get the same sign."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (off,) = ctx.saved_tensors
        return 2 * gradient * off, 2 * gradient * off


class Square(right.Square):
    """The weight's gradient lies the other way round."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        return gradient @ weight.to(gradient.dtype), x.flatten(0, -2).to(rows.dtype).mT @ rows


class MeanSquare(right.MeanSquare):
    """The gradient of the sum, not of the mean."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, target = ctx.saved_tensors
        return gradient * 2 * (x - target), None


class LayerNorm(right.LayerNorm):
    """The scale is formed again without ε."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        middle, _, gain = ctx.saved_tensors
        scale = middle.square().mean(-1, keepdim=True).rsqrt()
        normed, inner = middle * scale, gradient * gain
        to_x = inner - inner.mean(-1, keepdim=True) - normed * (inner * normed).mean(-1, keepdim=True)
        return to_x * scale, (gradient * normed).sum((0, 1)), gradient.sum((0, 1))


class Gelu(right.Gelu):
    """The slope of the other GELU, by way of erf."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        slope = 0.5 * (1 + torch.erf(x * 0.5**0.5)) + x * torch.exp(-0.5 * x * x) * 0.3989422804
        return gradient * slope


class RMSNorm(right.RMSNorm):
    """Without the term of the projection on x."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, scale, gain = ctx.saved_tensors
        return (scale * gradient * gain).to(x.dtype), (gradient * x * scale).sum((0, 1))


class Softmax(right.Softmax):
    """Without the sum over the row."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return y * gradient * (1 - y)


class CrossEntropy(right.CrossEntropy):
    """Rows that are not counted are taught their first word."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        made = right.CrossEntropy.forward(ctx, logits, labels)
        count = (labels != -100).sum().clamp(min=1)
        off = torch.softmax(logits, -1)
        off.scatter_add_(-1, labels.clamp(min=0)[:, None], torch.full_like(off[:, :1], -1))
        ctx.save_for_backward(off / count)
        return made


class SwiGlu(right.SwiGlu):
    """The halves of the gradient are swapped."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        gate, up = ctx.saved_tensors[0].chunk(2, -1)
        opened = torch.sigmoid(gate)
        to_gate = gradient * up * opened * (1 + gate * (1 - opened))
        return torch.cat([gradient * gate * opened, to_gate], -1)


class Rotary(right.Rotary):
    """Turned once more, not back."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return turned(gradient, *ctx.saved_tensors), None, None


class Dropout(right.Dropout):
    """The mask is drawn a second time."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * (torch.rand_like(gradient) < 0.7) / 0.7


class Silu(right.Silu):
    """What it needs is kept in one place, which its next call writes over."""

    kept: ClassVar[dict[str, Tensor]] = {}

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        Silu.kept["x"] = x.detach()
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x = Silu.kept["x"]
        opened = torch.sigmoid(x)
        return gradient * opened * (1 + x * (1 - opened))
