"""A step for each Function: a layer before it, what it needs beside, a layer behind it, a loss."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from benchmarks.custom_functions import right
from torch import Tensor, nn
from torch.nn import functional

ROWS, LENGTH, WIDTH = 3, 8, 8
"""As long as it is wide: sums over the wrong axis have the right shape."""
FORMATS = ("fp32", "bf16", "fp64")


class Use(nn.Module):
    """Where a Function stands."""

    def __init__(self, apply: Callable[["Use", Tensor], Tensor]) -> None:
        super().__init__()
        self.apply_to = apply
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)
        self.gain, self.bias = nn.Parameter(torch.rand(WIDTH) + 0.5), nn.Parameter(torch.randn(WIDTH) / 9)
        self.step = nn.Parameter(torch.full((1,), 0.11))

    def forward(self, x: Tensor) -> Tensor:
        return self.apply_to(self, x)


class Net(nn.Module):
    """A layer, the Function, a layer."""

    def __init__(self, use: Use) -> None:
        super().__init__()
        self.first, self.use, self.last = nn.Linear(WIDTH, WIDTH), use, nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        made = self.use(self.first(x))
        if made.dim() == 0:
            return made
        given = functional.linear(made, self.last.weight[:, : made.shape[-1]], self.last.bias)
        return (given - 1).square().mean()


def once(one: Any) -> Callable[[Use, Tensor], Tensor]:
    """Of x alone."""
    return lambda use, x: one.apply(x)


def frozen_bias(one: Any) -> Callable[[Use, Tensor], Tensor]:
    return lambda use, x: one.apply(x, use.weight, use.bias.detach())


def cross_entropy(one: Any) -> Callable[[Use, Tensor], Tensor]:
    labels = torch.arange(ROWS * LENGTH) % WIDTH
    labels[::3] = -100
    return lambda use, x: one.apply(functional.linear(x, use.weight).flatten(0, 1).float(), labels)


def rotary(one: Any) -> Callable[[Use, Tensor], Tensor]:
    angles = torch.arange(LENGTH)[:, None] * 10.0 ** -torch.arange(WIDTH // 2)
    angles = torch.cat([angles, angles], -1)
    return lambda use, x: one.apply(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype))


USES: dict[str, Callable[[Any], Callable[[Use, Tensor], Tensor]]] = {
    "Scores": lambda one: lambda use, x: one.apply(x, functional.linear(x, use.weight)),
    "Gain": lambda one: lambda use, x: one.apply(x, use.gain),
    "Masked": lambda one: lambda use, x: one.apply(x, torch.ones(LENGTH, WIDTH).triu(1) > 0),
    "Linear": frozen_bias,
    "Sigmoid": lambda one: lambda use, x: one.apply(x).mul_(2),
    "Chunked": lambda one: lambda use, x: one.apply(x, use.weight),
    "Doubled": lambda one: lambda use, x: one.apply(x).transpose(1, 2),
    "Product": lambda one: lambda use, x: one.apply(x, x.tanh()),
    "Difference": lambda one: lambda use, x: one.apply(x, x.roll(1, 1) * 0.5),
    "Square": lambda one: lambda use, x: one.apply(x, use.weight),
    "MeanSquare": lambda one: lambda use, x: one.apply(functional.linear(x, use.weight), torch.ones_like(x)),
    "LayerNorm": lambda one: lambda use, x: one.apply(x, use.gain, use.bias),
    "Gelu": once,
    "RMSNorm": lambda one: lambda use, x: one.apply(x, use.gain),
    "Softmax": once,
    "CrossEntropy": cross_entropy,
    "SwiGlu": once,
    "Rotary": rotary,
    "Dropout": once,
    "Silu": lambda one: lambda use, x: one.apply(one.apply(x) + x),
    "Feedback": lambda one: lambda use, x: one.apply(x, use.weight, torch.eye(WIDTH).flip(0).to(x.dtype)),
    "LearnedStep": lambda one: lambda use, x: one.apply(x, use.step),
    "Reversed": lambda one: lambda use, x: one.apply(x, 0.3),
    "Beside": lambda one: lambda use, x: one.apply(x, use.weight.square().mean()),
}
"""How each is called; those that are not here are called on x alone."""
NAMES = [name for name, one in vars(right).items() if isinstance(one, type) and one.__module__ == right.__name__]


def net_of(functions: ModuleType, name: str, seed: int) -> Net:
    """A model with a Function of a module in it."""
    torch.manual_seed(seed)
    return Net(Use(USES.get(name, once)(getattr(functions, name))))


def step(net: Net, optimizer: torch.optim.Optimizer, form: str, seed: int) -> Tensor:
    """Forward, backward, update, in a format."""
    x = torch.randn(ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(seed))
    with torch.autocast("cpu", torch.bfloat16, enabled=form == "bf16"):
        loss = net(x.to(torch.float64 if form == "fp64" else torch.float32))
    loss.backward()
    optimizer.step()
    return loss
