"""Twenty custom Functions whose backward passes are right, as people write them for kernels of their own."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional


class Scores(Function):
    """Q Kᵀ / √d."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor) -> Tensor:
        ctx.save_for_backward(query, key)
        ctx.scale = query.shape[-1] ** -0.5
        return query @ key.mT * ctx.scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        query, key = ctx.saved_tensors
        gradient = gradient * ctx.scale
        return gradient.to(key.dtype) @ key, gradient.to(query.dtype).mT @ query


class Gain(Function):
    """x ∘ g, one gain for each feature."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor) -> Tensor:
        ctx.save_for_backward(x, gain)
        return x * gain

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, gain = ctx.saved_tensors
        return gradient * gain, (gradient * x).sum((0, 1))


class Masked(Function):
    """Entries of the future set to a large negative number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return x.masked_fill(mask, -10.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (mask,) = ctx.saved_tensors
        return gradient.masked_fill(mask, 0.0), None


class Linear(Function):
    """x Wᵀ + b, each gradient only where it is asked for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        to_x = gradient @ weight.to(gradient.dtype) if ctx.needs_input_grad[0] else None
        to_weight = rows.mT @ x.flatten(0, -2).to(rows.dtype) if ctx.needs_input_grad[1] else None
        return to_x, to_weight, rows.sum(0) if ctx.needs_input_grad[2] else None


class Sigmoid(Function):
    """1 / (1 + e^-x), from its result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.sigmoid(x)
        ctx.y = y.clone()
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.y * (1 - ctx.y)


class Chunked(Function):
    """x Wᵀ, the weight's gradient added up over chunks of rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return functional.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        total = torch.zeros_like(weight)
        for rows, inputs in zip(gradient.flatten(0, -2).split(2), x.flatten(0, -2).split(2), strict=True):
            total += rows.to(total.dtype).mT @ inputs.to(total.dtype)
        return gradient @ weight.to(gradient.dtype), total


class Doubled(Function):
    """2 x + x³, entry by entry."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return 2 * x + x**3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradient.contiguous() * (2 + 3 * x * x)


class Product(Function):
    """a ∘ b."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        a, b = ctx.saved_tensors
        return gradient * b, gradient * a


class Difference(Function):
    """(a - b)²."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a - b)
        return (a - b) ** 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (off,) = ctx.saved_tensors
        return 2 * gradient * off, -2 * gradient * off


class Square(Function):
    """x Wᵀ with a square W, in the form that has no context in its forward pass."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return functional.linear(x, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        return gradient @ weight.to(gradient.dtype), rows.mT @ x.flatten(0, -2).to(rows.dtype)


class MeanSquare(Function):
    """Mean of (x - t)²."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor) -> Tensor:
        ctx.save_for_backward(x, target)
        return ((x - target) ** 2).mean()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, target = ctx.saved_tensors
        return gradient * 2 * (x - target) / x.numel(), None


class LayerNorm(Function):
    """(x - mean) / √(var + ε) ∘ g + b."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        middle = x - x.mean(-1, keepdim=True)
        scale = (middle.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        ctx.save_for_backward(middle, scale, gain)
        return middle * scale * gain + bias

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        middle, scale, gain = ctx.saved_tensors
        normed, inner = middle * scale, gradient * gain
        to_x = inner - inner.mean(-1, keepdim=True) - normed * (inner * normed).mean(-1, keepdim=True)
        return to_x * scale, (gradient * normed).sum((0, 1)), gradient.sum((0, 1))


class Gelu(Function):
    """x Φ(x), Φ by way of tanh."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        bent = torch.tanh(0.7978845608 * (x + 0.044715 * x**3))
        slope = 0.7978845608 * (1 + 3 * 0.044715 * x * x)
        return gradient * (0.5 * (1 + bent) + 0.5 * x * (1 - bent * bent) * slope)


class RMSNorm(Function):
    """x / √(mean x² + ε) ∘ g."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor) -> Tensor:
        scale = (x.float() if x.dtype == torch.bfloat16 else x).square().mean(-1, keepdim=True).add(1e-6).rsqrt()
        ctx.save_for_backward(x, scale, gain)
        return (x * scale * gain).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, scale, gain = ctx.saved_tensors
        normed, inner = x * scale, gradient * gain
        to_x = scale * (inner - normed * (inner * normed).mean(-1, keepdim=True))
        return to_x.to(x.dtype), (gradient * normed).sum((0, 1))


class Softmax(Function):
    """e^x / Σ e^x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return y * (gradient - (gradient * y).sum(-1, keepdim=True))


class CrossEntropy(Function):
    """Mean of -log p over labels that are not -100; its gradient is made in the forward pass."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        valid = labels != -100
        count = valid.sum().clamp(min=1)
        log_p = torch.log_softmax(logits, -1)
        taught = labels.clamp(min=0)
        off = log_p.exp()
        off.scatter_add_(-1, taught[:, None], torch.full_like(off[:, :1], -1))
        ctx.save_for_backward(off * valid[:, None] / count)
        return -(log_p.gather(-1, taught[:, None])[:, 0] * valid).sum() / count

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.saved_tensors[0] * gradient, None


class SwiGlu(Function):
    """SiLU(a) ∘ b of the two halves of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        gate, up = x.chunk(2, -1)
        return functional.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        gate, up = ctx.saved_tensors[0].chunk(2, -1)
        opened = torch.sigmoid(gate)
        to_gate = gradient * up * opened * (1 + gate * (1 - opened))
        return torch.cat([to_gate, gradient * gate * opened], -1)


class Rotary(Function):
    """Pairs of features turned by an angle that grows with the position."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        return turned(x, cosine, sine)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        cosine, sine = ctx.saved_tensors
        return turned(gradient, cosine, -sine), None, None


def turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """x cos + (-x₂, x₁) sin, halves of the features being the pairs."""
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


class Dropout(Function):
    """Entries kept with a probability of 0.7, and made larger by that."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.kept = torch.rand_like(x) < 0.7
        return x * ctx.kept / 0.7

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.kept / 0.7


class Silu(Function):
    """x σ(x)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        opened = torch.sigmoid(x)
        return gradient * opened * (1 + x * (1 - opened))
