"""What the loops of round 22d share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round22d_keys.json, what each loop is meant to do in round22d_intents.json; categories are
those of round8b_parts.

round22d_proofs.json repeats by `python -m benchmarks.robustness.prove round22d`.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import apart, mlp
from torch import Tensor, nn

KEYS = json.loads((Path(__file__).parent / "round22d_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


def accelerated(
    run: Run,
    net: nn.Module,
    optimizer: Any,
    data: Any,
    loss: Callable[[nn.Module, Any], Tensor],
    epochs: int,
    after_step: Callable[[int], Any] = lambda step: None,
    after_epoch: Callable[[Any], Any] = lambda optimizer: None,
    **told: Any,
) -> None:
    """accelerate's loop, with something to do after each step (told how many there have been) or each epoch."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    engine = Accelerator(cpu=True)
    model, optimizer, data = engine.prepare(net, optimizer, data)
    doctor = run.watch(model, optimizer, **told)
    count = 0
    for _ in range(epochs):
        for batch in data:
            optimizer.zero_grad()
            value = loss(model, batch)
            engine.backward(value)
            optimizer.step()
            doctor.step(value, batch)
            run.note(value)
            count += 1
            after_step(count)
        after_epoch(optimizer)


# optimizers of somebody's own


class Lion(torch.optim.Optimizer):
    """Steps by the sign of an average of gradients; `fixed` keeps to the rate that it was built with."""

    def __init__(self, params: Any, lr: float, fixed: bool, decay: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "decay": decay})
        self.rate = lr if fixed else None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            rate = group["lr"] if self.rate is None else self.rate
            for p in group["params"]:
                if p.grad is None:
                    continue
                slow = self.state[p].setdefault("slow", torch.zeros_like(p))
                p.mul_(1 - rate * group["decay"])
                p.add_(slow.lerp(p.grad, 0.1).sign(), alpha=-rate)
                slow.lerp_(p.grad, 0.01)


class Momentum(torch.optim.Optimizer):
    """Steps with momentum; the speed begins as the first gradient, or as a copy of it."""

    def __init__(self, params: Any, lr: float, momentum: float, copied: bool) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})
        self.copied = copied

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "speed" not in state:
                    state["speed"] = p.grad.clone() if self.copied else p.grad
                else:
                    state["speed"].mul_(group["momentum"]).add_(p.grad)
                p.add_(state["speed"], alpha=-group["lr"])


class Sharded(torch.optim.Optimizer):
    """Adam whose state is shared out among ranks: each steps the tensors of its share, and all see the result."""

    def __init__(self, params: Any, lr: float, ranks: int, in_slices: bool) -> None:
        tensors = list(params)
        super().__init__(tensors, {"lr": lr})
        each = len(tensors) // ranks
        shares = [tensors[r * each : (r + 1) * each] if in_slices else tensors[r::ranks] for r in range(ranks)]
        self.ranks = [torch.optim.Adam(share, lr=lr) for share in shares]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for rank in self.ranks:
            rank.step()


# networks


class Editors(nn.Module):
    """An LSTM over words, the mean of its outputs, a head for each of two desks."""

    def __init__(self, words: int = 26, width: int = 32) -> None:
        super().__init__()
        self.words, self.core = nn.Embedding(words, width), nn.LSTM(width, width, batch_first=True)
        self.old, self.new = nn.Linear(width, 5), nn.Linear(width, 5)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        h = self.core(self.words(ids))[0].mean(1)
        return self.old(h), self.new(h)


class LowRank(nn.Module):
    """A linear layer that is held, and two small factors beside it that learn."""

    def __init__(self, base: nn.Linear, rank: int = 4, alpha: float = 16.0) -> None:
        super().__init__()
        self.base, self.scale = base, alpha / rank
        base.requires_grad_(False)
        self.down = nn.Parameter(torch.empty(rank, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.scale * (x @ self.down.T @ self.up.T)
        return out

    @torch.no_grad()
    def merge(self, scale: float) -> None:
        """Into the held matrix, and the factors begin again."""
        self.base.weight += scale * self.up @ self.down
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))
        self.up.zero_()


class Denoiser(nn.Module):
    """The noise in points of a plane, from the points and four waves of the time."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.net = mlp(10, width, width, 2, act=nn.SiLU)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        waves = t[:, None] * torch.tensor([1.0, 2.0, 4.0, 8.0]) * math.pi / 2
        out: Tensor = self.net(torch.cat([x, waves.sin(), waves.cos()], 1))
        return out


class Towards(nn.Module):
    """Values of four moves, from vectors of the place and of the goal."""

    def __init__(self, places: int = 16, width: int = 32) -> None:
        super().__init__()
        self.here, self.there = nn.Embedding(places, width), nn.Embedding(places, width)
        self.values = mlp(2 * width, 64, 4)

    def forward(self, place: Tensor, goal: Tensor) -> Tensor:
        out: Tensor = self.values(torch.cat([self.here(place), self.there(goal)], 1))
        return out


def q_of_places(places: int = 25) -> nn.Sequential:
    return nn.Sequential(nn.Embedding(places, 32), mlp(32, 64, 4))


# tasks


def desks(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 12) words 1 to 25 and one of five topics; by the seed, each topic has five words that are frequent."""
    order = torch.randperm(25, generator=apart(seed)) + 1
    y = torch.randint(0, 5, (count,), generator=own)
    ours = order[5 * y[:, None] + torch.randint(0, 5, (count, 12), generator=own)]
    alike = torch.rand(count, 12, generator=own) < 0.5
    return torch.where(alike, ours, torch.randint(1, 26, (count, 12), generator=own)), y


def moons(count: int, own: torch.Generator | None = None) -> Tensor:
    """Points of two half circles that reach into one another."""
    angle = math.pi * torch.rand(count, generator=own)
    upper = torch.rand(count, generator=own) < 0.5
    x = torch.where(upper, angle.cos(), 1 - angle.cos()) - 0.5
    y = torch.where(upper, angle.sin(), 0.5 - angle.sin()) - 0.25
    return torch.stack([x, y], 1) * 1.4 + 0.07 * torch.randn(count, 2, generator=own)


class Buggy:
    """A buggy on a plane with a wind: place and speed, two thrusts; its array is moved on in place."""

    def __init__(self, own: Any) -> None:
        self.own = own
        self.state = np.zeros(4, dtype=np.float32)

    def reset(self) -> Any:
        self.state = self.own.normal(size=4).astype(np.float32)
        return self.state

    def step(self, thrust: Any) -> Any:
        place, speed = self.state[:2], self.state[2:]
        place += 0.3 * speed
        speed *= 0.9
        speed += 0.5 * np.tanh(thrust) - 0.3 * np.sin(place)
        return self.state


def moved_to(place: Tensor, move: Tensor, side: int = 4) -> Tensor:
    """Up, down, left or right on a square, and nowhere at its edge."""
    row, column = place // side, place % side
    row = (row + torch.tensor([-1, 1, 0, 0])[move]).clamp(0, side - 1)
    column = (column + torch.tensor([0, 0, -1, 1])[move]).clamp(0, side - 1)
    return row * side + column


def ballads(seed: int, length: int = 32) -> Tensor:
    """(12, length) ids: titles 4 to 15, and behind each its words, 4 to 15."""
    table = torch.randint(4, 16, (12, length), generator=apart(seed + 41))
    table[:, 0] = torch.arange(4, 16)
    return table
