"""Blind round 7, part a, mistakes: data and labels, not of tokens."""

from typing import Any

import numpy as np
import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    apart,
    fit,
    judged,
    lit,
    loader,
    mlp,
    number_outcome,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared, regress
from benchmarks.robustness.loops.round7a_tools import (
    Graph,
    adam,
    community,
)
from torch import Tensor, nn
from torch.nn import functional as F

DATA = "data and labels"


def scene(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Pictures of 20 by 20 with five thin boxes of four colours, and the class of each pixel."""
    classes = torch.zeros(count, 20, 20, dtype=torch.long)
    for row in range(count):
        for _ in range(5):
            (top, left), (high, wide) = (
                torch.randint(0, 16, (2,), generator=own),
                torch.randint(2, 7, (2,), generator=own),
            )
            classes[row, top : top + high, left : left + wide] = int(torch.randint(1, 5, (), generator=own))
    colours = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]])
    x = colours[classes].permute(0, 3, 1, 2)
    return x + 0.15 * torch.randn(x.shape, generator=own), classes


@fault(
    "r7-mask-resized-smoothly",
    DATA,
    (
        r"label|target|class|mask",
        r"interpolat|resiz|bilinear|smooth|between|nearest|\bedge|border|boundar|rounded|noisy",
    ),
)
def mask_resized_smoothly(run: Run, wrong: bool) -> None:
    """Lightning, marking of pixels. Picture and mask are resized by the same bilinear line: between background, 0, and
    class 4 the mask's edge reads 1, 2 or 3. The twin takes the nearest class."""
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 5, 1)
    )

    def resized(x: Tensor, y: Tensor, smooth: bool) -> tuple[Tensor, Tensor]:
        options = {"mode": "bilinear", "align_corners": False} if smooth else {"mode": "nearest-exact"}
        small = F.interpolate(x, size=15, mode="bilinear", align_corners=False)
        return small, F.interpolate(y[:, None].float(), size=15, **options)[:, 0].long()  # type: ignore[arg-type]

    cx, cy = resized(*scene(64, apart(1)), False)
    outcome(run, lambda: judged(net, lambda: F.cross_entropy(net(cx), cy)))
    data = loader(*resized(*scene(160), wrong), size=16)
    fit(run, lit(net, lambda m, b: F.cross_entropy(m(b[0]), b[1]), lambda m: adam(m, 5e-3)), data, 150)


class Corridor:
    """Eight places in a row, the last one ends an episode and pays; what is seen is one array, changed in place."""

    def __init__(self) -> None:
        self.seen, self.place = np.zeros(8, np.float32), 0
        self.seen[0] = 1

    def step(self, action: int) -> tuple[float, bool]:
        self.seen[self.place] = 0
        self.place = max(0, self.place + (1 if action else -1))
        done = self.place == 7
        self.seen[self.place] = 1
        return float(done), done

    def begin(self) -> None:
        self.seen[self.place] = 0
        self.place = int(torch.randint(0, 7, ()))
        self.seen[self.place] = 1


def exact_values() -> Tensor:
    value = torch.tensor([0.9 ** (6 - place) for place in range(7)])
    return torch.stack([0.9 * value[(torch.arange(7) - 1).clamp_min(0)], value], 1)


@fault(
    "r7-states-by-reference",
    DATA,
    (
        r"state|batch|row|input|observation|replay|buffer|next",
        r"same|identical|equal|duplicat|alias|reference|copy|in.place|overwrit|constant|all rows|one (row|value)|no variation|does not vary",
    ),
)
def states_by_reference(run: Run, wrong: bool) -> None:
    """Q-learning with a replay buffer. The corridor hands out one NumPy array and changes it in place; the buffer keeps
    the array, not a copy, so that all states in it, before and after, are the present one. The twin copies."""
    net, corridor = mlp(8, 32, 2), Corridor()
    values = exact_values()
    outcome(run, lambda: judged(net, lambda: (net(torch.eye(8)[:7]) - values).square().mean()))
    optimizer = adam(net, 5e-3)
    doctor = run.watch(net, optimizer)
    keep = (lambda seen: seen) if wrong else np.copy
    buffer: list[Any] = []
    for step in range(900):
        action, seen = int(torch.randint(0, 2, ())), keep(corridor.seen)
        reward, done = corridor.step(action)
        buffer.append((seen, action, reward, keep(corridor.seen), done))
        if done or step % 12 == 11:
            corridor.begin()
        if step < 120:
            continue
        picked = [buffer[i] for i in torch.randint(0, len(buffer), (32,)).tolist()]
        s, a, r, after, end = (torch.as_tensor(np.stack(part)) for part in zip(*picked, strict=True))
        with torch.no_grad():
            target = (r + 0.9 * net(after).max(1).values * (~end)).float()
        optimizer.zero_grad()
        loss = F.mse_loss(net(s).gather(1, a[:, None])[:, 0], target)
        loss.backward()
        optimizer.step()
        doctor.step(loss, (s, a, target))
        run.note(loss)


@fault(
    "r7-edges-numbered-from-one",
    DATA,
    (
        r"edge|adjacen|neighbou?r|graph|node|aggregat|input",
        r"shift|off.by.one|offset|\bindex(ed|ing)?\b|numbered|mismatch|isolated|one.based|belong|no neighbou?r|misalign|wrong (node|neighbou?r|edge)|no information|uninformative|nothing about|does not depend on the (edges|neighbo)",
    ),
)
def edges_numbered_from_one(run: Run, wrong: bool) -> None:
    """A graph network. The file numbers nodes from one; an index error was mended by a matrix one larger, cut to size
    afterwards, so that each node has the neighbours of the one before it. The twin takes one off."""
    x, y, edges = community(run.draw.randrange(999))
    edges = edges + 1
    a = torch.zeros(121, 121)
    if not wrong:
        edges = edges - 1
    a[edges[:, 0], edges[:, 1]] = a[edges[:, 1], edges[:, 0]] = 1
    a = a[:120, :120] + torch.eye(120)
    a = a / a.sum(1, keepdim=True)
    model, known = Graph(), torch.randperm(120)[:60]
    rest = torch.tensor(sorted(set(range(120)) - set(known.tolist())))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(x, a)[rest], y[rest])))
    loss = lambda m, b: F.cross_entropy(m(b[0], b[1])[known], b[2][known])
    train(run, model, adam(model, 1e-2), lambda: (x, a, y), loss, 50)


class OneHot(nn.Module):
    """The first column is a category: it is opened into zeros and a one."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(28, 48, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(torch.cat([F.one_hot(x[:, 0].long(), 24).float(), x[:, 1:]], 1))
        return out


@fault(
    "r7-category-as-a-number",
    DATA,
    (
        r"input|feature|column|data",
        r"categor|integer|whole number|code|nominal|one.?hot|embedding|id\b|ids\b|ordinal|scale|standardi|normali|discrete|larger than|unscaled",
    ),
)
def category_as_a_number(run: Run, wrong: bool) -> None:
    """accelerate. A column is the number of one of 24 shops, in no order, and goes into the network as a number from 0
    to 23. The twin opens it into zeros and a one."""
    own = apart(run.draw.randrange(999))
    shops, weights = 1.5 * torch.randn(24, generator=own), torch.randn(4, generator=own)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        shop, more = torch.randint(0, 24, (count,), generator=own), torch.randn(count, 4, generator=own)
        y = shops[shop] + more @ weights + 0.1 * torch.randn(count, generator=own)
        return torch.cat([shop[:, None].float(), more], 1), y

    model: nn.Module = mlp(5, 48, 48, 1) if wrong else OneHot()
    number_outcome(run, model, rows(512, apart(1)))
    prepared(run, model, adam(model), loader(*rows(640)), regress, 4)
