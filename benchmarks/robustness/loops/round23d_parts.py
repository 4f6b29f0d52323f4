"""What the loops of round 23d share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round23d_keys.json, what each loop is meant to do in round23d_intents.json; categories are
those of round8b_parts, and labels.

round23d_proofs.json repeats by `python -m benchmarks.robustness.prove round23d`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import Language, mlp, pictures
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round23d_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class TwoTasks(nn.Module):
    """A convolutional body and a head for each of two tasks."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten())
        self.heads = nn.ModuleList(nn.Linear(64, 4) for _ in range(2))

    def forward(self, x: Tensor, task: int) -> Tensor:
        out: Tensor = self.heads[task](self.body(x))
        return out


class Windows(nn.Module):
    """A GRU over a series of one column, and from its last state the next number."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.core, self.head = nn.GRU(1, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(x[..., None])[0][:, -1])
        return out


class Denoiser(nn.Module):
    """What noise there is in 64 numbers, given how much of them is noise."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(65, 128, 128, 64, act=nn.SiLU)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        out: Tensor = self.net(torch.cat([x, time[:, None]], 1))
        return out


class Pictured(nn.Module):
    """A variational autoencoder of 64 pixels with eight latent numbers; `noisy` is the mode in which they are drawn."""

    def __init__(self, noisy: bool = True) -> None:
        super().__init__()
        self.noisy = noisy
        self.encoder, self.decoder = mlp(64, 64, 16), mlp(8, 64, 64)

    def latent(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        return mean, log_variance

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.latent(x)
        z = mean
        if self.training == self.noisy:
            z = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        return self.decoder(z), mean, log_variance


class Captions(nn.Module):
    """A CNN whose output is a decoder's first state; the decoder is a GRU cell that goes from word to word."""

    def __init__(self, words: int, width: int = 48) -> None:
        super().__init__()
        layers = [nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Flatten()]
        self.eye = nn.Sequential(*layers, nn.Linear(64, width), nn.Tanh())
        self.words, self.cell = nn.Embedding(words, 24), nn.GRUCell(24, width)
        self.head = nn.Linear(width, words)


# optimizers


class Lion(torch.optim.Optimizer):
    """The sign of an interpolation of gradient and momentum, and decay apart from it."""

    def __init__(self, params: Any, lr: float, decay: float, by_rate: bool = True) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": decay})
        self.by_rate = by_rate

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            rate, decay = group["lr"], group["weight_decay"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                p.mul_(1 - (rate * decay if self.by_rate else decay))
                p.sub_(rate * (0.9 * momentum + 0.1 * p.grad).sign())
                momentum.lerp_(p.grad, 0.01)
        return loss


# loops


def accelerated(
    run: Run,
    net: nn.Module,
    optimizer: Any,
    data: Any,
    loss: Callable[[nn.Module, Any], Tensor],
    epochs: int,
    after_epoch: Callable[[], Any],
) -> None:
    """accelerate's loop with something after each epoch."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    engine = Accelerator(cpu=True)
    model, optimizer, data = engine.prepare(net, optimizer, data)
    doctor = run.watch(model, optimizer)
    for _ in range(epochs):
        model.train()
        for batch in data:
            optimizer.zero_grad()
            value = loss(model, batch)
            engine.backward(value)
            optimizer.step()
            doctor.step(value, batch)
            run.note(value)
        after_epoch()


# tasks


def tones(
    count: int, lowest: float, apart_by: float, own: torch.Generator | None = None, noise: float = 0.8
) -> tuple[Tensor, Tensor]:
    """Tones of one of four pitches, of any phase, in noise, (count, 1, 64), and which pitch."""
    y = torch.randint(0, 4, (count,), generator=own)
    phase = 6.28 * torch.rand(count, 1, generator=own)
    clean = (torch.arange(64) * (lowest + apart_by * y[:, None]) + phase).sin()
    return (clean + noise * torch.randn(count, 64, generator=own))[:, None], y


def waves(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 20) numbers of a wave of its own speed and phase, somewhat noisy, and the number that comes next."""
    speed = 0.3 + 0.6 * torch.rand(count, 1, generator=own)
    phase = 6.28 * torch.rand(count, 1, generator=own)
    series = (speed * torch.arange(21) + phase).sin() + 0.1 * torch.randn(count, 21, generator=own)
    return series[:, :20], series[:, 20]


def thirds(count: int, own: torch.Generator | None = None) -> dict[str, Tensor]:
    """(count, 12) words 1 to 15; the class is the remainder by three that more of the words have."""
    y = torch.randint(0, 3, (count,), generator=own)
    ours = 3 * torch.randint(0, 5, (count, 12), generator=own) + torch.where(y == 0, 3, y)[:, None]
    alike = torch.rand(count, 12, generator=own) < 0.5
    x = torch.where(alike, ours, torch.randint(1, 16, (count, 12), generator=own))
    return {"input_ids": x, "labels": y}


def elbo(net: Pictured, x: Tensor, rebuilt: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """Squared error over twice the noise's variance, 0.04, and the divergence, both summed in a row, mean over rows."""
    error = (rebuilt - x).square().sum(1) / (2 * 0.04)
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)
    return (error + divergence).mean()


def captioned(net: Captions, told: Callable[[Tensor, int], Tensor], x: Tensor, caption: Tensor) -> Tensor:
    """Mean cross-entropy of captions; `told` says which word goes into the cell at a place."""
    state, scores = net.eye(x), []
    for t in range(caption.shape[1]):
        state = net.cell(net.words(told(caption, t)), state)
        scores.append(net.head(state))
    return F.cross_entropy(torch.stack(scores, 1).flatten(0, 1), caption.flatten())


def written(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Pictures of four patterns and captions of eight words 0 to 11: the first is the pattern's, and each other word
    depends on the two before it, by a table of each."""
    x, y = pictures(count, seed, own=own)
    language = Language(seed)
    captions = torch.zeros(count, 8, dtype=torch.long)
    captions[:, 0] = 3 * y
    for t in range(1, 8):
        liked = language.one[captions[:, t - 1]]
        if t > 1:
            liked = liked + language.two[captions[:, t - 2]]
        captions[:, t] = torch.multinomial(liked.softmax(1), 1, generator=own).squeeze(1)
    return x, captions
