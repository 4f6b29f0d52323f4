"""Networks and small tasks of round 13a."""

import math

import torch
from benchmarks.robustness.loops.round5_tools import Block, apart, mlp
from torch import Tensor, nn
from torch.nn import functional as F

# networks


class Strands(nn.Module):
    """Convolutions over bases, the maximum over places, a head."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.bases = nn.Embedding(4, 8)
        self.body = nn.Sequential(nn.Conv1d(8, 32, 7, padding=3), nn.ReLU(), nn.Conv1d(32, 32, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(32, classes)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.bases(ids).transpose(1, 2)).amax(2))
        return out


class Decayed(nn.Module):
    """GRU-D (Che et al. 2018): a missing value is the last one, faded to zero, the mean, by hours since; so is the
    state."""

    def __init__(self, columns: int, classes: int, width: int = 24) -> None:
        super().__init__()
        self.fade, self.forget = nn.Parameter(torch.full((columns,), 0.3)), nn.Linear(columns, width)
        self.cell, self.head = nn.GRUCell(2 * columns, width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, hours, columns), NaN where nothing was measured."""
        last, since = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])
        state = x.new_zeros(len(x), self.cell.hidden_size)
        for now in x.unbind(1):
            known = ~now.isnan()
            since = torch.where(known, 0.0, since + 1)
            last = torch.where(known, now.nan_to_num(), last)
            filled = last * (-self.fade.relu() * since).exp()
            state = self.cell(torch.cat([filled, known.float()], 1), state * (-self.forget(since).relu()).exp())
        out: Tensor = self.head(state)
        return out


class PointNet(nn.Module):
    """Qi et al. 2017, without its transforms: a network on each point, the maximum over points, a head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Conv1d(3, 32, 1), nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, 64, 1), nn.ReLU())
        self.head = mlp(64, 32, classes)

    def forward(self, points: Tensor) -> Tensor:
        """(rows, points, 3)."""
        if self.training:
            angle = 2 * math.pi * torch.rand(len(points), 1)
            x, y = points[..., 0], points[..., 1]
            turned = [x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos(), points[..., 2]]
            points = torch.stack(turned, 2)[:, torch.randperm(points.shape[1])]
        out: Tensor = self.head(self.each(points.transpose(1, 2)).amax(2))
        return out


class TimeMix(nn.Module):
    """RWKV-4's attention: a sum over the past whose weights fade at a learned rate for each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.linspace(0, 1, width).repeat(3, 1))
        self.decay = nn.Parameter(torch.linspace(-3.0, 1.0, width))
        self.first = nn.Parameter(torch.full((width,), math.log(0.3)))
        self.key, self.value, self.receptance = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)
        for layer in (self.key, self.receptance, self.out):
            nn.init.zeros_(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        before = F.pad(x, (0, 0, 1, -1))
        k, v, r = (
            layer(x * m + before * (1 - m))
            for layer, m in zip((self.key, self.value, self.receptance), self.mix, strict=True)
        )
        t = torch.arange(x.shape[1])
        ago = (t[:, None] - t[None])[..., None]
        weight = torch.where(ago > 0, -(ago - 1) * self.decay.exp(), self.first)  # (time, time, width)
        weight = (weight + k[:, None]).masked_fill(ago < 0, -1e9).softmax(2)
        out: Tensor = self.out(r.sigmoid() * (weight * v[:, None]).sum(2))
        return out


class ChannelMix(nn.Module):
    """RWKV-4's feed-forward part, a gate times a squared ReLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.linspace(0, 1, width).repeat(2, 1))
        self.key, self.value = nn.Linear(width, 2 * width, bias=False), nn.Linear(2 * width, width, bias=False)
        self.receptance = nn.Linear(width, width, bias=False)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.receptance.weight)

    def forward(self, x: Tensor) -> Tensor:
        before = F.pad(x, (0, 0, 1, -1))
        k, r = (x * m + before * (1 - m) for m in self.mix)
        out: Tensor = self.receptance(r).sigmoid() * self.value(self.key(k).relu().square())
        return out


class SmallRWKV(nn.Module):
    def __init__(self, words: int, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.tokens, self.enter = nn.Embedding(words, width), nn.LayerNorm(width)
        nn.init.uniform_(self.tokens.weight, -1e-4, 1e-4)
        parts = [part for _ in range(layers) for part in (TimeMix(width), ChannelMix(width))]
        self.parts, self.norms = nn.ModuleList(parts), nn.ModuleList(nn.LayerNorm(width) for _ in parts)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.enter(self.tokens(ids))
        for norm, part in zip(self.norms, self.parts, strict=True):
            x = x + part(norm(x))
        out: Tensor = self.head(self.norm(x))
        return out


class Spans(nn.Module):
    """A small encoder; every pair of places has a score for each type, (rows, types, places, places)."""

    def __init__(self, words: int, types: int, width: int = 32) -> None:
        super().__init__()
        self.types = types
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(16, width)
        self.block, self.norm = Block(width, causal=False), nn.LayerNorm(width)
        self.ends = nn.Linear(width, types * 2 * 16)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.block(self.tokens(ids) + self.places(torch.arange(ids.shape[1]))))
        start, end = self.ends(x).unflatten(-1, (self.types, 2, 16)).permute(3, 0, 2, 1, 4)
        scores = start @ end.transpose(-1, -2) / 4
        return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).tril(-1), -1e12)


class Biaffine(nn.Module):
    """Dozat and Manning 2017: an LSTM of both directions, and for each word a score of every place as its head."""

    def __init__(self, words: int, width: int = 24) -> None:
        super().__init__()
        self.tokens, self.core = nn.Embedding(words, width), nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.own, self.head = (nn.Sequential(nn.Linear(2 * width, width), nn.LeakyReLU(0.1)) for _ in range(2))
        self.matrix = nn.Parameter(torch.zeros(width + 1, width))

    def forward(self, ids: Tensor) -> Tensor:
        """(rows, places) to (rows, places, places); place 0 is the root, padding is no head."""
        x = self.core(self.tokens(ids))[0]
        scores = F.pad(self.own(x), (0, 1), value=1.0) @ self.matrix @ self.head(x).transpose(1, 2)
        return scores.masked_fill((ids == 0)[:, None], -math.inf)


# tasks


def strands(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """(count, 40) bases 0 to 3, of which 3 - b is the complement of b, with one of three motifs on either strand."""
    motifs = torch.randint(0, 4, (3, 7), generator=apart(seed + 61))
    x, y = torch.randint(0, 4, (count, 40), generator=own), torch.randint(0, 3, (count,), generator=own)
    at = torch.randint(0, 34, (count, 1), generator=own) + torch.arange(7)
    x = x.scatter(1, at, motifs[y])
    return torch.where(torch.rand(count, 1, generator=own) < 0.5, 3 - x.flip(1), x), y


def admissions(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 12, 3) numbers by the hour, most of them NaN, and whether the first column rises and the second falls."""
    y = torch.randint(0, 2, (count,), generator=own)
    slope = torch.stack([2.0 * y - 1, 1 - 2.0 * y, torch.zeros(count)], 1)[:, None]
    x = torch.randn(count, 1, 3, generator=own) + slope * torch.linspace(-1, 1, 12)[None, :, None]
    x = x + 0.4 * torch.randn(count, 12, 3, generator=own)
    return x.masked_fill(torch.rand(x.shape, generator=own) < 0.6, math.nan), y


def scans(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """(count, 40, 3) points on a ball, a pipe or a box, of which 10 to 40 are different."""
    y = torch.randint(0, 3, (count,), generator=own)
    raw = torch.randn(count, 40, 3, generator=own)
    ball, pipe, box = F.normalize(raw, dim=2), raw.clone(), raw / raw.abs().amax(2, keepdim=True)
    pipe[..., :2] = F.normalize(raw[..., :2], dim=2)
    pipe[..., 2] = pipe[..., 2].tanh()
    points = torch.stack([ball, pipe, box])[y, torch.arange(count)] + 0.05 * torch.randn(raw.shape, generator=own)
    sizes = torch.randint(10, 41, (count, 1), generator=own)
    again = (torch.rand(count, 40, generator=own) * sizes).long()
    at = torch.where(torch.arange(40) < sizes, torch.arange(40), again)
    return points.gather(1, at[..., None].expand(-1, -1, 3)), y


class Basis(nn.Module):
    """A block of N-BEATS (Oreshkin et al. 2020): what it explains of the past, and what it says of the future."""

    def __init__(self, past: int, future: int, width: int = 48) -> None:
        super().__init__()
        self.past, self.body = past, mlp(past, width, width, width)
        self.leave = nn.Linear(width, past + future)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = self.leave(self.body(x).relu())
        return out[:, : self.past], out[:, self.past :]


class Beats(nn.Module):
    """Blocks of N-BEATS, each of which reads what those before it left; a series is divided by its own last level."""

    def __init__(self, past: int, future: int, blocks: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Basis(past, future) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        level = x[:, -1:]
        rest, said = x / level, torch.zeros(())
        for block in self.blocks:
            explained, more = block(rest)
            rest, said = rest - explained, said + more
        out: Tensor = said * level
        return out


class Letters(nn.Module):
    """Bengio et al. 2003 with a batch norm: three letters, their vectors side by side, one hidden layer."""

    def __init__(self, letters: int, width: int = 10, hidden: int = 64) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.hidden, self.norm = nn.Linear(3 * width, hidden, bias=False), nn.BatchNorm1d(hidden)
        self.head = nn.Linear(hidden, letters)
        nn.init.kaiming_normal_(self.hidden.weight, nonlinearity="tanh")
        with torch.no_grad():
            self.head.weight.mul_(0.1)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.hidden(self.letters(ids).flatten(1))).tanh())
        return out
