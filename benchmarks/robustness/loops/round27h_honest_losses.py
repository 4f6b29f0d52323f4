"""Round 27h, honest and odd: losses that measure something else than how far each row is from its label."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Block,
    apart,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    outcome,
    pictures,
    tiny_gpt2,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam
from torch import Tensor, nn
from torch.nn import functional as F

DIGIT, SPACE = 4, 14


def measured(count: int, own: torch.Generator) -> Tensor:
    """(count, 18) words: six numbers of two digits (words 4 to 13) on a line, nearly, each with a space behind it."""
    start = 20 + 60 * torch.rand(count, 1, generator=own)
    slope = 3.5 * torch.randn(count, 1, generator=own)
    line = start + slope * torch.arange(6) + 0.5 * torch.randn(count, 6, generator=own)
    numbers = line.round().clamp(0, 99).long()
    words = torch.stack([numbers // 10 + DIGIT, numbers % 10 + DIGIT, torch.full_like(numbers, SPACE)], 2)
    return words.flatten(1)


def cross_entropy_of_next(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


@honest("r27h-digits-near-the-right-one")
def digits_near_the_right_one(run: Run) -> None:
    """transformers' Trainer, a GPT-2 over rows of measured numbers with the number token loss (Zausinger et al. 2025).
    To the cross-entropy comes the square of how far the digit that is expected, over the ten digits alone, lies
    from the right one, at a weight of 0.3. So the loss has two units and begins at more than the logarithm of
    the words."""
    model = tiny_gpt2()
    check = measured(200, apart(1))
    outcome(run, lambda: judged(model, lambda: cross_entropy_of_next(model(input_ids=check).logits, check)))

    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        logits, truth = outputs["logits"][:, :-1], labels[:, 1:]
        number = (truth >= DIGIT) & (truth < SPACE)
        expected = logits[..., DIGIT:SPACE].softmax(-1) @ torch.arange(10.0)
        apart_by = F.mse_loss(expected[number], (truth[number] - DIGIT).float())
        return cross_entropy_of_next(outputs["logits"], labels) + 0.3 * apart_by

    rows = measured(1600, apart(run.draw.randrange(999) + 2))
    options = {"per_device_train_batch_size": 32, "more": {"compute_loss_func": loss}}
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 180, **options).train()


DAYS = 40


def markets(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """(count, DAYS, 3) what is known of a share each evening, and (count, DAYS) what the next day brings, over
    its usual spread: a drift that comes and goes, in far more noise."""
    drift, state = [], 0.25 * torch.randn(count, generator=own)
    for _ in range(DAYS + 11):
        state = 0.95 * state + 0.08 * torch.randn(count, generator=own)
        drift.append(state)
    gains = torch.stack(drift, 1) + torch.randn(count, DAYS + 11, generator=own)
    past = gains.cumsum(1)
    known = [gains[:, 10:-1], (past[:, 10:-1] - past[:, 5:-6]) / 5**0.5, (past[:, 10:-1] - past[:, :-11]) / 10**0.5]
    return torch.stack(known, 2), gains[:, 11:]


class Trader(nn.Module):
    """An LSTM that says each evening how much to hold, between all and minus all."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.head = nn.LSTM(3, 16, batch_first=True), nn.Linear(16, 1)

    def forward(self, known: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(known)[0]).squeeze(2).tanh()
        return out


class TradesByRatio:
    """The user's own trainer: the batch as a whole has one number."""

    def __init__(self, run: Run, model: Trader, cost: float = 0.01) -> None:
        self.run, self.model, self.cost = run, model, cost
        self.optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        self.doctor = run.watch(model, self.optimizer)

    def ratio(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        known, gains = batch
        held = self.model(known)
        earned = held * gains - self.cost * (held - F.pad(held, (1, 0))[:, :-1]).abs()
        return math.sqrt(252) * earned.mean() / (earned.var() + 1e-9).sqrt()

    def step(self, batch: tuple[Tensor, Tensor]) -> None:
        loss = -self.ratio(batch)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.doctor.step(loss, batch)
        self.run.note(loss)


@honest("r27h-paid-by-mean-over-spread")
def paid_by_mean_over_spread(run: Run) -> None:
    """A class of the user's own, an LSTM that trades, deep momentum networks (Lim, Zohren and Roberts 2019). There is
    no label, what comes next only multiplies what was held; the loss is minus the yearly ratio of mean to spread
    over all rows and days of the batch together, which no row has for itself, is below zero, has no floor and is
    noisy, and the size of what is held has next to no say."""
    own = apart(run.draw.randrange(999) + 2)
    model = Trader()
    trader = TradesByRatio(run, model)
    check = markets(600, apart(1))
    outcome(run, lambda: judged(model, lambda: -trader.ratio(check)))
    known, gains = markets(1500, own)
    for _ in range(140):
        rows = torch.randint(0, 1500, (64,))
        trader.step((known[rows], gains[rows]))


LETTERS, SOUND, FRAMES = 12, 8, 24


def spoken(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """(count, 10) letters and (count, FRAMES, SOUND) frames of them said aloud, two or three frames each."""
    colours = torch.randn(LETTERS, SOUND, generator=apart(seed))
    text = torch.randint(0, LETTERS, (count, 10), generator=own)
    long = 2 + torch.stack([torch.randperm(10, generator=own) < 4 for _ in range(count)]).long()
    which = torch.stack([row.repeat_interleave(times) for row, times in zip(text, long, strict=True)])
    return text, colours[which] + 0.2 * torch.randn(count, FRAMES, SOUND, generator=own)


class Speaker(nn.Module):
    """Letters to frames: convolutions over the letters, a GRU over the frames so far, and attention between them."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, 24)
        self.near = nn.Conv1d(24, 24, 3, padding=1)
        self.said, self.ask = nn.GRU(SOUND, 24, batch_first=True), nn.Linear(24, 24)
        self.keys, self.values = nn.Linear(24, 24), nn.Linear(24, 24)
        self.places = nn.Parameter(0.3 * torch.randn(10, 24))
        self.out = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, SOUND))

    def forward(self, text: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """The frames, each from those before it, and where was looked, (rows, frames, letters)."""
        read = self.letters(text)
        read = read + self.places + self.near(read.transpose(1, 2)).transpose(1, 2).relu()
        state = self.said(F.pad(frames, (0, 0, 1, 0))[:, :-1])[0]
        look = (self.ask(state) @ self.keys(read).transpose(1, 2) / 24**0.5).softmax(2)
        return self.out(torch.cat([look @ self.values(read), state], 2)), look


@honest("r27h-attention-should-go-along-the-diagonal")
def attention_should_go_along_the_diagonal(run: Run) -> None:
    """Plain loop, letters to sound with an encoder, a decoder and guided attention (Tachibana et al. 2018). Half of the
    loss does not ask what comes out: it is the share of attention that lies off the line from the first letter
    and frame to the last, for which no text is labelled and which cannot become zero, as letters differ in how
    long they are said. The other half is the absolute error of frames, fed with the true ones."""
    seed = run.draw.randrange(999)
    model = Speaker()
    text, frames = spoken(200, seed, apart(1))
    outcome(run, lambda: judged(model, lambda: F.l1_loss(model(text, frames)[0], frames)))
    at, of = torch.arange(FRAMES)[:, None] / FRAMES, torch.arange(10)[None] / 10
    off = 1 - (-(at - of).square() / (2 * 0.2**2)).exp()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        out, look = model(*batch)
        return F.l1_loss(out, batch[1]) + (look * off).sum(2).mean()

    there = spoken(800, seed, apart(2))

    def batch() -> tuple[Tensor, Tensor]:
        rows = torch.randint(0, 800, (32,))
        return there[0][rows], there[1][rows]

    train(run, model, adam(model, 4e-3), batch, loss, 200, clip=1.0)


WORDS = 14


def sentences_of_other_length(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 8) words; their translations, one or two words (from 1 on) for each, filled up with 0; how many."""
    start = apart(seed)
    other = torch.randint(1, WORDS, (WORDS, 2), generator=start)
    other[:, 1] *= torch.rand(WORDS, generator=start) < 0.4
    source = torch.randint(0, WORDS, (count, 8), generator=own)
    both = other[source].flatten(1)
    places = (both == 0).long().argsort(dim=1, stable=True)
    return source, both.gather(1, places), (both > 0).sum(1)


class AllAtOnce(nn.Module):
    """An encoder whose every place is made three, and what each of these says."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 32), nn.Parameter(0.3 * torch.randn(24, 32))
        self.first, self.split = Block(32, causal=False), nn.Linear(32, 96)
        self.second, self.norm, self.head = Block(32, causal=False), nn.LayerNorm(32), nn.Linear(32, WORDS)

    def forward(self, source: Tensor) -> Tensor:
        x = self.first(self.words(source) + self.places[:8])
        x = self.split(x).reshape(len(source), 24, 32) + self.places
        out: Tensor = self.head(self.norm(self.second(x)))
        return out


@honest("r27h-each-word-read-becomes-three-places")
def each_word_read_becomes_three_places(run: Run) -> None:
    """Lightning, translation all at once with CTC (Libovický and Helcl 2018). A text's places are tripled, and the
    network may say a word or nothing in each; no label belongs to any place, and labels are shorter than what is
    put out. Nothing of the translation is shown, so that a decoder in the usual sense is missing, the loss
    begins far above the logarithm of the words, and for a while nothing is said at all."""
    seed = run.draw.randrange(999)
    net = AllAtOnce()

    def loss(net: nn.Module, batch: Any) -> Tensor:
        source, target, length = batch
        likely = net(source).log_softmax(2).transpose(0, 1)
        given = torch.full((len(source),), 24)
        return F.ctc_loss(likely, target, given, length, zero_infinity=True)

    check = sentences_of_other_length(200, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    data = loader(*sentences_of_other_length(1200, seed, apart(2)), size=32)

    def optimizers(net: Any) -> Any:
        optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3, betas=(0.9, 0.98))
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min((t + 1) / 20, (20 / (t + 1)) ** 0.5))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    fit(run, lit(net, loss, optimizers), data, 190, gradient_clip_val=1.0)


BEADS = 12


def chains(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """(count, BEADS) kinds of five, and (count, BEADS, 3) where each bead lies: each turns the chain in its own way."""
    turns = torch.matrix_exp(torch.einsum("kc,cij->kij", 0.8 * torch.randn(5, 3, generator=apart(seed)), CROSS))
    kinds = torch.randint(0, 5, (count, BEADS), generator=own)
    frame = torch.linalg.qr(torch.randn(count, 3, 3, generator=own))[0]
    at, out = torch.zeros(count, 3), []
    for bead in range(BEADS):
        out.append(at)
        frame = frame @ turns[kinds[:, bead]]
        at = at + frame[:, :, 0]
    return kinds, torch.stack(out, 1) + 10 * torch.randn(count, 1, 3, generator=own)


CROSS = torch.zeros(3, 3, 3)
for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
    CROSS[i, j, k], CROSS[i, k, j] = -1.0, 1.0


class Folds(nn.Module):
    """Kinds of beads to where they lie, by attention."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds, self.places = nn.Embedding(5, 32), nn.Parameter(0.3 * torch.randn(BEADS, 32))
        self.blocks = nn.Sequential(Block(32, causal=False), Block(32, causal=False), nn.LayerNorm(32))
        self.head = nn.Linear(32, 3)

    def forward(self, kinds: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.kinds(kinds) + self.places)).cumsum(1)
        return out


@honest("r27h-only-distances-within-are-compared")
def only_distances_within_are_compared(run: Run) -> None:
    """accelerate, chains fold by attention under the root mean square of distances (AlQuraishi 2019). Labels lie
    anywhere in space and turned anyhow, ten units from where the network puts its own, and never come nearer:
    compared is how far apart two beads are in either, over all pairs, with a root over each row. A mirror image
    counts as right, and place and turn of what is put out are taught by nothing."""
    seed = run.draw.randrange(999)
    net = Folds()
    a, b = torch.triu_indices(BEADS, BEADS, 1)

    def loss(net: nn.Module, batch: Any) -> Tensor:
        said, truth = ((x[:, a] - x[:, b]).square().sum(2).add(1e-6).sqrt() for x in (net(batch[0]), batch[1]))
        return (said - truth).square().mean(1).sqrt().mean()

    check = chains(300, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    prepared(run, net, optimizer, loader(*chains(1280, seed, apart(2)), size=64), loss, 9)


LEVELS = 200
SIGNAL = ((torch.arange(LEVELS) / LEVELS + 0.008) / 1.008 * math.pi / 2).cos()
NOISE = (1 - SIGNAL.square()).sqrt()


class Denoiser(nn.Module):
    """Convolutions over a noisy picture, moved by how noisy it is."""

    def __init__(self, width: int = 20) -> None:
        super().__init__()
        self.level = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 2 * width))
        self.enter, self.middle = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, width, 5, padding=2)
        self.last, self.leave = nn.Conv2d(width, width, 5, padding=2), nn.Conv2d(width, 1, 3, padding=1)
        nn.init.zeros_(self.leave.weight)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        waves = level[:, None] / LEVELS * torch.tensor([1.0, 3.0, 9.0, 27.0])
        scale, shift = self.level(torch.cat([waves.sin(), waves.cos()], 1))[..., None, None].chunk(2, 1)
        h = F.silu(self.enter(x))
        h = h + F.silu(self.middle(h) * (1 + scale) + shift)
        out: Tensor = self.leave(h + F.silu(self.last(h)))
        return out


@honest("r27h-no-level-of-noise-counts-more-than-five")
def no_level_of_noise_counts_more_than_five(run: Run) -> None:
    """Plain loop, pictures by diffusion with weights by the smaller of five and signal to noise (Hang et al. 2023), the
    network telling neither the noise nor the picture but the velocity (Salimans and Ho 2022), for which that
    weight is divided by signal to noise and one. So a nearly clean picture counts a thousandth, a nearly lost
    one still less, and no more than five sixths any: what both ends of the range ask has hardly a say in what is
    told as the loss."""
    seed = run.draw.randrange(999)
    model = Denoiser()
    ratio = (SIGNAL / NOISE).square()
    weights = ratio.clamp(max=5) / (ratio + 1)

    def error(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        clean, level, noise = batch
        signal, spread = SIGNAL[level][:, None, None, None], NOISE[level][:, None, None, None]
        velocity = signal * noise - spread * clean
        each = (model(signal * clean + spread * noise, level) - velocity).square().mean((1, 2, 3))
        return (weights[level] * each).mean()

    def drawn(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        clean = 4 * pictures(count, seed, own=own)[0] - 2
        return clean, torch.randint(0, LEVELS, (count,), generator=own), torch.randn(clean.shape, generator=own)

    check = drawn(512, apart(1))
    outcome(run, lambda: judged(model, lambda: error(model, check)))
    train(run, model, torch.optim.AdamW(model.parameters(), lr=3e-3), lambda: drawn(32), error, 150)
