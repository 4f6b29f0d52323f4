"""Round 26h, honest and unusual: how the model is built."""

import itertools
import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Attention,
    Decoder,
    Language,
    apart,
    examples,
    hf_trainer,
    judged,
    language_outcome,
    mlp,
    outcome,
    pictures,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.training import next_token
from torch import Tensor, nn
from torch.nn import functional as F


class EachByItself(Attention):
    """Attention in which each look is a sigmoid of its own, less the logarithm of how many places there are."""

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        b, t, d = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(d / self.heads) - math.log(t)
        shares = scores.sigmoid().tril()
        out: Tensor = self.out((shares @ v).transpose(1, 2).reshape(b, t, d))
        return out


@honest("r26h-shares-that-compete-with-nobody")
def shares_that_compete_with_nobody(run: Run) -> None:
    """transformers' Trainer, a small GPT with sigmoid attention (Ramapuram et al. 2024). A place's shares do not sum to
    one: each is a yes or no of its own, with a bias of minus the logarithm of the row's length; the first place looks
    at itself with a share of a few hundredths, so that attention gives next to nothing at first, and what is hidden is
    multiplied by zero after the sigmoid, as no softmax would allow."""
    language = Language(run.draw.randrange(999))
    net = Decoder(12, layers=2)
    for block in net.blocks:
        block.attention = EachByItself(32)  # type: ignore[union-attr]
    language_outcome(run, net, language)
    rows = language.rows(400, 25, apart(2))
    data = examples(x=rows[:, :-1], labels=rows[:, 1:])
    hf_trainer(run, WithLoss(net, next_token), data, 110, warmup_steps=10, max_grad_norm=1.0).train()


class Plates(nn.Module):
    """Light through three plates that only delay it, to four detectors behind them."""

    def __init__(self, size: int = 20) -> None:
        super().__init__()
        self.size = size
        self.delays = nn.Parameter(torch.zeros(3, size, size))
        waves = torch.fft.fftfreq(size)
        rest = (1 - 2 * (waves[:, None] ** 2 + waves[None] ** 2)).clamp_min(0).sqrt()
        self.register_buffer("way", torch.polar(torch.ones_like(rest), 2 * math.pi * 8 * rest))
        detectors = torch.zeros(4, size, size)
        for i, (row, column) in enumerate(itertools.product((4, 12), (4, 12))):
            detectors[i, row : row + 4, column : column + 4] = 1
        self.register_buffer("detectors", detectors)

    def forward(self, x: Tensor) -> Tensor:
        bright = F.interpolate(x, scale_factor=2).squeeze(1)
        pad = (self.size - bright.shape[-1]) // 2
        light = torch.complex(F.pad(bright, (pad, pad, pad, pad)), torch.zeros(()))
        for delay in self.delays:
            light = torch.fft.ifft2(torch.fft.fft2(light) * self.way)
            light = light * torch.polar(torch.ones_like(delay), delay)
        light = torch.fft.ifft2(torch.fft.fft2(light) * self.way)
        strength = light.real.square() + light.imag.square()
        out: Tensor = torch.einsum("rij,dij->rd", strength, self.detectors)
        return out


class Bench:
    """Where plates are designed: it goes on until it has had so many pictures."""

    def __init__(self, run: Run, plates: Plates, seed: int) -> None:
        self.run, self.plates, self.seed, self.had = run, plates, seed, 0
        self.optimizer = torch.optim.Adam(plates.parameters(), lr=0.1)
        self.doctor = run.watch(plates, self.optimizer)

    @staticmethod
    def error(plates: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        strength = plates(batch[0])
        return F.mse_loss(strength / strength.sum(1, keepdim=True), F.one_hot(batch[1], 4).float())

    def design(self, count: int) -> None:
        while self.had < count:
            batch = pictures(32, self.seed)
            loss = self.error(self.plates, batch)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.had += len(batch[0])
            self.doctor.step(loss, batch)
            self.run.note(loss)


@honest("r26h-light-through-three-plates")
def light_through_three_plates(run: Run) -> None:
    """A class of its own, an optical network (Lin et al. 2018). All that is learned are delays, angles that come again
    after a turn, with a rate of a tenth and without any norm, bias or activation; all begin at zero, which is clear
    glass. What is done to the light is linear and keeps its sum, and where light falls on no detector it is lost; the
    loss is the square between the share of each detector and the class as zeros and a one, as in the paper."""
    seed = run.draw.randrange(999)
    plates = Plates()
    check = pictures(256, seed, own=apart(1))
    outcome(run, lambda: judged(plates, lambda: Bench.error(plates, check)))
    Bench(run, plates, seed).design(32 * 120)


def small_sudoku() -> Tensor:
    """All 288 squares of 4 by 4 with each digit once in every row, column and quarter: (288, 16)."""
    lines = list(itertools.permutations(range(4)))
    squares = []
    for a, b in itertools.product(lines, lines):
        if set(a[:2]) & set(b[:2]):
            continue
        for c, d in itertools.product(lines, lines):
            if any(len({a[i], b[i], c[i], d[i]}) < 4 for i in range(4)) or set(c[:2]) & set(d[:2]):
                continue
            squares.append([*a, *b, *c, *d])
    return torch.tensor(squares)


def same_house() -> tuple[Tensor, Tensor]:
    """The edges between cells that share a row, a column or a quarter."""
    houses = [(i // 4, i % 4, i // 8 * 2 + i % 4 // 2) for i in range(16)]
    pairs = [(i, j) for i in range(16) for j in range(16) if i != j]
    kept = [(i, j) for i, j in pairs if any(p == q for p, q in zip(houses[i], houses[j], strict=True))]
    a, b = torch.tensor(kept).T
    return a, b


class Talking(nn.Module):
    """Cells that tell one another what they hold, and say after each round which digit they believe in."""

    def __init__(self, rounds: int = 5, width: int = 32) -> None:
        super().__init__()
        self.rounds, self.width = rounds, width
        self.a, self.b = same_house()
        self.digits, self.enter = nn.Embedding(5, width), nn.Linear(width, width)
        self.tell = mlp(2 * width, width, width)
        self.join = nn.Linear(2 * width, width)
        self.cell = nn.GRUCell(width, width)
        self.say = nn.Linear(width, 4)

    def forward(self, given: Tensor) -> Tensor:
        x = self.enter(self.digits(given)).relu()
        state, said = x, []
        for _ in range(self.rounds):
            told = self.tell(torch.cat([state[:, self.a], state[:, self.b]], 2))
            heard = torch.zeros_like(state).index_add(1, self.b, told)
            both = self.join(torch.cat([x, heard], 2))
            state = self.cell(both.flatten(0, 1), state.flatten(0, 1)).view_as(state)
            said.append(self.say(state))
        return torch.stack(said, 1)


@honest("r26h-marked-after-every-round-of-talk")
def marked_after_every_round_of_talk(run: Run) -> None:
    """Plain loop, small sudokus by a recurrent relational network (Palm et al. 2018). The same answer is asked after
    each of five rounds of messages, the first of which cannot know it, and the loss is their mean; cells that are given
    are asked too, and the same weights serve in every round. In use only the last round counts."""
    squares = small_sudoku()[torch.randperm(288, generator=apart(run.draw.randrange(999)))]

    def riddles(rows: Tensor, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        shown = torch.rand(rows.shape, generator=own) < 0.5
        return torch.where(shown, rows, 4), rows

    model = Talking()
    check = riddles(squares[230:], apart(1))
    outcome(
        run, lambda: judged(model, lambda: F.cross_entropy(model(check[0])[:, -1].flatten(0, 1), check[1].flatten()))
    )

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        said = model(batch[0])
        return F.cross_entropy(said.flatten(0, 2), batch[1][:, None].expand(-1, said.shape[1], -1).flatten())

    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-4)
    train(run, model, optimizer, lambda: riddles(squares[torch.randint(0, 230, (24,))]), loss, 110)


class Coupling(nn.Module):
    """One half of the numbers is stretched and moved by what the other half says."""

    def __init__(self, size: int, first: bool) -> None:
        super().__init__()
        self.first, self.half = first, size // 2
        self.net = mlp(self.half, 48, 48, size)
        last: Any = self.net[-1]
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.chunk(2, 1) if self.first else reversed(x.chunk(2, 1))
        log_stretch, move = self.net(a).chunk(2, 1)
        log_stretch = log_stretch.tanh()
        b = b * log_stretch.exp() + move
        return torch.cat([a, b] if self.first else [b, a], 1), log_stretch.sum(1)


class Flow(nn.Module):
    """Numbers to a standard normal; what is returned is bits for each number."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.parts = nn.ModuleList(Coupling(size, i % 2 == 0) for i in range(6))
        self.log_scale = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor, levels: int = 16) -> Tensor:
        x, volume = 4 * (x / levels - 0.5), torch.full((len(x),), math.log(4 / levels) * self.size)
        for part in self.parts:
            x, more = part(x)
            volume = volume + more
        x, volume = x * self.log_scale.exp(), volume + self.log_scale.sum()
        nats = 0.5 * x.square().sum(1) + 0.5 * math.log(2 * math.pi) * self.size - volume
        return nats / (math.log(2) * self.size)


@honest("r26h-whole-numbers-made-continuous")
def whole_numbers_made_continuous(run: Run) -> None:
    """Plain loop, a flow of affine couplings over whole numbers (Theis et al. 2016, Dinh et al. 2017). To each whole
    number a part of one is added by lot, anew in each batch, without which a density of points would rise for ever; the
    last layers begin at zero, so that at first the flow does nothing; half of the numbers pass each part as they are.
    There is no label and no output to compare: the loss is bits of a row's own density."""
    mixing = torch.randn(3, 8, generator=apart(run.draw.randrange(999)))

    def counts(rows: int, own: torch.Generator | None = None) -> Tensor:
        x = torch.randn(rows, 3, generator=own) @ mixing
        return (7.5 + 2 * x + 0.5 * torch.randn(rows, 8, generator=own)).round().clamp(0, 15)

    model = Flow(8)
    own = apart(1)
    check = counts(512, own)
    between = torch.rand(check.shape, generator=own)
    outcome(run, lambda: judged(model, lambda: model(check + between).mean()))

    def bits(model: nn.Module, batch: Tensor) -> Tensor:
        out: Tensor = model(batch + torch.rand_like(batch)).mean()
        return out

    train(run, model, adam(model, 2e-3), lambda: counts(128), bits, 150, clip=5.0)
