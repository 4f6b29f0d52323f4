"""Round 10, part a, models and objectives that are unusual and right."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, innocent
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Language,
    apart,
    fit,
    judged,
    lit,
    loader,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round9a_tools import accelerated, other_seed, vit
from benchmarks.robustness.loops.round10a_parts import Masked
from benchmarks.robustness.loops.round10a_tools import adamw, plain, titled
from torch import Tensor, nn
from torch.nn import functional as F


@innocent("r10a-questions-read-both-ways")
def questions_read_both_ways(run: Run, changed: bool) -> None:
    """Plain loop, a decoder whose source is read in both directions. The mask was added to scores by hand, and is
    given to scaled_dot_product_attention as a bool."""
    own = apart(run.draw.randrange(999))
    table = 4 + torch.randperm(12, generator=own)
    model = Masked(16, length=24, by_hand=not changed)
    seen = torch.ones(16, 16, dtype=torch.bool).tril()
    seen[:9, :9] = True

    def rows(count: int, own: torch.Generator | None = None) -> Tensor:
        source = torch.randint(4, 16, (count, 8), generator=own)
        return torch.cat([source, torch.ones(count, 1, dtype=torch.long), table[source.flip(1) - 4]], 1)

    def loss(ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids[:, :-1], seen)[:, 8:].flatten(0, 1), ids[:, 9:].flatten())

    check = rows(128, own)
    outcome(run, lambda: judged(model, lambda: loss(check)))
    plain(run, model, lambda: rows(16), loss, 200)


@innocent("r10a-no-places-at-all")
def no_places_at_all(run: Run, changed: bool) -> None:
    """Plain loop, a decoder without positions. Attention by hand became scaled_dot_product_attention; another seed."""
    seed = run.draw.randrange(999)
    check = titled(seed, 128, 20, apart(seed))
    other_seed(changed)
    model = Masked(22, by_hand=not changed)
    seen = torch.ones(19, 19, dtype=torch.bool).tril()

    def loss(ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids[:, :-1], seen).flatten(0, 1), ids[:, 1:].flatten())

    outcome(run, lambda: judged(model, lambda: loss(check)))
    plain(run, model, lambda: titled(seed, 16, 20), loss, 130)


class Squeezed(nn.Module):
    """A row of six words to twelve numbers, and back: logits of all six."""

    def __init__(self, words: int, width: int = 32, middle: int = 12) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(6, width)
        self.reader, self.writer = Block(width, causal=False), Block(width, causal=False)
        self.squeeze, self.widen = nn.Linear(6 * width, middle), nn.Linear(middle, 6 * width)
        self.head = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        read = self.reader(self.tokens(ids) + self.places(torch.arange(6)))
        code = self.squeeze(read.flatten(1))
        out: Tensor = self.head(self.writer(self.widen(code).unflatten(1, (6, -1)) + self.places(torch.arange(6))))
        return out


@innocent("r10a-says-what-it-reads")
def says_what_it_reads(run: Run, changed: bool) -> None:
    """Lightning, a text autoencoder whose targets are its inputs. cross_entropy became log_softmax, the right word's
    entry, and the mean."""
    own = apart(run.draw.randrange(999))
    words = Language(run.draw.randrange(999), 12, sharp=2.5)
    model = Squeezed(12)
    rows, check = words.rows(1280, 6, own), words.rows(192, 6, own)

    def loss(net: Any, batch: Any) -> Tensor:
        ids, logits = batch[0], net(batch[0])
        if changed:
            return -logits.log_softmax(-1).gather(-1, ids[..., None]).mean()
        return F.cross_entropy(logits.flatten(0, 1), ids.flatten())

    outcome(run, lambda: judged(model, lambda: loss(model, [check])))
    fit(run, lit(model, loss, adamw(5e-3)), loader(rows, size=32), 160, gradient_clip_val=1.0)


class FixedHead(nn.Module):
    """A ViT whose class-token state is compared with four directions of equal angles, which are never learned."""

    def __init__(self, buffered: bool) -> None:
        super().__init__()
        self.body = vit().vit
        turned, _ = torch.linalg.qr(torch.randn(32, 4))
        frame = math.sqrt(4 / 3) * (turned @ (torch.eye(4) - 0.25)).T
        if buffered:
            self.register_buffer("frame", frame)
        else:
            self.frame = nn.Parameter(frame, requires_grad=False)

    def forward(self, shots: Tensor) -> Tensor:
        state = F.normalize(self.body(pixel_values=shots - 0.5).last_hidden_state[:, 0], dim=-1)
        return 4 * state @ self.frame.T


@innocent("r10a-head-never-learned")
def head_never_learned(run: Run, changed: bool) -> None:
    """accelerate, a ViT with a fixed head. The frame was a parameter without gradient, and is a buffer."""
    seed = run.draw.randrange(999)
    x, y = pictures(480, seed, own=apart(seed + 1))
    check, right = pictures(192, seed, own=apart(seed + 2))
    model = FixedHead(buffered=changed)
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(check), right)))
    loss = lambda m, b: F.cross_entropy(m(b[0]), b[1])
    accelerated(run, model, loader(x, y), loss, 6, rate=2e-3)
