"""Round 20a, honest and odd: networks that are not built as most are."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    next_loss,
    number_outcome,
    outcome,
    pictures,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss
from benchmarks.robustness.loops.round7b_tools import adam
from torch import Tensor, nn
from torch.nn import functional as F


class MaskedConv(nn.Conv2d):
    """A convolution that sees only pixels above and to the left, and its own place unless it is the first."""

    def __init__(self, a: int, b: int, first: bool) -> None:
        super().__init__(a, b, 3, padding=1)
        keep = torch.ones(3, 3)
        keep[1, 1 if first else 2 :] = 0
        keep[2] = 0
        self.register_buffer("keep", keep)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight * self.keep, self.bias, padding=1)


@honest("r20a-pixel-after-pixel")
def pixel_after_pixel(run: Run) -> None:
    """Plain loop, pictures in black and white by a PixelCNN (van den Oord et al. 2016). The very picture that goes in
    is the label, nothing is shifted and nothing hidden; what keeps the answer from being read off are the kernels,
    half of whose weights count for nothing and never have a gradient."""
    seed = run.draw.randrange(999)
    rows = (pictures(384, seed, own=apart(seed))[0] > 0.5).float()
    new = (pictures(192, seed, own=apart(1))[0] > 0.5).float()
    layers: list[nn.Module] = [MaskedConv(1, 24, True), nn.ReLU()]
    for _ in range(3):
        layers += [MaskedConv(24, 24, False), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Conv2d(24, 1, 1))

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(batch), batch)

    outcome(run, lambda: judged(model, lambda: loss(model, new)))
    train(run, model, adam(model, 4e-3), lambda: rows[torch.randint(0, 384, (32,))], loss, 150)


class Ponder(nn.Module):
    """A cell that is used up to six times, with an answer and a chance to stop each time."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.answer, self.stop = nn.GRUCell(8, 48), nn.Linear(48, 1), nn.Linear(48, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The answers and the chances that it stopped there, each (rows, 6)."""
        state, left = x.new_zeros(len(x), 48), x.new_ones(len(x))
        answers, chances = [], []
        for step in range(6):
            state = self.cell(x, state)
            stop = self.stop(state).squeeze(1).sigmoid() if step < 5 else torch.ones(len(x))
            answers.append(self.answer(state).squeeze(1))
            chances.append(left * stop)
            left = left * (1 - stop)
        return torch.stack(answers, 1), torch.stack(chances, 1)


@honest("r20a-thinks-until-it-stops")
def thinks_until_it_stops(run: Run) -> None:
    """Plain loop, parity by a PonderNet (Banino et al. 2021). The same cell reads the same row again and again, the
    loss is that of each of its answers times the chance that it stopped there, which the network says itself and might
    lower to escape the loss, and a divergence draws these chances to a law of the author's."""
    known = 0.3 * 0.7 ** torch.arange(6)
    known = known / known.sum()
    places = torch.randperm(8, generator=apart(run.draw.randrange(999)))[:3]

    def rows(count: int = 64, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.randint(0, 2, (count, 8), generator=own).float() * 2 - 1
        return x, (x[:, places].prod(1) > 0).float()

    model = Ponder()

    def expected(answers: Tensor, chances: Tensor, y: Tensor) -> Tensor:
        each = F.binary_cross_entropy_with_logits(answers, y[:, None].expand(-1, 6), reduction="none")
        return (chances * each).sum(1).mean()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        answers, chances = model(batch[0])
        divergence = F.kl_div(known.log().expand_as(chances), chances, reduction="batchmean")
        return expected(answers, chances, batch[1]) + 0.01 * divergence

    new, truth = rows(256, apart(1))
    outcome(run, lambda: judged(model, lambda: expected(*model(new), truth)))
    train(run, model, adam(model, 5e-3), rows, loss, 200)


class Copying(nn.Module):
    """A reader in both directions, a writer, and a chance to copy a word in place of writing one."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(16, 24), nn.Embedding(6, 24)
        self.reads = nn.GRU(24, 24, batch_first=True, bidirectional=True)
        self.writes = nn.GRU(24, 48, batch_first=True)
        self.words, self.copies = nn.Linear(96, 16), nn.Linear(96, 1)

    def forward(self, source: Tensor, shown: Tensor) -> Tensor:
        """Chances of sixteen words and of forty names, where a name's id is above its text's vocabulary."""
        seen, before = (torch.where(ids < 16, ids, 3) for ids in (source, shown))
        read = self.reads(self.tokens(seen) + self.places.weight[: seen.shape[1]])[0]
        state = self.writes(self.tokens(before) + self.places.weight[: before.shape[1]])[0]
        looks = (state @ read.transpose(1, 2) / 48**0.5).softmax(2)
        both = torch.cat([state, looks @ read], 2)
        copy = self.copies(both).sigmoid()
        written = F.pad((1 - copy) * self.words(both).softmax(2), (0, 40))
        return written.scatter_add(2, source[:, None].expand(-1, shown.shape[1], -1), copy * looks)


@honest("r20a-copies-what-it-cannot-spell")
def copies_what_it_cannot_spell(run: Run) -> None:
    """Plain loop, a pointer-generator (See et al. 2017). A third of the labels are ids that the vocabulary does not
    have: names, which the network reads as one unknown word and can only copy from where they stand. Its output are
    probabilities, of which the loss takes the logarithm, and most of them are exactly nought."""
    own_word = 4 + torch.randperm(12, generator=apart(run.draw.randrange(999)))

    def pairs(count: int = 32, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        words = torch.randint(4, 16, (count, 6), generator=own)
        names = 16 + torch.rand(count, 40, generator=own).argsort(1)[:, :6]
        named = torch.rand(count, 6, generator=own) < 0.33
        answer = torch.where(named, names, own_word[words - 4])
        shown = F.pad(answer[:, :-1], (1, 0), value=1)
        return torch.where(named, names, words), shown, answer

    model = Copying()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        source, shown, answer = batch
        return -model(source, shown).gather(2, answer[..., None]).clamp_min(1e-9).log().mean()

    check = pairs(128, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 5e-3), pairs, loss, 200, clip=2.0)


class LongFilter(nn.Module):
    """Hyena's operator: gates around one convolution as long as the text, whose kernel a small network writes."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.short = nn.Conv1d(3 * width, 3 * width, 3, padding=2, groups=3 * width)
        self.kernel = mlp(5, 24, width, act=nn.SiLU)
        self.skip = nn.Parameter(torch.ones(width))
        time = torch.linspace(0, 1, length)[:, None]
        waves = [f(2 * torch.pi * k * time) for k in (1, 2) for f in (torch.sin, torch.cos)]
        self.register_buffer("time", torch.cat([time, *waves], 1))
        self.register_buffer("fading", (-time * torch.linspace(1, 12, width)).exp())

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        a, b, value = self.short(self.enter(x).transpose(1, 2))[..., :length].chunk(3, 1)
        kernel = (self.kernel(self.time) * self.fading)[:length].T / length**0.5
        value = value * b
        waves = torch.fft.rfft(value, 2 * length) * torch.fft.rfft(kernel, 2 * length)
        long = torch.fft.irfft(waves, 2 * length)[..., :length] + self.skip[:, None] * value
        out: Tensor = self.leave((a * long).transpose(1, 2))
        return out


class Hyena(nn.Module):
    """A language model without attention, recurrence or places."""

    def __init__(self, words: int, width: int = 32, length: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.filters = nn.ModuleList(LongFilter(width, length) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for norm, mixes in zip(self.norms, self.filters, strict=True):
            x = x + mixes(norm(x))
        out: Tensor = self.head(self.norm(x))
        return out


@honest("r20a-one-long-filter-by-waves")
def one_long_filter_by_waves(run: Run) -> None:
    """transformers' Trainer, a language model of long convolutions (Hyena, Poli et al. 2023). There is no attention,
    no state and no place; what came before reaches a word through complex numbers, with zeros behind the text so that
    its end does not come round to its beginning, and labels come shifted already."""
    language = Language(run.draw.randrange(999), sharp=2.5)
    net = Hyena(12)
    check = language.rows(96, 24, apart(1))
    outcome(run, lambda: judged(net, lambda: next_loss(net, check)))
    rows = language.rows(512, 24, apart(2))
    model = WithLoss(net, lambda logits, labels: F.cross_entropy(logits.flatten(0, 1), labels.flatten()))
    hf_trainer(run, model, examples(x=rows[:, :-1], labels=rows[:, 1:]), 120, learning_rate=8e-3).train()


class Additive(nn.Module):
    """A network of its own for each of six columns, whose curves are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.curves = nn.ModuleList(mlp(1, 24, 12, 1) for _ in range(6))
        self.constant = nn.Parameter(torch.zeros(()))

    def parts(self, x: Tensor) -> Tensor:
        return torch.cat([curve(x[:, i : i + 1]) for i, curve in enumerate(self.curves)], 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.parts(x), 0.1, self.training).sum(1) + self.constant


def curved(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    sign = torch.randint(0, 2, (6,), generator=apart(seed)) * 2 - 1
    x = torch.randn(count, 6, generator=own)
    curves = [(2 * x[:, 0]).sin(), x[:, 1].abs(), x[:, 2], (x[:, 3] > 0).float(), x[:, 4].square() / 2, 0 * x[:, 5]]
    return x, torch.stack(curves, 1) @ sign.float() + 3 + 0.1 * torch.randn(count, generator=own)


@honest("r20a-one-curve-for-each-column")
def one_curve_for_each_column(run: Run) -> None:
    """Lightning, a table by a neural additive model (Agarwal et al. 2021). No layer sees two columns together, whole
    curves are dropped at random from a sum that is the answer itself, and a penalty asks the curves for nothing but to
    be small."""
    seed = run.draw.randrange(999)
    model = Additive()
    number_outcome(run, model, curved(256, seed, apart(1)))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        parts = model.parts(batch[0])  # type: ignore[operator]
        return F.mse_loss(F.dropout(parts, 0.1).sum(1) + model.constant, batch[1]) + 1e-3 * parts.square().mean()

    data = loader(*curved(512, seed, apart(2)), size=64)
    fit(run, lit(model, loss, lambda net: adam(net, 5e-3)), data, 160)


def things(count: int, own: torch.Generator | None = None) -> Tensor:
    """Pictures of 8 by 8 with two squares, of two brightnesses."""
    x = torch.zeros(count, 1, 8, 8)
    for picture, places in zip(x, torch.randint(0, 6, (count, 4), generator=own).tolist(), strict=True):
        picture[0, places[0] : places[0] + 3, places[1] : places[1] + 3] = 1
        picture[0, places[2] : places[2] + 3, places[3] : places[3] + 3] = 0.5
    return x


class Slots(nn.Module):
    """Three slots that begin as noise, divide a picture among them in three rounds, and paint it again."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        line = torch.linspace(-1, 1, 8)
        self.register_buffer("grid", torch.stack(torch.meshgrid(line, line, indexing="ij"), 2).view(64, 2))
        self.width, self.eyes = width, nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU())
        self.seen = mlp(width + 2, width, width)
        self.mean, self.log_spread = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))
        self.norm_in, self.norm_slot = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.cell, self.paint = nn.GRUCell(width, width), mlp(width + 2, 48, 48, 2)

    def forward(self, x: Tensor) -> Tensor:
        rows = len(x)
        grid = self.grid.expand(rows, -1, -1)
        seen = self.norm_in(self.seen(torch.cat([self.eyes(x).flatten(2).transpose(1, 2), grid], 2)))
        k, v = self.k(seen), self.v(seen)
        slots = self.mean + self.log_spread.exp() * torch.randn(rows, 3, self.width)
        for _ in range(3):
            shares = (self.q(self.norm_slot(slots)) @ k.transpose(1, 2) / self.width**0.5).softmax(1) + 1e-8
            update = (shares / shares.sum(2, keepdim=True)) @ v
            slots = self.cell(update.flatten(0, 1), slots.flatten(0, 1)).view(rows, 3, -1)
        each = torch.cat([slots[:, :, None].expand(-1, -1, 64, -1), self.grid.expand(rows, 3, -1, -1)], 3)
        value, mask = self.paint(each).unbind(3)
        return (value * mask.softmax(1)).sum(1).view(rows, 1, 8, 8)


@honest("r20a-things-without-names-from-noise")
def things_without_names_from_noise(run: Run) -> None:
    """Plain loop, slot attention (Locatello et al. 2020). A picture goes in and is to come out again, in evaluation
    too through vectors that begin as noise; the softmax goes over the slots and not over the places that they read,
    after which each slot's shares are divided once more by their sum."""
    rows, new = things(384, apart(run.draw.randrange(2, 999))), things(96, apart(1))
    model = Slots()

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return F.mse_loss(model(batch), batch)

    outcome(run, lambda: judged(model, lambda: loss(model, new)))
    train(run, model, adam(model, 2e-3), lambda: rows[torch.randint(0, 384, (24,))], loss, 150, clip=1.0)
