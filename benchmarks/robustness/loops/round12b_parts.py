"""What the loops of round 12b share. A fault's category and the patterns of a right diagnosis stand in
round12b_keys.json, what each loop is meant to do in round12b_intents.json; categories are those of round8b_parts.

round12b_proofs.json repeats by `python -m benchmarks.robustness.prove round12b`.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import Block, Language, documents
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round12b_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


def half_cosine(steps: int) -> Callable[[int], float]:
    """From one to zero."""
    return lambda step: 0.5 + 0.5 * math.cos(math.pi * min(1.0, step / steps))


class Turned(torch.autograd.Function):
    """Ganin and Lempitsky 2015: what comes in goes out, and the gradient comes back times `factor`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.factor * gradient, None


class TopicAndOrigin(nn.Module):
    """A small encoder of texts, the mean over words, and two heads; the second one's gradient comes back times
    `factor`."""

    def __init__(self, factor: float, words: int = 20, width: int = 32) -> None:
        super().__init__()
        self.factor = factor
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(16, width)
        self.block = Block(width, causal=False)
        self.topic, self.origin = nn.Linear(width, 3), nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, ids: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        x = self.block(self.tokens(ids) + self.places(torch.arange(ids.shape[1])), keep)
        share = keep.float()[..., None]
        features = (x * share).sum(1) / share.sum(1)
        return self.topic(features), self.origin(Turned.apply(features, self.factor))


def reviews(count: int, own: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Padded texts of three topics and two origins; a fifth of the words, 16 to 19, tell the origin."""
    x, keep, topic = documents(count, own)
    origin = torch.randint(0, 2, (count,), generator=own)
    mark = 16 + 2 * origin[:, None] + torch.randint(0, 2, x.shape, generator=own)
    marked = (torch.rand(x.shape, generator=own) < 0.2) & keep
    return torch.where(marked, mark, x), keep, topic, origin


class Shampoo(torch.optim.Optimizer):
    """Gupta et al. 2018: each side of a matrix has a sum of squares, whose inverse `root`-th roots stand on both sides
    of the gradient; vectors as in AdaGrad. The roots are worked out anew every five steps."""

    def __init__(self, parameters: Any, lr: float, root: int, eps: float = 1e-6) -> None:
        super().__init__(parameters, {"lr": lr, "root": root, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(group["lr"] * self.direction(p, group))

    def direction(self, p: nn.Parameter, group: dict[str, Any]) -> Tensor:
        state, g = self.state[p], p.grad
        assert g is not None
        if g.ndim < 2:
            state["sum"] = state.get("sum", torch.full_like(p, group["eps"])) + g.square()
            return g / state["sum"].sqrt()
        if not state:
            state["t"], state["sums"] = 0, [group["eps"] * torch.eye(n) for n in g.shape]
        for total, square in zip(state["sums"], (g @ g.T, g.T @ g), strict=True):
            total.add_(square)
        if state["t"] % 5 == 0:
            state["roots"] = [inverse_root(total, group["root"]) for total in state["sums"]]
        state["t"] += 1
        left, right = state["roots"]
        out: Tensor = left @ g @ right
        return out


def inverse_root(matrix: Tensor, root: int) -> Tensor:
    """matrix ** (-1 / root), symmetric and positive."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp_min(1e-6) ** (-1 / root)) @ vectors.T


def grown(language: Language, seed: int, words: int) -> Language:
    """A language with more words, in which the first ones follow one another as before."""
    out = Language(seed, words)
    for new, old in ((out.one, language.one), (out.two, language.two)):
        new[: language.words, : language.words] = old
    return out


def hidden(rows: Tensor, mask: int, share: float = 0.2, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Words hidden behind `mask`, in the rows themselves, and the words there, -100 elsewhere."""
    at = torch.rand(rows.shape, generator=own) < share
    labels = rows.masked_fill(~at, -100)
    return rows.masked_fill_(at, mask), labels


def discounted(x: Tensor, factor: float) -> Tensor:
    """Each place's number plus what follows, discounted: (rows, time)."""
    out, total = torch.zeros_like(x), torch.zeros(len(x))
    for t in range(x.shape[1] - 1, -1, -1):
        total = x[:, t] + factor * total
        out[:, t] = total
    return out


def accumulate(run: Run, model: nn.Module, parts: list[Any], loss: Callable[[Any], Tensor]) -> Tensor:
    """Mean of equal parts' losses, after their gradients."""
    values = []
    for part in parts:
        value = loss(part) / len(parts)
        value.backward()
        values.append(value.detach())
    return torch.stack(values).sum()


class ByChance(torch.optim.Optimizer):
    """AdamW whose weights are bfloat16, rounded up or down by chances that keep the mean; moments in float32."""

    def __init__(self, parameters: Any, lr: float, rounded: Callable[[Tensor], Tensor], decay: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr, "decay": decay})
        self.rounded = rounded

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state, g = self.state[p], p.grad.float()
                if not state:
                    state["t"], state["m"], state["v"] = 0, torch.zeros_like(g), torch.zeros_like(g)
                state["t"] += 1
                state["m"].lerp_(g, 0.1)
                state["v"].lerp_(g.square(), 0.01)
                m, v = state["m"] / (1 - 0.9 ** state["t"]), state["v"] / (1 - 0.99 ** state["t"])
                exact = p.float() * (1 - group["lr"] * group["decay"]) - group["lr"] * m / (v.sqrt() + 1e-8)
                p.copy_(self.rounded(exact))


def by_added_bits(x: Tensor) -> Tensor:
    """float32 to bfloat16: sixteen random bits are added and sixteen cut off."""
    noise = torch.randint(0, 1 << 16, x.shape, dtype=torch.int32)
    cut = (x.view(torch.int32) + noise) & -65536
    return cut.view(torch.float32).bfloat16()


def by_neighbours(x: Tensor) -> Tensor:
    """float32 to bfloat16: one of the two neighbours, the nearer one more often."""
    low = (x.view(torch.int32) & -65536).view(torch.float32)
    high = ((x.view(torch.int32) & -65536) + 65536).view(torch.float32)
    return torch.where(torch.rand_like(x) < (x - low) / (high - low), high, low).bfloat16()


def mixed_loss(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Cross-entropy over the words that are asked for, by a model of transformers."""
    logits = model(input_ids=batch["input_ids"]).logits
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
