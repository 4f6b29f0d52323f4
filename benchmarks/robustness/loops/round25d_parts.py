"""What the loops of round 25d share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round25d_keys.json, what each loop is meant to do in round25d_intents.json; categories are
those of round8b_parts.

round25d_proofs.json repeats by `python -m benchmarks.robustness.prove round25d`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import apart, mlp
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round25d_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class Denoiser(nn.Module):
    """The noise in a point of the plane, told its level by a row of a table of a hundred."""

    def __init__(self, levels: int = 100, width: int = 64) -> None:
        super().__init__()
        self.levels, self.enter = nn.Embedding(levels, width), nn.Linear(2, width)
        self.body = mlp(width, width, width, 2, act=nn.SiLU)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        out: Tensor = self.body(F.silu(self.enter(x) + self.levels(level)))
        return out


class Letters(nn.Module):
    """An LSTM over words, its last output, a head."""

    def __init__(self, words: int = 16, classes: int = 3, width: int = 32) -> None:
        super().__init__()
        self.words, self.core = nn.Embedding(words, width), nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(self.words(ids))[0][:, -1])
        return out


class Neighbours(nn.Module):
    """Two rounds in which each node hears the mean of its neighbours, the mean over nodes, three scores."""

    def __init__(self, columns: int = 3, width: int = 32) -> None:
        super().__init__()
        self.enter = nn.Linear(columns, width)
        self.rounds = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(2))
        self.head = mlp(width, width, 3)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        h = self.enter(nodes).relu()
        share = edges / edges.sum(2, keepdim=True).clamp_min(1)
        for layer in self.rounds:
            h = h + layer(torch.cat([h, share @ h], 2)).relu()
        out: Tensor = self.head(h.mean(1))
        return out


class Trunk(nn.Module):
    """A body of two layers over eight columns, and a head of one number for each of four kinds of rows."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.heads = nn.ModuleList(nn.Linear(width, 1) for _ in range(4))

    def forward(self, x: Tensor, kind: int) -> Tensor:
        out: Tensor = self.heads[kind](self.body(x)).squeeze(1)
        return out


# what stands beside a network


class RunningMean:
    """The mean of a network's weights over the steps at which it was told to look."""

    def __init__(self, net: nn.Module, each_tensor: bool) -> None:
        self.kept = [p.detach().clone() for p in net.parameters()]
        self.net, self.each_tensor, self.count = net, each_tensor, 0

    @torch.no_grad()
    def look(self) -> None:
        if not self.each_tensor:
            self.count += 1
        for kept, weight in zip(self.kept, self.net.parameters(), strict=True):
            if self.each_tensor:
                self.count += 1
            kept += (weight - kept) / self.count

    @torch.no_grad()
    def put_in(self) -> None:
        for kept, weight in zip(self.kept, self.net.parameters(), strict=True):
            weight.copy_(kept)


class Follower:
    """An exponential average of a network's weights that can change places with them."""

    def __init__(self, net: nn.Module, decay: float) -> None:
        self.net, self.decay = net, decay
        self.average = [p.detach().clone() for p in net.parameters()]
        self.stored: list[Tensor] = []

    @torch.no_grad()
    def follow(self) -> None:
        for kept, weight in zip(self.average, self.net.parameters(), strict=True):
            kept.lerp_(weight, 1 - self.decay)

    def store(self) -> None:
        self.stored = [p.detach().clone() for p in self.net.parameters()]

    @torch.no_grad()
    def copy_in(self) -> None:
        for kept, weight in zip(self.average, self.net.parameters(), strict=True):
            weight.copy_(kept)

    @torch.no_grad()
    def restore(self) -> None:
        for kept, weight in zip(self.stored, self.net.parameters(), strict=True):
            weight.copy_(kept)


class RoundedAdam(torch.optim.Optimizer):
    """Adam for weights in bfloat16: moments in float32, and each new weight is rounded up or down by chance, so that
    what it is on average is what it should be."""

    def __init__(self, parameters: Any, lr: float, masked: bool) -> None:
        super().__init__(parameters, {"lr": lr, "masked": masked})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state |= {"step": 0, "first": torch.zeros(p.shape), "second": torch.zeros(p.shape)}
                state["step"] += 1
                slope = p.grad.float()
                state["first"].lerp_(slope, 0.1)
                state["second"].lerp_(slope * slope, 0.001)
                first = state["first"] / (1 - 0.9 ** state["step"])
                second = state["second"] / (1 - 0.999 ** state["step"])
                p.copy_(self.rounded(p.float() - group["lr"] * first / (second.sqrt() + 1e-8), group["masked"]))

    @staticmethod
    def rounded(x: Tensor, masked: bool) -> Tensor:
        bits = x.contiguous().view(torch.int32)
        bits = bits + torch.randint(0, 2**16, bits.shape, dtype=torch.int32)
        if masked:
            bits = bits & -(2**16)
        return bits.view(torch.float32).to(torch.bfloat16)


class Climb:
    """Sharpness-aware minimisation around another optimizer: a step up the slope, a second slope, back, and a step of
    that optimizer by the second slope."""

    def __init__(self, net: nn.Module, far: float, copies: bool) -> None:
        self.net, self.far, self.copies = net, far, copies
        self.before: list[Tensor] = []

    @torch.no_grad()
    def up(self) -> None:
        weights = list(self.net.parameters())
        length = torch.stack([p.grad.norm() for p in weights if p.grad is not None]).norm() + 1e-12
        self.before = [p.detach().clone() if self.copies else p.detach() for p in weights]
        for p in weights:
            if p.grad is not None:
                p.add_(p.grad, alpha=float(self.far / length))
        self.net.zero_grad()

    @torch.no_grad()
    def back(self) -> None:
        for p, before in zip(self.net.parameters(), self.before, strict=True):
            p.copy_(before)


class Levels:
    """A hundred levels of noise, of which level t keeps `keeps[t]` of a point's square, and which of them are used."""

    def __init__(self) -> None:
        self.keeps = torch.cumprod(1 - torch.linspace(1e-3, 8e-2, 100), 0)
        self.used = torch.arange(100)

    def use(self, count: int) -> None:
        self.used = torch.linspace(0, 99, count).round().long()

    def noised(self, x: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        keep = self.keeps[level][:, None]
        return keep.sqrt() * x + (1 - keep).sqrt() * noise


class Book:
    """Rows of tokens to learn from and to be judged by, read sixteen at a time and in order, again from the first row
    behind the last. `places` are where each part is read next."""

    def __init__(self, learned: Tensor, judged: Tensor, one_place: bool) -> None:
        self.parts = {"learn": learned, "judge": judged}
        self.of = {"learn": "all", "judge": "all"} if one_place else {"learn": "learn", "judge": "judge"}
        self.places = dict.fromkeys(self.of.values(), 0)

    def begin(self, part: str) -> None:
        self.places[self.of[part]] = 0

    def read(self, part: str) -> Tensor:
        rows, place = self.parts[part], self.places[self.of[part]]
        self.places[self.of[part]] = place + 16
        return rows[(place + torch.arange(16)) % len(rows)]


def engine_of(**options: Any) -> Any:
    """An Accelerator on the processor, as in a new process."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    return Accelerator(cpu=True, **options)


def lit_then(
    net: nn.Module,
    loss: Callable[[nn.Module, Any], Tensor],
    optimizers: Callable[[Any], Any],
    after: Callable[[int], None],
) -> Any:
    """A LightningModule that does something of its own after each step."""
    import lightning

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, index: int) -> Tensor:
            return loss(self.net, batch)

        def configure_optimizers(self) -> Any:
            return optimizers(self.net)

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            after(self.global_step)

    return Lit()


def told(run: Run, doctor: Any, optimizer: Any, loss: Tensor, batch: Any) -> None:
    """One update, told."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    doctor.step(loss, batch)
    run.note(loss)


# tasks


def moons(count: int, own: torch.Generator | None = None) -> Tensor:
    """Points of the plane on two half circles, somewhat blurred."""
    angle = 3.1416 * torch.rand(count, generator=own)
    upper = torch.rand(count, generator=own) < 0.5
    x = torch.where(upper, angle.cos(), 1 - angle.cos()) - 0.5
    y = torch.where(upper, angle.sin(), 0.5 - angle.sin()) - 0.25
    return torch.stack([x, y], 1) + 0.05 * torch.randn(count, 2, generator=own)


def spirals(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Points of the plane on one of three arms that wind around the middle, and which arm."""
    y = torch.randint(0, 3, (count,), generator=own)
    far = 0.3 + 1.7 * torch.rand(count, generator=own)
    angle = 2.1 * y + 1.6 * far + 0.25 * torch.randn(count, generator=own)
    return torch.stack([far * angle.cos(), far * angle.sin()], 1), y


def circles_of_friends(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes (count, 8, 3), edges both ways (count, 8, 8), and the column in which the mean of nodes and of what their
    neighbours have on average is largest."""
    nodes = torch.randn(count, 8, 3, generator=own)
    upper = (torch.rand(count, 8, 8, generator=own) < 0.35).float().triu(1)
    edges = upper + upper.transpose(1, 2)
    around = edges @ nodes / edges.sum(2, keepdim=True).clamp_min(1)
    return nodes, edges, (nodes + around).mean(1).argmax(1)


def four_kinds(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(4, count, 8) columns and (4, count) numbers: each kind of rows has a rule of its own."""
    w = torch.randn(4, 8, 3, generator=apart(seed + 31))
    x = torch.randn(4, count, 8, generator=own)
    hidden = torch.einsum("knc,kch->knh", x, w) / 2
    y = hidden[..., 0].sin() * 2 + hidden[..., 1] + 0.5 * hidden[..., 2].abs()
    return x, 5 * y + 0.5 * torch.randn(4, count, generator=own)


def in_turn(count: int, own: torch.Generator | None = None, length: int = 12) -> tuple[Tensor, Tensor]:
    """(count, length) words 1 to 15 and which of three groups of five the text is about; a third of its words are of
    that group for certain."""
    y = torch.randint(0, 3, (count,), generator=own)
    ours = 1 + 5 * y[:, None] + torch.randint(0, 5, (count, length), generator=own)
    any_word = torch.randint(1, 16, (count, length), generator=own)
    return torch.where(torch.rand(count, length, generator=own) < 0.33, ours, any_word), y


def motions(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 3, 24): movements of one of five kinds along three axes, in noise, and which kind."""
    y = torch.randint(0, 5, (count,), generator=own)
    turn = 0.3 + torch.rand(5, 3, 1, generator=apart(seed + 35))
    begin = 6.28 * torch.rand(5, 3, 1, generator=apart(seed + 36))
    clean = (begin[y] + turn[y] * torch.arange(24)).sin()
    return clean + 0.8 * torch.randn(clean.shape, generator=own), y


def motion_net() -> nn.Sequential:
    """Two convolutions over time, flat, a head of five scores."""
    layers = [nn.Conv1d(3, 16, 5, 2, 2), nn.ReLU(), nn.Conv1d(16, 16, 5, 2, 2), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(96, 5))
