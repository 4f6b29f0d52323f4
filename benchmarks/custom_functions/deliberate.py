"""Functions whose backward passes are another gradient because their authors want it so."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class Rounded(Function):
    """Straight through a rounding to sixteenths (Bengio et al. 2013)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x * 16).round() / 16

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient


class Sign(Function):
    """Binary weights: straight through where they are no larger than 1 (Hubara et al. 2016)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * (ctx.saved_tensors[0].abs() <= 1)


class Feedback(Function):
    """Errors go back through fixed numbers, not through the weights (Lillicrap et al. 2016)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(x, back)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, back = ctx.saved_tensors
        return gradient @ back, x.flatten(0, -2).mT @ gradient.flatten(0, -2), None


class Spike(Function):
    """A step with the slope of a fast sigmoid (Zenke & Ganguli 2018)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient / (10 * ctx.saved_tensors[0].abs() + 1) ** 2


class LearnedStep(Function):
    """Rounding by a step that is learned (Esser et al. 2020)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, step: Tensor) -> Tensor:
        ctx.save_for_backward(x / step)
        return (x / step).round().clamp(-7, 7) * step

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (scaled,) = ctx.saved_tensors
        within = scaled.abs() <= 7
        to_step = torch.where(within, scaled.round() - scaled, 7 * scaled.sign())
        return gradient * within, (gradient * to_step).sum().reshape(1) * 0.1


class Reversed(Function):
    """Gradient reversal (Ganin & Lempitsky 2015)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return -ctx.strength * gradient, None


class Clipped(Function):
    """The gradient that passes is clipped."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient.clamp(-1e-3, 1e-3)


class Stopped(Function):
    """Nothing passes back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None


class Beside(Function):
    """x as it is; another loss gets a gradient of 1 beside it, as in mixtures of experts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        ctx.like = loss.dtype
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, torch.ones((), dtype=ctx.like)


class Kept(Function):
    """x² with half of its gradient: deliberate, which nothing but its author can tell."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * 2 * ctx.saved_tensors[0] * 0.5
