"""What the loops of round 21c share. A fault's category and the patterns of a right diagnosis stand in
round21c_keys.json, what each loop is meant to do in round21c_intents.json; categories are those of round8b_parts.

round21c_proofs.json repeats by `python -m benchmarks.robustness.prove round21c`.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import fault
from benchmarks.robustness.loops.round5_tools import apart, mlp
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round21c_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


def cosine(optimizer: Any, steps: int, warmup: int) -> Any:
    """A linear warm-up, then half a cosine down to zero."""

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 + 0.5 * math.cos(math.pi * min(1.0, (step - warmup) / (steps - warmup)))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


# forecasts


class Forecast(nn.Module):
    """A GRU over readings; from its last state a mean and the logarithm of a standard deviation."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.head = nn.GRU(1, 24, batch_first=True), nn.Linear(24, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(x)[0][:, -1])
        return out


def gusts(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Twelve readings of wind around a level, (rows, 12, 1), and the next one, which is the less certain the
    higher."""
    level = torch.randn(count, 1, generator=own)
    x = level + 0.3 * torch.randn(count, 12, generator=own)
    spread = (0.7 * level - 0.5).exp()
    y = 0.8 * level + spread * torch.randn(count, 1, generator=own)
    return x[..., None], y[:, 0]


class Dilated(nn.Module):
    """Three causal convolutions, dilated by one, two and four; three quantiles from the last place."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(1 if d == 1 else 16, 16, 3, dilation=d) for d in (1, 2, 4))
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(F.pad(x, (2 * layer.dilation[0], 0))).relu()
        out: Tensor = self.head(x[:, :, -1])
        return out


def demand(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """A shop's last twenty-four days, (rows, 1, 24), a wave of a week around a level, and the next day: skewed."""
    level = 1 + 0.5 * torch.rand(count, 1, generator=own)
    shift = 7 * torch.rand(count, 1, generator=own)
    days = level + 0.5 * ((torch.arange(25) + shift) * (2 * math.pi / 7)).sin()
    late = -torch.rand(count, generator=own).clamp_min(1e-6).log()
    x = days[:, :24] + 0.1 * torch.randn(count, 24, generator=own)
    return x[:, None], days[:, 24] + 0.4 * (late - 1)


LEVELS = torch.tensor([0.1, 0.5, 0.9])


def pinball(quantiles: Tensor, y: Tensor) -> Tensor:
    """Of three quantiles, the mean."""
    error = y[:, None] - quantiles
    return torch.maximum(LEVELS * error, (LEVELS - 1) * error).mean()


# texts of twenty kinds


def memos(count: int, own: torch.Generator | None = None) -> dict[str, Tensor]:
    """Padded texts of six to twelve words, 1 to 60; each of twenty kinds has three words that it likes."""
    y = torch.randint(0, 20, (count,), generator=own)
    sizes = torch.randint(6, 13, (count, 1), generator=own)
    liked = torch.rand(count, 12, generator=own) < 0.7
    words = 1 + 3 * y[:, None] + torch.randint(0, 3, (count, 12), generator=own)
    words = torch.where(liked, words, torch.randint(1, 61, (count, 12), generator=own))
    mask = torch.arange(12) < sizes
    return {"input_ids": words * mask, "attention_mask": mask.long(), "labels": y}


class Counts(nn.Module):
    """A linear classifier of how often each word occurs."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(61, 20, mode="sum", padding_idx=0)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.words(ids)
        return out


class Skimmer(nn.Module):
    """Convolutions over three words, the largest of each channel, a linear head; loss and scores as transformers has
    them."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.look = nn.Embedding(61, 32, padding_idx=0), nn.Conv1d(32, 48, 3, padding=1)
        self.head = nn.Linear(48, 20)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Any:
        from transformers.modeling_outputs import SequenceClassifierOutput

        seen = self.look(self.words(input_ids).mT).relu() * attention_mask[:, None]
        scores = self.head(seen.amax(2))
        return SequenceClassifierOutput(loss=F.cross_entropy(scores, labels), logits=scores)


def distilling(teacher: nn.Module, reduction: str) -> Any:
    """transformers' Trainer for a student: a tenth from the labels, nine tenths from the teacher."""
    from transformers import Trainer

    class Distilling(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
            out = model(**inputs)
            with torch.no_grad():
                soft = (teacher(inputs["input_ids"]) / 2).softmax(-1)
            told = F.kl_div((out.logits / 2).log_softmax(-1), soft, reduction=reduction)
            loss = 0.1 * out.loss + 0.9 * 4 * told
            return (loss, out) if return_outputs else loss

    return Distilling


# particles


class Potential(nn.Module):
    """An energy: for each pair of particles a small network of their distance, summed."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = mlp(8, 32, 32, 1, act=nn.SiLU)
        self.first, self.second = torch.triu_indices(5, 5, 1)

    def forward(self, places: Tensor) -> Tensor:
        apart_by = (places[:, self.first] - places[:, self.second]).square().sum(-1).add(1e-6).sqrt()
        waves = (-4 * (apart_by[..., None] - torch.linspace(0.25, 3, 8)).square()).exp()
        out: Tensor = self.pair(waves).sum((1, 2))
        return out


def clusters(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Places of five particles in space, their energy by Morse's curve for each pair, and the forces on them."""
    places = (0.9 * torch.randn(count, 5, 3, generator=own)).requires_grad_()
    i, j = torch.triu_indices(5, 5, 1)
    far = (places[:, i] - places[:, j]).square().sum(-1).add(1e-6).sqrt()
    energy = (1 - (1 - far).exp()).square().sum(1)
    (slope,) = torch.autograd.grad(energy.sum(), places)
    return places.detach(), energy.detach(), -slope


# pictures


class Pictured(nn.Module):
    """A variational autoencoder of pictures of 8 by 8: convolutions down, eight numbers, convolutions up."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(96, 16)
        )
        self.up = nn.Sequential(
            nn.Linear(8, 96), nn.ReLU(), nn.Unflatten(1, (24, 2, 2)), nn.ConvTranspose2d(24, 12, 4, 2, 1), nn.ReLU()
        )
        self.out = nn.ConvTranspose2d(12, 1, 4, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The picture again, and the divergence of each row."""
        mean, spread = self.down(x).chunk(2, -1)
        code = mean + (0.5 * spread).exp() * torch.randn_like(mean) if self.training else mean
        divergence = 0.5 * (mean.square() + spread.exp() - 1 - spread).sum(1)
        return self.out(self.up(code)), divergence


class Quantised(nn.Module):
    """An autoencoder whose codes, one for each patch of 2 by 2, are the nearest of a table of thirty-two."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 8, 2, 2))
        self.table = nn.Embedding(32, 8)
        nn.init.uniform_(self.table.weight, -1 / 32, 1 / 32)
        self.up = nn.Sequential(nn.ConvTranspose2d(8, 24, 2, 2), nn.ReLU(), nn.Conv2d(24, 1, 3, padding=1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The picture again, what the encoder said, and the codes nearest to it: (rows, 4, 4, 8)."""
        said = self.down(x).permute(0, 2, 3, 1)
        near = torch.cdist(said.flatten(0, 2), self.table.weight).argmin(1).view(said.shape[:3])
        codes = self.table(near)
        through = said + (codes - said).detach()
        return self.up(through.permute(0, 3, 1, 2)), said, codes


class Fronted(nn.Module):
    """A trained body behind a new front, and a new head behind it."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.front, self.body, self.head = nn.Conv2d(3, 1, 3, padding=1), body.eval(), nn.Linear(64, 4)
        body.requires_grad_(False)
        self.without_gradient = False

    def train(self, mode: bool = True) -> "Fronted":
        super().train(mode)
        self.body.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.without_gradient):
            h = self.body(self.front(x))
        out: Tensor = self.head(h)
        return out


def other_camera(x: Tensor, own: torch.Generator | None = None) -> Tensor:
    """(rows, 3, 8, 8): the picture among three channels with shadows and a glare that has nothing to do with it."""
    glare = 1.5 * torch.randn(x.shape, generator=own)
    noise = 0.1 * torch.randn(len(x), 3, *x.shape[2:], generator=own)
    return torch.cat([glare - x, glare + 0.5, 0.7 * glare + 0.3 * x], 1) + noise


# noise


class Denoiser(nn.Module):
    """The noise in a point of the plane, by the point and the time."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(18, 64, 64, 2, act=nn.SiLU)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * torch.arange(1, 9) * (math.pi / 100)
        out: Tensor = self.net(torch.cat([x, angles.sin(), angles.cos()], -1))
        return out


def rings(count: int, own: torch.Generator | None = None) -> Tensor:
    """Points near six places on a circle."""
    angle = torch.randint(0, 6, (count,), generator=own) * (math.pi / 3)
    return 1.4 * torch.stack([angle.cos(), angle.sin()], -1) + 0.12 * torch.randn(count, 2, generator=own)


KEPT = torch.cumprod(1 - torch.linspace(1e-3, 0.1, 100), 0)


def drawn(model: nn.Module, count: int) -> Tensor:
    """Points drawn from noise in twenty-five steps without chance."""
    x = torch.randn(count, 2, generator=apart(33))
    for t in range(99, -1, -4):
        noise = model(x, torch.full((count,), float(t)))
        clean = (x - (1 - KEPT[t]).sqrt() * noise) / KEPT[t].sqrt()
        before = KEPT[t - 4] if t >= 4 else torch.tensor(1.0)
        x = before.sqrt() * clean + (1 - before).sqrt() * noise
    return x


def energy_distance(a: Tensor, b: Tensor) -> Tensor:
    return 2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()


# gradients


class Chunked(torch.autograd.Function):
    """Cross-entropy of a linear head, a few places of each row at a time; both gradients are made on the way
    forward."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, adds: bool) -> Tensor:
        loss, to_hidden, to_weight = hidden.new_zeros(()), [], torch.zeros_like(weight)
        for h, t in zip(hidden.split(4, 1), targets.split(4, 1), strict=True):
            chances = (h @ weight.T).log_softmax(-1)
            loss = loss - chances.gather(2, t[..., None]).sum() / targets.numel()
            slope = (chances.exp() - F.one_hot(t, len(weight))) / targets.numel()
            to_hidden.append(slope @ weight)
            piece = slope.flatten(0, 1).T @ h.flatten(0, 1)
            to_weight = to_weight + piece if adds else piece
        ctx.save_for_backward(torch.cat(to_hidden, 1), to_weight)
        return loss

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Any:  # type: ignore[override]
        to_hidden, to_weight = ctx.saved_tensors
        return given * to_hidden, given * to_weight, None, None


class Orders:
    """Records of sixteen places in four fields; each field has twelve words, and the next depends on the last two."""

    def __init__(self, seed: int) -> None:
        self.one, self.two = (2 * torch.randn(4, 12, 12, generator=apart(seed + k)) for k in (0, 1))

    def rows(self, count: int, own: torch.Generator | None = None) -> Tensor:
        out = torch.randint(0, 12, (count, 17), generator=own)
        for t in range(2, 17):
            field = (t - 1) // 4
            chance = (self.one[field, out[:, t - 1]] + self.two[field, out[:, t - 2]]).softmax(-1)
            out[:, t] = torch.multinomial(chance, 1, generator=own).squeeze(1)
        return out + 12 * ((torch.arange(17) - 1).clamp_min(0) // 4)


class Shared(nn.Module):
    """One body; a head that says a price and one that says a kind."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.price, self.kind = nn.Linear(48, 1), nn.Linear(48, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        return self.price(h).squeeze(-1), self.kind(h)


def houses(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Six columns, a price in thousands, and one of three kinds, by other rules."""
    x = torch.randn(count, 6, generator=own)
    price = 5 * (x[:, 0] + x[:, 1] * x[:, 2] + (2 * x[:, 3]).sin() + 0.3 * torch.randn(count, generator=own))
    score = x[:, 4] * x[:, 5] + 0.7 * x[:, 1] - 0.5 * x[:, 3].square()
    return x, price, (score > -0.7).long() + (score > 0.3).long()


class Gauge(nn.Module):
    """Fixed waves of each reading, an LSTM, and a number from its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.waves = nn.Linear(2, 16)
        self.waves.requires_grad_(False)
        self.core, self.head = nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(self.waves(x).sin())[0][:, -1])
        return out


def gauged(count: int, own: torch.Generator | None = None, glitches: float = 0.0) -> tuple[Tensor, Tensor]:
    """Ten readings of two sensors, (rows, 10, 2), and a number; a share of the numbers is a glitch, far off."""
    x = torch.randn(count, 10, 2, generator=own)
    y = x[:, -3:, 0].sum(1) + x[:, -1, 1] * x[:, -2, 0]
    broken = torch.rand(count, generator=own) < glitches
    return x, torch.where(broken, 40 * torch.randn(count, generator=own), y)


# what moves weights


class OwnAdam(torch.optim.Optimizer):
    """Adam with decoupled decay, written out; its steps are counted beside the moments, or on the optimizer."""

    def __init__(self, params: Any, lr: float, decay: float, counts_on_itself: bool) -> None:
        super().__init__(params, {"lr": lr, "decay": decay})
        self.count, self.counts_on_itself = 0, counts_on_itself

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["count"], state["first"], state["second"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                state["count"] += 1
                count = self.count if self.counts_on_itself else state["count"]
                state["first"].lerp_(p.grad, 0.1)
                state["second"].lerp_(p.grad.square(), 0.001)
                first, second = state["first"] / (1 - 0.9**count), state["second"] / (1 - 0.999**count)
                p.mul_(1 - group["lr"] * group["decay"]).sub_(group["lr"] * first / (second.sqrt() + 1e-8))


class Tower(nn.Module):
    """The mean of a text's vectors, through a small network, at unit length."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.words, self.net = nn.EmbeddingBag(words, 32), mlp(32, 64, 24)

    def forward(self, ids: Tensor) -> Tensor:
        return F.normalize(self.net(self.words(ids)), dim=-1)


def asked(count: int, table: Tensor, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Questions of eight words, and answers that say six of them in other words, in any order."""
    ask = torch.randint(0, len(table), (count, 8), generator=own)
    answer = table[ask[:, :6]]
    return ask, torch.cat([answer, torch.randint(0, len(table), (count, 2), generator=own)], 1)


def loans(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Six columns, whether paid back, and one of two groups, of which the columns tell and which paid unequally."""
    group = torch.randint(0, 2, (count,), generator=own)
    x = torch.randn(count, 6, generator=own)
    x[:, 0] += 1.5 * group
    score = x[:, 1] + x[:, 2] * x[:, 3] + 2.4 * (group - 0.5)
    return x, (score + 0.5 * torch.randn(count, generator=own) > 0).float(), group


class Offers:
    """Customers of twelve columns and four offers; what an offer brings depends on the customer, and is known in
    noise."""

    def __init__(self, seed: int) -> None:
        self.weights = 0.7 * torch.randn(12, 4, generator=apart(seed))

    def mean(self, x: Tensor) -> Tensor:
        return (x @ self.weights).tanh()

    def bring(self, x: Tensor, offer: Tensor) -> Tensor:
        brought = self.mean(x).gather(1, offer[:, None]).squeeze(1)
        return brought + 0.5 * torch.randn(len(x))
