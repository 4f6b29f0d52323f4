"""Backward passes by hand of every kind: in NumPy, in place, behind a checkpoint, of another library."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint


class Relu(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * (ctx.saved_tensors[0] > 0)


class InNumPy(Function):
    """e^x of float32 alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        assert x.dtype == torch.float32
        ctx.y = np.exp(x.detach().numpy())
        return torch.from_numpy(ctx.y.copy())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return torch.from_numpy(ctx.y * gradient.numpy())


class LargerInNumPy(InNumPy):
    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return torch.from_numpy(ctx.y * gradient.numpy() * np.float32(1.03))


class InPlace(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return 3 * gradient


class Largest(Function):
    """The largest three of each row, and where they are, which has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        values, places = x.topk(3)
        ctx.save_for_backward(places)
        ctx.mark_non_differentiable(places)
        ctx.shape = x.shape
        return values, places

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Any:
        return torch.zeros(ctx.shape, dtype=gradient.dtype).scatter(-1, ctx.saved_tensors[0], gradient)


class Softmax(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.softmax(-1))
        return x.softmax(-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return y * (gradient - (gradient * y).sum(-1, keepdim=True))


class OfTheClass(Function):
    """x times a number that its class knows."""

    times = 3.0

    @classmethod
    def forward(cls, ctx: Any, x: Tensor) -> Tensor:
        return x * cls.times

    @classmethod
    def backward(cls, ctx: Any, gradient: Tensor) -> Any:
        return gradient * cls.times


class Halved(OfTheClass):
    times = 0.5


class SolvedByHalf(Function):
    """A⁻¹ b of a symmetric A by Cholesky, which reads one triangle of it."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.factor = torch.linalg.cholesky(a)
        ctx.solved = torch.cholesky_solve(b, ctx.factor)
        return ctx.solved

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        to_b = torch.cholesky_solve(gradient, ctx.factor)
        return -to_b @ ctx.solved.mT, to_b


class Squared(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return 2 * gradient * ctx.saved_tensors[0]


class Quantised(Function):
    """To 15 numbers as wide as the largest of a row says."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        step = x.abs().amax(-1, keepdim=True) / 7
        return (x / step).round() * step

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient


class MostlyMasked(Function):
    """Most entries set to 0, their gradients not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        kept = torch.arange(x.numel()).view(x.shape) % 10 == 0
        return x.exp() * kept

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient


class Again(Function):
    """A checkpoint by hand: its backward pass begins another."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(x)
        return run(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            made = ctx.run(x)
        torch.autograd.backward(made, gradient)
        return None, x.grad


class Counting(Function):
    """Whose forward pass gives something else each time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        COUNTED.append(1)
        return x * len(COUNTED)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient


class Ended(Function):
    """x², whose backward pass gives nan."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * torch.nan


COUNTED: list[int] = []
INSIDE = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
FUTURE = torch.ones(8, 8).triu(1) > 0


@torch.library.custom_op("limpid_tests::cube", mutates_args=())
def cube(x: Tensor) -> Tensor:
    return x**3


@torch.library.custom_op("limpid_tests::sum_of_squares", mutates_args=())
def sum_of_squares(xs: list[Tensor], scale: float) -> Tensor:
    return sum((x * x * scale for x in xs), torch.zeros(()))


@torch.library.custom_op("limpid_tests::wrong_cube", mutates_args=())
def wrong_cube(x: Tensor) -> Tensor:
    return x**3


def _keep(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.inputs = inputs


cube.register_autograd(lambda ctx, gradient: gradient * 3 * ctx.inputs[0] ** 2, setup_context=_keep)
wrong_cube.register_autograd(lambda ctx, gradient: gradient * 3 * ctx.inputs[0], setup_context=_keep)
sum_of_squares.register_autograd(
    lambda ctx, gradient: ([2 * gradient * x * ctx.inputs[1] for x in ctx.inputs[0]], None), setup_context=_keep
)

RIGHT: dict[str, Callable[[Tensor], Tensor]] = {
    "slope that jumps": Relu.apply,
    "slope that jumps where entries are": lambda x: Relu.apply(x.relu()),
    "in NumPy": InNumPy.apply,
    "in place": lambda x: InPlace.apply(x * 1),
    "two results": lambda x: Largest.apply(x)[0],
    "of -inf": lambda x: Softmax.apply(x.masked_fill(FUTURE, -torch.inf)),
    "of -1e9": lambda x: Softmax.apply(x.masked_fill(FUTURE, -1e9)),
    "of a class": lambda x: Halved.apply(x),
    "checkpoint of PyTorch": lambda x: checkpoint(Relu.apply, x, use_reentrant=True) * 2,
    "checkpoint without": lambda x: checkpoint(Relu.apply, x, use_reentrant=False) * 2,
    "checkpoint by hand": lambda x: Again.apply(INSIDE, x),
    "operation of another library": cube,
    "of a list": lambda x: sum_of_squares([x, 2 * x], 0.5),
}
