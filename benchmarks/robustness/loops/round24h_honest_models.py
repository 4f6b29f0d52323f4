"""Round 24h, honest and odd: networks that are built as few are."""

import math

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Attention,
    Examples,
    Language,
    apart,
    hf_trainer,
    judged,
    loader,
    mlp,
    next_loss,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam, text_outcome
from benchmarks.robustness.loops.round10a_tools import titled
from torch import Tensor, nn
from torch.nn import functional as F


class Lattice(nn.Module):
    """Four columns, each through a line with nine knees into [0, 1], and between the sixteen corners of a cube."""

    def __init__(self, rising: tuple[int, ...] = (0, 1, 2)) -> None:
        super().__init__()
        self.rising = rising
        self.knees = nn.Parameter(torch.linspace(0, 1, 9).repeat(4, 1))
        self.corners = nn.Parameter(torch.stack(torch.meshgrid(*[torch.arange(2.0)] * 4, indexing="ij")).mean(0))

    def forward(self, x: Tensor) -> Tensor:
        hats = (1 - (8 * x[..., None] - torch.arange(9)).abs()).clamp_min(0)
        places = (hats * self.knees).sum(2).clamp(0, 1)
        out = self.corners.expand(len(x), 2, 2, 2, 2)
        for place in places.T:
            share = place.view(-1, *[1] * (out.dim() - 2))
            out = (1 - share) * out[:, 0] + share * out[:, 1]
        return out

    @torch.no_grad()
    def project(self) -> None:
        """The nearest weights, or almost, by which no rising column can lower the answer."""
        for column in self.rising:
            row = self.knees[column]
            row.copy_((row.cummax(0).values + row.flip(0).cummin(0).values.flip(0)) / 2)
        self.knees.clamp_(0, 1)
        for _ in range(10):
            for column in self.rising:
                low, high = self.corners.select(column, 0), self.corners.select(column, 1)
                by = ((low - high) / 2).clamp_min(0)
                low.sub_(by)
                high.add_(by)


class Pricing:
    """A trade's own loop: after each update the weights are put back to what may be sold."""

    def __init__(self, run: Run, model: Lattice) -> None:
        self.run, self.model, self.optimizer = run, model, adam(model, 2e-2)
        self.doctor = run.watch(model, self.optimizer)

    def fit(self, x: Tensor, y: Tensor, steps: int) -> None:
        for _ in range(steps):
            rows = torch.randint(0, len(x), (64,))
            self.optimizer.zero_grad()
            loss = F.mse_loss(self.model(x[rows]), y[rows])
            loss.backward()
            self.optimizer.step()
            self.model.project()
            self.doctor.step(loss, (x[rows], y[rows]))
            self.run.note(loss)


@honest("r24h-more-can-never-be-less")
def more_can_never_be_less(run: Run) -> None:
    """A class of its own, a table of prices by a calibrated lattice (Gupta et al. 2016, TensorFlow Lattice and
    pytorch-lattice). There is no matrix and no activation: each column goes through a line with knees, and the answer
    lies between the weights of a cube's corners. After each update the weights are changed by hand so that three of
    the columns cannot lower the answer; many of them lie at a bound, and most knees have no gradient from a row."""
    own = apart(run.draw.randrange(999))
    a, b, c = (0.5 + torch.rand(3, generator=own)).tolist()

    def drawn(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.rand(count, 4, generator=own)
        y = a * x[:, 0].sqrt() + 2 * b * x[:, 1] * x[:, 2].square() + c * (6 * x[:, 3]).sin()
        return x, y + 0.1 * torch.randn(count, generator=own)

    model = Lattice()
    new, truth = drawn(400, apart(1))
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(new), truth) / truth.var()))
    Pricing(run, model).fit(*drawn(400, own), 200)


class Waves(nn.Module):
    """A layer on all of a line's points at once: its longest waves by a complex matrix each, and a straight way."""

    def __init__(self, width: int, kept: int = 8) -> None:
        super().__init__()
        self.kept = kept
        self.weights = nn.Parameter(torch.randn(kept, width, width, dtype=torch.cfloat) / width)
        self.straight = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        waves = torch.fft.rfft(x)
        out = torch.zeros_like(waves)
        out[..., : self.kept] = torch.einsum("bim,mio->bom", waves[..., : self.kept], self.weights)
        return torch.fft.irfft(out, n=x.shape[-1]) + self.straight(x)


class Operator(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv1d(2, width, 1), nn.Conv1d(width, 1, 1)
        self.layers = nn.ModuleList(Waves(width) for _ in range(3))

    def forward(self, start: Tensor) -> Tensor:
        place = torch.arange(start.shape[1]) / start.shape[1]
        x = self.enter(torch.stack([start, place.expand_as(start)], 1))
        for layer in self.layers:
            x = F.gelu(layer(x))
        out: Tensor = self.leave(x).squeeze(1)
        return out


def burgers(count: int, points: int, own: torch.Generator, viscosity: float = 0.15) -> tuple[Tensor, Tensor]:
    """Velocities around a ring, and what Burgers' equation makes of them in 0.8 of time (by Cole and Hopf)."""
    angle = 2 * math.pi * torch.arange(256) / 256
    parts = torch.randn(count, 3, 2, generator=own) / torch.tensor([1.0, 1.5, 2.0])[:, None]
    waves = torch.stack([(k * angle).sin() for k in (1, 2, 3)]), torch.stack([(k * angle).cos() for k in (1, 2, 3)])
    start = 0.7 * (parts[..., 0] @ waves[0] + parts[..., 1] @ waves[1])
    number = torch.fft.rfftfreq(256, 1 / 256)
    slope = 1j * number
    potential = torch.fft.irfft(torch.fft.rfft(start) / torch.where(number > 0, slope, 1.0) * (number > 0))
    heat = torch.fft.rfft((-potential / (2 * viscosity)).exp()) * (-viscosity * 0.8 * number.square()).exp()
    end = -2 * viscosity * torch.fft.irfft(slope * heat) / torch.fft.irfft(heat)
    return start[:, :: 256 // points], end[:, :: 256 // points]


@honest("r24h-most-waves-are-thrown-away")
def most_waves_are_thrown_away(run: Run) -> None:
    """accelerate, a flow's future by a Fourier neural operator (Li et al. 2021, neuraloperator). Most of the weights
    are complex numbers, a layer sees all points at once and keeps only the longest waves of what it sees, and the loss
    is each row's distance divided by the row's own size, without a square. It is taught on 32 points around the ring
    and judged on 64, which the same weights can read."""
    own = apart(run.draw.randrange(999))
    model = Operator()

    def error(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        start, end = batch
        return ((model(start) - end).norm(dim=1) / end.norm(dim=1)).mean()

    check = burgers(128, 64, apart(1))
    outcome(run, lambda: judged(model, lambda: error(model, check)))
    data = loader(*burgers(512, 32, own), size=32)
    prepared(run, model, torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-4), data, error, 10)


class Lagrangian(nn.Module):
    """A number for each place and velocity of two joints; from its slopes follows how they are accelerated."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(6, 64, 64, 1, act=nn.Softplus)

    def number(self, place: Tensor, speed: Tensor) -> Tensor:
        out: Tensor = self.net(torch.cat([place.sin(), place.cos(), speed])).squeeze(0) + speed.square().sum()
        return out

    def forward(self, place: Tensor, speed: Tensor) -> Tensor:
        def one(place: Tensor, speed: Tensor) -> Tensor:
            pull = torch.func.grad(self.number, 0)(place, speed)
            mass = torch.func.hessian(self.number, 1)(place, speed)
            mixed = torch.func.jacrev(torch.func.grad(self.number, 1), 0)(place, speed)
            return torch.linalg.solve(mass, pull - mixed @ speed)

        return torch.func.vmap(one)(place, speed)


def two_joints(count: int, heavy: float, own: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Angles, velocities and accelerations of a double pendulum of unit lengths."""
    place, speed = (torch.rand(2, count, 2, generator=own) - 0.5) * torch.tensor([3.0, 2.0])[:, None, None]
    between = place[:, 0] - place[:, 1]
    mass = torch.stack(
        [torch.full((count,), 1 + heavy), heavy * between.cos(), heavy * between.cos(), torch.full((count,), heavy)], 1
    ).view(-1, 2, 2)
    turn = heavy * between.sin()
    weight = 2 * torch.stack([(1 + heavy) * place[:, 0].sin(), heavy * place[:, 1].sin()], 1)
    swing = torch.stack([-turn * speed[:, 1].square(), turn * speed[:, 0].square()], 1)
    return place, speed, torch.linalg.solve(mass, swing - weight)


@honest("r24h-accelerations-from-second-slopes")
def accelerations_from_second_slopes(run: Run) -> None:
    """Plain loop, a double pendulum by a Lagrangian neural network (Cranmer et al. 2020). What the network gives is
    never compared with anything: the answer is a system of equations solved with second derivatives of its output by
    its inputs, so that the weights' gradient is a third one, the last bias can have none, and a constant factor of
    the whole network changes nothing but by what was added to it."""
    own = apart(run.draw.randrange(999))
    heavy = 0.5 + run.draw.random()
    model = Lagrangian()
    place, speed, answer = two_joints(600, heavy, own)
    new = two_joints(200, heavy, apart(1))

    def measure() -> Tensor:
        return F.l1_loss(model(new[0], new[1]), new[2])

    outcome(run, lambda: judged(model, measure))

    def some() -> tuple[Tensor, Tensor, Tensor]:
        rows = torch.randint(0, 600, (64,))
        return place[rows], speed[rows], answer[rows]

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return F.l1_loss(model(batch[0], batch[1]), batch[2])

    train(run, model, adam(model, 3e-3), some, loss, 150, clip=5.0)


class Clockwork(nn.Module):
    """Four groups of units; one moves only where the time can be divided by its period, and hears the slower ones."""

    def __init__(self, words: int, group: int = 12) -> None:
        super().__init__()
        self.periods = torch.tensor([1, 2, 4, 8]).repeat_interleave(group)
        self.tokens, self.enter = nn.Embedding(words, 16), nn.Linear(16, 4 * group)
        self.again = nn.Parameter(torch.randn(4 * group, 4 * group) / math.sqrt(4 * group))
        self.head = nn.Linear(4 * group, words)
        self.register_buffer("heard", self.periods[:, None] <= self.periods)

    def forward(self, ids: Tensor) -> Tensor:
        inputs = self.enter(self.tokens(ids))
        state = torch.zeros(len(ids), len(self.periods))
        weights, states = (self.again * self.heard).T, []
        for t in range(ids.shape[1]):
            moved = (inputs[:, t] + state @ weights).tanh()
            state = torch.where(t % self.periods == 0, moved, state)
            states.append(state)
        out: Tensor = self.head(torch.stack(states, 1))
        return out


@honest("r24h-groups-that-move-at-their-own-pace")
def groups_that_move_at_their_own_pace(run: Run) -> None:
    """Plain loop, texts by a clockwork recurrent network (Koutník et al. 2014). Most units stand still at most words: a
    group with the period eight reads every eighth word only and is blind to the others. Three eighths of the recurrent
    matrix are masked, where weights are kept and never have a gradient."""
    seed = run.draw.randrange(999)
    model = Clockwork(22)
    check = titled(seed, 96, 24, apart(901))
    outcome(run, lambda: judged(model, lambda: next_loss(model, check)))
    train(run, model, adam(model, 5e-3), lambda: titled(seed, 32, 24), next_loss, 160, clip=1.0)


class Delta(nn.Module):
    """A matrix that is read and written at each word; what a key held before is taken off before it is written anew."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.near = nn.Conv1d(width, width, 3, groups=width)
        self.qkv, self.write, self.out = nn.Linear(width, 3 * width), nn.Linear(width, 1), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.near(F.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)
        q, k, v = self.qkv(x).chunk(3, 2)
        q, k, share = F.normalize(F.silu(q), dim=2), F.normalize(F.silu(k), dim=2), self.write(x).sigmoid()
        memory, read = torch.zeros(len(x), x.shape[2], x.shape[2]), []
        for t in range(x.shape[1]):
            held = (memory @ k[:, t, :, None]).squeeze(2)
            memory = memory + (share[:, t] * (v[:, t] - held))[:, :, None] * k[:, t, None]
            read.append((memory @ q[:, t, :, None]).squeeze(2))
        out: Tensor = self.out(torch.stack(read, 1))
        return out


class Recalling(nn.Module):
    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.mixers = nn.Embedding(words, width), nn.ModuleList(Delta(width) for _ in range(2))
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(3))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        x = self.tokens(input_ids)
        for norm, mixer in zip(self.norms, self.mixers, strict=False):
            x = x + mixer(norm(x))
        logits = self.head(self.norms[2](x))
        if labels is None:
            return {"logits": logits}
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        return {"loss": loss, "logits": logits}


def told_and_asked(count: int, own: torch.Generator, pairs: int = 8) -> list[dict[str, Tensor]]:
    """Rows of pairs: a key, 0 to 3, and its new value, 8 to 15; or the key asked, 4 to 7, and the value that it has.
    Only values that were asked are labels."""
    rows = []
    for _ in range(count):
        ids, labels, held = [], [], {}
        draws = torch.randint(0, 32, (pairs, 2), generator=own).tolist()
        for key, value in [(key % 4, value % 8) for key, value in draws]:
            known = key in held and bool(torch.rand((), generator=own) < 0.6)
            held[key] = held[key] if known else 8 + value
            ids += [key + 4 * known, held[key]]
            labels += [-100, held[key] if known else -100]
        rows.append({"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)})
    return rows


@honest("r24h-writes-over-what-it-remembered")
def writes_over_what_it_remembered(run: Run) -> None:
    """A transformers Trainer, recall by DeltaNet (Schlag et al. 2021, Yang et al. 2024, flash-linear-attention). There
    is no softmax over words; a matrix is the memory, and each word first takes off what its key held and then writes,
    so that a key's old value is forgotten when it is told anew. Most words have no label, and those that are left
    cannot be known from the last words but only from the row."""
    own = apart(run.draw.randrange(999))
    model = Recalling(16)
    rows = told_and_asked(96, apart(1))
    ids, labels = (torch.stack([row[name] for row in rows]) for name in ("input_ids", "labels"))
    outcome(run, lambda: judged(model, lambda: model(ids, labels)["loss"]))
    data = Examples(told_and_asked(800, own))
    options = {"learning_rate": 6e-3, "per_device_train_batch_size": 32, "warmup_steps": 15}
    hf_trainer(run, model, data, 130, **options).train()


class Streams(nn.Module):
    """Around one layer: what it reads of four streams, what of it goes to each, and how the streams mix."""

    def __init__(self, layer: nn.Module, width: int, first: int) -> None:
        super().__init__()
        self.layer, self.norm = layer, nn.LayerNorm(width)
        self.read, self.write = nn.Parameter(F.one_hot(torch.tensor(first), 4).float()), nn.Parameter(torch.ones(4))
        self.mix = nn.Parameter(torch.eye(4))

    def forward(self, streams: Tensor) -> Tensor:
        said = self.layer(self.norm(torch.einsum("s,sbtd->btd", self.read, streams)))
        return torch.einsum("rs,sbtd->rbtd", self.mix, streams) + self.write[:, None, None, None] * said


class FourStreams(nn.Module):
    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(48, width)
        layers = [part for _ in range(2) for part in (Attention(width), mlp(width, 2 * width, width, act=nn.GELU))]
        self.layers = nn.ModuleList(Streams(layer, width, i % 4) for i, layer in enumerate(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        streams = (self.tokens(ids) + self.places(torch.arange(ids.shape[1]))).expand(4, -1, -1, -1)
        for layer in self.layers:
            streams = layer(streams)
        out: Tensor = self.head(self.norm(streams.sum(0)))
        return out


@honest("r24h-four-streams-that-begin-alike")
def four_streams_that_begin_alike(run: Run) -> None:
    """Plain loop, a small GPT with hyper-connections (Zhu et al. 2025). In the place of the residual there are four
    copies of the same stream; at the start they are equal to the last bit, all get the same from each layer, and
    their mixing is the identity, so that they become different only by what a few numbers learn. Those begin at one
    and zero and are not decayed."""
    language = Language(run.draw.randrange(999))
    model = FourStreams(12)
    text_outcome(run, model, language)
    few = [p for name, p in model.named_parameters() if name.endswith(("read", "write", "mix"))]
    rest = [p for name, p in model.named_parameters() if not name.endswith(("read", "write", "mix"))]
    groups = [{"params": rest, "weight_decay": 0.1}, {"params": few, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=4e-3, betas=(0.9, 0.95))
    train(run, model, optimizer, lambda: language.rows(16, 24), next_loss, 160, clip=1.0)


class Arithmetic(nn.Module):
    """Two sums of the inputs, with weights in [-1, 1], and their product, in which each may also be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.sums = nn.Parameter(torch.empty(2, 6).uniform_(-0.5, 0.5))
        self.factors = nn.Parameter(torch.empty(2).uniform_(0.25, 0.75))

    def forward(self, x: Tensor) -> Tensor:
        sums = x @ self.sums.clamp(-1, 1).T
        factors = self.factors.clamp(0, 1)
        return (factors * sums + 1 - factors).prod(1)

    def undecided(self) -> Tensor:
        """How far the weights are from -1, 0 and 1."""
        sums, factors = self.sums.clamp(-1, 1).abs(), self.factors.clamp(0, 1)
        return torch.minimum(sums, 1 - sums).mean() + torch.minimum(factors, 1 - factors).mean()


@honest("r24h-multiplies-beyond-what-it-saw")
def multiplies_beyond_what_it_saw(run: Run) -> None:
    """Plain loop, arithmetic by neural addition and multiplication units (Madsen and Johansen 2020, after Trask et al.
    2018). The whole network is fourteen numbers without a bias and an activation, which are cut to a box, where they
    have no gradient; a penalty that draws them to -1, 0 or 1 is nothing at first and sets in at half of the run. It is
    judged on numbers five times as large as any that it was shown."""
    own = apart(run.draw.randrange(999))
    first, second = torch.zeros(2, 6).scatter_(1, torch.rand(2, 6, generator=own).topk(3).indices, 1.0)

    def drawn(count: int, low: float, high: float, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = low + (high - low) * torch.rand(count, 6, generator=own)
        return x, (x @ first) * (x @ second)

    model = Arithmetic()
    new, truth = drawn(300, 5.0, 10.0, apart(1))
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(new), truth) / truth.var()))
    optimizer = adam(model, 2e-2)
    doctor = run.watch(model, optimizer)
    for step in range(200):
        x, y = drawn(128, -1.0, 2.0)
        loss = F.mse_loss(model(x), y) + max(0.0, step - 100) / 100 * model.undecided()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)
