"""What the loops of round 23c share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round23c_keys.json, what each loop is meant to do in round23c_intents.json; categories are
those of round8b_parts.

round23c_proofs.json repeats by `python -m benchmarks.robustness.prove round23c`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import fault
from benchmarks.robustness.loops.round5_tools import apart, mlp
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round23c_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class Shapes(nn.Module):
    """A U-Net of one floor: three scores for each pixel of a grey picture."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU())
        self.below = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.Upsample(None, 2))
        self.last = nn.Sequential(nn.Conv2d(36, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 3, 1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        out: Tensor = self.last(torch.cat([h, self.below(h)], 1))
        return out


class Alarm(nn.Module):
    """Three convolutions over time and a score for each place; scores begin where one place in ten is an event."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv1d(1, width, 5, padding=2), nn.ReLU()), *(nn.Conv1d(width, width, 5, padding=2), nn.ReLU())
        )
        self.head = nn.Conv1d(width, 1, 1)
        nn.init.constant_(self.head.bias, -2.2)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))[:, 0]
        return out


class Mixture(nn.Module):
    """From a point in the plane and a direction eight Gaussians over three angles: log shares (rows, 8), means and log
    deviations (rows, 8, 3)."""

    def __init__(self, parts: int = 8) -> None:
        super().__init__()
        self.parts, self.body = parts, mlp(3, 64, 64, 7 * parts, act=nn.Tanh)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        share, mean, spread = self.body(x).split([self.parts, 3 * self.parts, 3 * self.parts], 1)
        return share.log_softmax(1), mean.view(-1, self.parts, 3), spread.view(-1, self.parts, 3).clamp(-3, 2)


class Clouds(nn.Module):
    """A cloud of points through a network for each point, the largest of each feature, eight numbers, and 24 points."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.code = mlp(2, 32, 64), nn.Linear(64, 8)
        self.back = mlp(8, 64, 64, 48)

    def forward(self, points: Tensor) -> Tensor:
        return self.back(self.code(self.each(points).amax(1))).view(-1, 24, 2)


class Spans(nn.Module):
    """A GRU in both directions over words, a score for each place to be the start of a name and one to be its end."""

    def __init__(self, words: int, taught_end: Callable[[Tensor, Tensor], Tensor], width: int = 24) -> None:
        super().__init__()
        self.words, self.core = nn.Embedding(words, 16), nn.GRU(16, width, batch_first=True, bidirectional=True)
        self.head, self.taught_end = nn.Linear(2 * width, 2), taught_end

    def forward(self, ids: Tensor, start: Tensor | None = None, end: Tensor | None = None) -> dict[str, Tensor]:
        begins, ends = self.head(self.core(self.words(ids))[0]).unbind(2)
        if start is None or end is None:
            return {"begins": begins, "ends": ends}
        loss = (F.cross_entropy(begins, start) + F.cross_entropy(ends, self.taught_end(start, end))) / 2
        return {"loss": loss, "begins": begins, "ends": ends}


class Shopper(nn.Module):
    """A GRU over what somebody looked at, and a score for each offer."""

    def __init__(self, words: int, offers: int, width: int = 32) -> None:
        super().__init__()
        self.words, self.core = nn.Embedding(words, 16), nn.GRU(16, width, batch_first=True)
        self.head = nn.Linear(width, offers)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(self.words(ids))[0][:, -1])
        return out


class Steering(nn.Module):
    """Two movements for a state of five numbers, drawn from a Gaussian around a network's, with a learned spread."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread = mlp(5, 48, 48, 2, act=nn.Tanh), nn.Parameter(torch.full((2,), -0.7))

    def forward(self, x: Tensor) -> torch.distributions.Normal:
        return torch.distributions.Normal(self.mean(x), self.spread.exp().expand(len(x), 2))


class Recurrence(torch.autograd.Function):
    """h_t = a_t h_{t-1} + b_t along the second axis from nought, with its backward pass by hand."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, write: Tensor, own_gate: bool) -> Tensor:
        state, states = torch.zeros_like(write[:, 0]), []
        for t in range(write.shape[1]):
            state = gate[:, t] * state + write[:, t]
            states.append(state)
        out = torch.stack(states, 1)
        ctx.save_for_backward(gate, out)
        ctx.own_gate = own_gate
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        gate, states = ctx.saved_tensors
        running, to_write = torch.zeros_like(grad[:, 0]), []
        length = grad.shape[1]
        for t in range(length - 1, -1, -1):
            at = t if ctx.own_gate else t + 1
            running = grad[:, t] + (gate[:, at] * running if at < length else 0)
            to_write.append(running)
        back = torch.stack(to_write[::-1], 1)
        before = torch.cat([torch.zeros_like(states[:, :1]), states[:, :-1]], 1)
        return back * before, back, None


class Gates(nn.Module):
    """Words, a recurrence whose gates depend on the word, the last state, a number."""

    def __init__(self, words: int, own_gate: bool, width: int = 24) -> None:
        super().__init__()
        self.words, self.own_gate = nn.Embedding(words, width), own_gate
        self.gate, self.write, self.head = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1)
        nn.init.constant_(self.gate.bias, 2.0)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        gate = self.gate(x).sigmoid()
        states: Tensor = Recurrence.apply(gate, self.write(x), self.own_gate)
        out: Tensor = self.head(states[:, -1])
        return out


class Towers(nn.Module):
    """Questions of words and things of twelve columns, each to a vector of length one."""

    def __init__(self, words: int, width: int = 16) -> None:
        super().__init__()
        self.words, self.question = nn.EmbeddingBag(words, 32), mlp(32, 32, width)
        self.thing = mlp(12, 32, width)

    def asked(self, ids: Tensor) -> Tensor:
        return F.normalize(self.question(self.words(ids)), dim=1)

    def offered(self, columns: Tensor) -> Tensor:
        return F.normalize(self.thing(columns), dim=1)

    def forward(self, ids: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        return self.asked(ids), self.offered(columns)


class KindAndStrength(nn.Module):
    """A GRU over three axes of a movement, a head for its kind and one for its strength; `together` makes one loss."""

    def __init__(self, together: Callable[[Tensor, Tensor], Tensor], kinds: int = 4, width: int = 32) -> None:
        super().__init__()
        self.core, self.together = nn.GRU(3, width, batch_first=True), together
        self.kind, self.strength = nn.Linear(width, kinds), nn.Linear(width, 1)

    def forward(self, x: Tensor, kind: Tensor | None = None, strength: Tensor | None = None) -> dict[str, Tensor]:
        last = self.core(x)[0].mean(1)
        scores, number = self.kind(last), self.strength(last)[:, 0]
        if kind is None or strength is None:
            return {"kind": scores, "strength": number}
        loss = self.together(F.cross_entropy(scores, kind), F.mse_loss(number, strength))
        return {"loss": loss, "kind": scores, "strength": number}


# tasks


def drawn_shapes(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Noisy grey pictures of 18 by 18 and each pixel's class: 1 in a bright square, 2 in a dark disc, else 0."""
    y = torch.zeros(count, 18, 18, dtype=torch.long)
    place = torch.arange(18)
    for row in range(count):
        (top, left), middle = (
            torch.randint(0, 12, (2,), generator=own).tolist(),
            torch.randint(3, 15, (2,), generator=own),
        )
        size, radius = torch.randint(5, 8, (1,), generator=own), torch.randint(3, 5, (1,), generator=own)
        y[row, top : top + int(size), left : left + int(size)] = 1
        y[row, (place[:, None] - middle[0]) ** 2 + (place - middle[1]) ** 2 < radius**2] = 2
    clean = torch.tensor([0.0, 1.0, -1.0])[y][:, None]
    return clean + 0.6 * torch.randn(clean.shape, generator=own), y


def without_edges(y: Tensor) -> Tensor:
    """Masks in which pixels beside a pixel of another class are 255, as nobody could say what they are."""
    values = y[:, None].float()
    return torch.where(F.max_pool2d(values, 3, 1, 1) == -F.max_pool2d(-values, 3, 1, 1), values, 255.0)[:, 0].long()


def clicked(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(count, 8, 6) offers in the order in which an older system showed them, which were clicked, how likely each place
    was looked at, and how likely each offer is to be liked. A click needs both."""
    x = torch.randn(count, 8, 6, generator=own)
    w, old = torch.randn(2, 6, generator=apart(seed + 30))
    order = (x @ old).argsort(1, descending=True)
    x = x.gather(1, order[..., None].expand_as(x))
    liked = (1.5 * x @ w / w.norm() + x[..., 0] * x[..., 1] - 0.5).sigmoid()
    seen = (1 / (1 + torch.arange(8.0))).expand(count, 8)
    return x, torch.bernoulli(liked * seen, generator=own), seen, liked


def beats(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 1, 48) noisy curves and where an event is, three places with a wave of its own, one or two of them; as
    often there is a wave that is no event, turned upside down."""
    x, y = 0.6 * torch.randn(count, 48, generator=own), torch.zeros(count, 48)
    wave = torch.tensor([1.0, 2.0, -1.5])
    for row in range(count):
        places = (6 * torch.randperm(7, generator=own)[:3] + 2).tolist()
        some = int(torch.randint(1, 3, (1,), generator=own))
        for number, place in enumerate(places):
            real = number < some
            x[row, place : place + 3] += wave if real else -wave
            y[row, place : place + 3] = float(real)
    return x[:, None], y


def hand(angles: Tensor) -> Tensor:
    """Where an arm of two parts, one long and 0.8, ends."""
    first, both = angles[..., 0], angles[..., :2].sum(-1)
    return torch.stack([first.cos() + 0.8 * both.cos(), first.sin() + 0.8 * both.sin()], -1)


def reached(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Points that an arm reached and the direction of its tool, and its three angles: as often with the elbow on the
    one side as on the other, and with the tool, which has two equal ends, turned by half a turn or not."""
    bend = 0.6 + 1.4 * torch.rand(count, generator=own)
    bend = torch.where(torch.rand(count, generator=own) < 0.5, bend, -bend)
    angles = torch.stack([1.6 * torch.rand(count, generator=own) - 0.8 - bend / 2, bend], 1)
    direction = 2 * torch.rand(count, generator=own) - 1
    half = 3.1416 * torch.randint(0, 2, (count,), generator=own)
    wrist = direction - angles.sum(1) + half
    angles = torch.cat([angles, wrist[:, None]], 1)
    point = torch.cat([hand(angles), direction[:, None]], 1)
    return point, angles + 0.05 * torch.randn(count, 3, generator=own)


def outlines(count: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 24, 2): points on a ring, along a square or along a cross, of any size and place."""
    turn = 6.28 * torch.rand(count, 24, generator=own)
    ring = torch.stack([turn.cos(), turn.sin()], 2)
    square = ring / ring.abs().amax(2, keepdim=True)
    along, upright = 2 * torch.rand(count, 24, generator=own) - 1, torch.rand(count, 24, generator=own) < 0.5
    cross = torch.stack([torch.where(upright, 0.0, along), torch.where(upright, along, 0.0)], 2)
    kind = torch.randint(0, 3, (count, 1, 1), generator=own)
    points = torch.where(kind == 0, ring, torch.where(kind == 1, square, cross))
    size, place = 0.4 + 0.6 * torch.rand(count, 1, 1, generator=own), torch.randn(count, 1, 2, generator=own)
    return size * points + place + 0.03 * torch.randn(points.shape, generator=own)


def named(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 14) words 0 to 11, among them one name of two to five words 12 to 19, and where it starts and ends."""
    ids = torch.randint(0, 12, (count, 14), generator=own)
    start, size = torch.randint(0, 9, (count,), generator=own), torch.randint(2, 6, (count,), generator=own)
    end = start + size - 1
    place = torch.arange(14)
    inside = (place >= start[:, None]) & (place <= end[:, None])
    return torch.where(inside, torch.randint(12, 20, (count, 14), generator=own), ids), start, end


def grades(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Six columns and a grade 0 to 5, the larger the more there is of a sum of columns and of chance."""
    w = torch.randn(6, generator=apart(seed + 31))
    x = torch.randn(count, 6, generator=own)
    level = x @ w / w.norm() + 0.5 * (2 * x[:, 0]).sin() + 1.6 * torch.randn(count, generator=own)
    return x, torch.bucketize(level, torch.tensor([-2.0, -0.9, 0.0, 0.9, 2.0]))


def looked_at(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 8) things of 20 that somebody looked at, and how likely each of five offers is to be bought."""
    liking = 1.2 * torch.randn(20, 5, generator=apart(seed + 32))
    liking = liking - liking.mean(0)
    ids = torch.randint(0, 20, (count, 8), generator=own)
    return ids, (liking[ids].sum(1) / 2 - 1).sigmoid()


def balances(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 12) words 0 to 23, of which 0 to 3 close an account, one in six, and each other one adds its own amount;
    and what lies on the account at the end, in noise."""
    amount = torch.randn(24, generator=apart(seed + 37))
    ids = torch.randint(4, 24, (count, 12), generator=own)
    closes = torch.rand(count, 12, generator=own) < 1 / 6
    ids = torch.where(closes, torch.randint(0, 4, (count, 12), generator=own), ids)
    counts = ids.flip(1).lt(4).cumsum(1).flip(1) == 0
    total = (amount[ids] * counts).sum(1)
    return ids, (total + 0.1 * torch.randn(count, generator=own)) / 2


def asked_for(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 8) words of 40 and (count, 12) columns of a thing that suits them: four numbers say which words are
    likely, and are hidden among columns of which most tell nothing."""
    inside = torch.randn(count, 4, generator=own)
    likely = (inside @ (1.5 * torch.randn(4, 40, generator=apart(seed + 33)))).softmax(1)
    ids = torch.multinomial(likely, 8, replacement=True, generator=own)
    columns = torch.cat([(1.5 * inside).tanh(), 1.5 * torch.randn(count, 8, generator=own)], 1)
    return ids, columns @ torch.linalg.qr(torch.randn(12, 12, generator=apart(seed + 34)))[0]


def movements(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 24, 3) movements along three axes in noise, which of four kinds, and how strong."""
    kind, strength = torch.randint(0, 4, (count,), generator=own), torch.randn(count, generator=own)
    begin = 6.28 * torch.rand(4, 1, 3, generator=apart(seed + 35))
    turn = (0.4 + 0.1 * torch.rand(4, 1, 3, generator=apart(seed + 36))) * torch.arange(24)[None, :, None]
    clean = (0.4 * strength).exp()[:, None, None] * (begin + turn)[kind].sin()
    return clean + 0.6 * torch.randn(clean.shape, generator=own), kind, strength


class Grid:
    """Four places by four: four moves, which a wall stops, one place that ends it with +5 and one with -5."""

    goal, pit, discount = 15, 6, 0.9

    def __init__(self) -> None:
        self.goes = torch.zeros(16, 4, dtype=torch.long)
        for place in range(16):
            row, column = divmod(place, 4)
            near = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
            for move, (down, across) in enumerate(near):
                self.goes[place, move] = 4 * min(max(down, 0), 3) + min(max(across, 0), 3)
        self.ends = (self.goes == self.goal) | (self.goes == self.pit)
        self.pays = 5.0 * (self.goes == self.goal).float() - 5.0 * (self.goes == self.pit).float()
        self.places = torch.tensor([place for place in range(16) if place not in (self.goal, self.pit)])

    def worth(self) -> Tensor:
        """(16, 4): what a move is worth if all after it are best."""
        value = torch.zeros(16, 4)
        for _ in range(60):
            value = self.pays + self.discount * value.amax(1)[self.goes] * ~self.ends
        return value
