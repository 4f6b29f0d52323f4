"""What the loops of round 18 share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round18_keys.json, what each loop is meant to do in round18_intents.json; categories are
those of round8b_parts.

round18_proofs.json repeats by `python -m benchmarks.robustness.prove round18`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import Attention, Classifier, Examples, judged, outcome
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round18_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


def loop(
    run: Run,
    model: nn.Module,
    optimizer: Any,
    batch: Callable[[], Any],
    loss: Callable[[nn.Module, Any], Tensor],
    steps: int,
    before: Callable[[], None] | None = None,
    after: Callable[[int, float], None] | None = None,
) -> None:
    """A plain loop; `before` an update, and `after` one, told its number from 1 and its loss."""
    doctor = run.watch(model, optimizer)
    for step in range(1, steps + 1):
        data = batch()
        optimizer.zero_grad()
        value = loss(model, data)
        value.backward()
        if before:
            before()
        optimizer.step()
        doctor.step(value, data)
        run.note(value)
        if after:
            after(step, value.item())


def columns(fields: dict[str, Tensor], size: int = 16) -> Any:
    """A loader of dictionaries."""
    from torch.utils.data import DataLoader

    rows = [{name: column[i] for name, column in fields.items()} for i in range(len(next(iter(fields.values()))))]
    return DataLoader(Examples(rows), size, shuffle=True)


# networks


class OfWords(Classifier):
    """A classifier of texts that works out for itself what is padding."""

    def forward(self, ids: Tensor, keep: Tensor | None = None) -> Tensor:
        return super().forward(ids, ids > 0 if keep is None else keep)


class Kernel(nn.Module):
    """Multi-head attention by scaled_dot_product_attention: queries, keys and values as (row, head, place, part) where
    `heads_first`, else as (row, place, head, part); with a mask of (place, place), or causal without."""

    def __init__(self, width: int, heads_first: bool = True, mask: Tensor | None = None, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.heads_first, self.mask = heads, heads_first, mask
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        rows, places, width = x.shape
        q, k, v = (p.view(rows, places, self.heads, -1) for p in self.qkv(x).chunk(3, -1))
        if self.heads_first:
            q, k, v = (p.transpose(1, 2) for p in (q, k, v))
        if self.mask is None:
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            seen = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask[:places, :places])
        if self.heads_first:
            seen = seen.transpose(1, 2)
        out: Tensor = self.out(seen.reshape(rows, places, width))
        return out


class Softmax(torch.autograd.Function):
    """Over the last axis; its derivative is p (g - sum p g), without the sum where not `whole`."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, whole: bool) -> Tensor:
        p = scores.softmax(-1)
        ctx.save_for_backward(p)
        ctx.whole = whole
        return p

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (p,) = ctx.saved_tensors
        inner = p * gradient
        return (inner - p * inner.sum(-1, keepdim=True) if ctx.whole else inner), None


class OwnSoftmax(Attention):
    """Causal attention with a softmax of one's own."""

    def __init__(self, width: int, whole: bool) -> None:
        super().__init__(width)
        self.whole = whole

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        rows, places, width = x.shape
        q, k, v = (p.view(rows, places, self.heads, -1).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / (width / self.heads) ** 0.5
        scores = scores.masked_fill(torch.ones(places, places, dtype=torch.bool).triu(1), -1e9)
        out: Tensor = self.out((Softmax.apply(scores, self.whole) @ v).transpose(1, 2).reshape(rows, places, width))
        return out


class Halved(nn.Module):
    """Frames to states of two frames each, (rows, time) to (rows, time / 2, classes)."""

    def __init__(self, units: int, classes: int, block: nn.Module, length: int = 12, width: int = 32) -> None:
        super().__init__()
        self.units, self.places = nn.Embedding(units, width), nn.Embedding(length, width)
        self.conv = nn.Conv1d(width, width, 2, stride=2)
        self.block, self.norm, self.head = block, nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.conv(self.units(ids).transpose(1, 2)).transpose(1, 2)
        out: Tensor = self.head(self.norm(self.block(x + self.places.weight)))
        return out


class Gated(nn.Module):
    """A gated feed-forward layer whose gate and up are one matrix, gate first."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_up, self.down = nn.Linear(width, 2 * inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        out: Tensor = self.down(F.silu(gate) * up)
        return out


class Heard(nn.Module):
    """A number from a series."""

    def __init__(self, columns: int, width: int = 24) -> None:
        super().__init__()
        self.core, self.head = nn.GRU(columns, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(x)[0][:, -1])
        return out


# tasks


def topics(count: int, shares: list[float], like: float, length: int, own: torch.Generator | None = None) -> Any:
    """Texts of words 1 to 15, which as many groups share as there are topics; a word is of the topic's group by the
    chance `like`, else any. Topics have the given shares."""
    y = torch.multinomial(torch.tensor(shares), count, replacement=True, generator=own)
    size = 15 // len(shares)
    ours = 1 + size * y[:, None] + torch.randint(0, size, (count, length), generator=own)
    alike = torch.rand(count, length, generator=own) < like
    return torch.where(alike, ours, torch.randint(1, 16, (count, length), generator=own)), y


def tags(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Texts of twelve words and three tags, each likely where its five words are many."""
    ids = torch.randint(1, 16, (count, 12), generator=own)
    many = torch.stack([((ids - 1) // 5 == k).sum(1) for k in range(3)], 1)
    return ids, torch.bernoulli((1.2 * (many - 6.0)).sigmoid(), generator=own)


def spans(rows: Tensor, sentinels: tuple[int, int], own: torch.Generator) -> dict[str, Tensor]:
    """What T5 reads and says of rows of sixteen words: two spans of two words are hidden behind the sentinels."""
    first = torch.randint(1, 6, (len(rows),), generator=own).tolist()
    second = torch.randint(9, 14, (len(rows),), generator=own).tolist()
    ids, labels = [], []
    for row, a, b in zip(rows.tolist(), first, second, strict=True):
        ids.append([*row[:a], sentinels[0], *row[a + 2 : b], sentinels[1], *row[b + 2 :]])
        labels.append([sentinels[0], *row[a : a + 2], sentinels[1], *row[b : b + 2], 1])
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}


def frames(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 24) units 0 to 23 and the sound, 0 to 5, of each; a sound lasts two frames."""
    sounds = torch.randint(0, 6, (count, 12), generator=own).repeat_interleave(2, 1)
    units = 4 * sounds + torch.randint(0, 4, sounds.shape, generator=own)
    noisy = torch.rand(sounds.shape, generator=own) < 0.2
    return torch.where(noisy, torch.randint(0, 24, sounds.shape, generator=own), units), sounds


def series(count: int, failures: float, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 12, 2) and a number, forty times as large where a sensor failed."""
    x = torch.randn(count, 12, 2, generator=own)
    y = (x[..., 0].cumsum(1) / 3).tanh().mean(1) + 0.5 * x[:, -3:, 1].mean(1)
    failed = torch.rand(count, generator=own) < failures
    return x, torch.where(failed, 40 * y, y)


def clipped(model: nn.Module, limit: float, of_gradients: bool) -> None:
    """Gradients are scaled down where their norm, or that of the weights, is above the limit."""
    held = [p for p in model.parameters() if p.grad is not None]
    sizes = [p.grad.norm() if of_gradients else p.detach().norm() for p in held if p.grad is not None]
    factor = limit / (torch.stack(sizes).norm() + 1e-6)
    if factor < 1:
        for p in held:
            if p.grad is not None:
                p.grad.mul_(factor)


def by_beginnings(run: Run, model: nn.Module, rows: Tensor) -> None:
    """The outcome as in use: what comes next after beginnings of texts."""

    def measure() -> Tensor:
        sizes = range(4, rows.shape[1], 4)
        return torch.stack([F.cross_entropy(model(rows[:, :t])[:, -1], rows[:, t]) for t in sizes]).mean()

    outcome(run, lambda: judged(model, measure))


def clipping(net: nn.Module, loss: Callable[[nn.Module, Any], Tensor], optimizers: Any, clips: bool) -> Any:
    """A Lightning module that keeps the norm of its gradients, and clips them where `clips`."""
    import lightning

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net
            self.norms: list[float] = []

        def training_step(self, batch: Any, index: int) -> Tensor:
            return loss(self.net, batch)

        def configure_gradient_clipping(self, optimizer: Any, gradient_clip_val: Any = None, **how: Any) -> None:
            held = [p.grad for p in self.net.parameters() if p.grad is not None]
            self.norms.append(float(nn.utils.get_total_norm(held)))
            if clips:
                self.clip_gradients(optimizer, gradient_clip_val=gradient_clip_val, **how)

        def configure_optimizers(self) -> Any:
            return optimizers(self.net)

    return Lit()
