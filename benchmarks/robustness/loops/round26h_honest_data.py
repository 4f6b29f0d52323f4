"""Round 26h, honest and unusual: what is shown and what is asked."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import apart, class_outcome, fit, judged, lit, loader, mlp, outcome
from benchmarks.robustness.loops.round6_tools import classify, prepared
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r26h-neighbours-asked-once-for-all")
def neighbours_asked_once_for_all(run: Run) -> None:
    """accelerate, a graph without a graph network, as in SGC and SIGN (Wu et al. 2019, Frasca et al. 2020, PyTorch
    Geometric's SIGN transform). Each node's columns, its neighbours' mean and their neighbours' mean are computed
    before training and laid side by side; then the edges are thrown away, and a table of a few labelled nodes is read
    in batches by an MLP. Rows of the test nodes have gone into the inputs of the training nodes, as they may here."""
    own = apart(run.draw.randrange(999))
    y = torch.randint(0, 4, (320,), generator=own)
    x = torch.randn(4, 6, generator=own)[y] + 2.0 * torch.randn(320, 6, generator=own)
    chance = torch.where(y[:, None] == y[None], 0.09, 0.012)
    edges = (torch.rand(320, 320, generator=own) < chance).float().triu(1)
    edges = edges + edges.T + torch.eye(320)
    share = edges / edges.sum(1, keepdim=True)
    wide = torch.cat([x, share @ x, share @ share @ x], 1)
    model = mlp(18, 32, 4)
    class_outcome(run, model, (wide[80:], y[80:]))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-3)
    prepared(run, model, optimizer, loader(wide[:80], y[:80], size=20), classify, 30)


def scenes(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Pictures of 16 by 16 with one thing, a disc (1) or a ring (2), and a class for each pixel."""
    at = 4 + 8 * torch.rand(count, 2, 1, 1, generator=own)
    kind = torch.randint(1, 3, (count, 1, 1), generator=own)
    places = torch.arange(16.0)
    far = ((places[:, None] - at[:, 0]) ** 2 + (places[None] - at[:, 1]) ** 2).sqrt()
    inside = (far < 3.5) & ((kind == 1) | (far > 1.6))
    x = 0.6 * torch.randn(count, 1, 16, 16, generator=own) + torch.rand(count, 1, 1, 1, generator=own)
    return x + 1.2 * inside[:, None], inside * kind


class Pasting:
    """A trainer of a network that draws outlines, with few pictures of its own."""

    def __init__(self, run: Run, net: nn.Module, pictures: Tensor, maps: Tensor) -> None:
        self.run, self.net, self.pictures, self.maps = run, net, pictures, maps
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=1e-3)
        self.doctor = run.watch(net, self.optimizer)

    def batch(self, rows: int = 16) -> tuple[Tensor, Tensor]:
        below, above = torch.randint(0, len(self.pictures), (2, rows))
        by = torch.randint(-4, 5, (2,)).tolist()
        thing = self.pictures[above].roll(by, (-2, -1))
        named = self.maps[above].roll(by, (-2, -1))
        pasted = (named > 0) & (torch.rand(rows, 1, 1) < 0.7)
        x = torch.where(pasted[:, None], thing, self.pictures[below])
        return x, torch.where(pasted, named, self.maps[below])

    def go(self, steps: int) -> None:
        for _ in range(steps):
            batch = self.batch()
            loss = classify(self.net, batch)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.doctor.step(loss, batch)
            self.run.note(loss)


@honest("r26h-cut-out-here-and-pasted-there")
def cut_out_here_and_pasted_there(run: Run) -> None:
    """A class of its own, outlines by convolutions with simple copy-paste (Ghiasi et al. 2021). A thing is cut along
    its mask from one annotated picture and laid upon another, moved, without any regard to what is there or to the
    light; where it hides another thing, that one's label goes too. Edges are hard and no scene is one that occurs."""

    def layer(a: int, b: int) -> list[nn.Module]:
        return [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]

    net = nn.Sequential(*layer(1, 12), *layer(12, 12), *layer(12, 12), nn.Conv2d(12, 3, 1))
    class_outcome(run, net, scenes(64, apart(1)))
    Pasting(run, net, *scenes(24, apart(run.draw.randrange(999)))).go(90)


def spoken(count: int, table: Tensor, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Five letters, their sound in frames of four numbers and filled up with silence, and how many frames it has."""
    letters = torch.randint(0, len(table), (count, 5), generator=own)
    sounds = torch.zeros(count, 21, 4)
    sizes = torch.zeros(count, dtype=torch.long)
    for row, word in enumerate(letters.tolist()):
        frames = torch.cat([table[a] * torch.linspace(1, 0.5, 2 + a % 3)[:, None] for a in word])
        sounds[row, : len(frames)] = frames
        sizes[row] = len(frames)
    return letters, sounds + 0.1 * torch.randn(sounds.shape, generator=own), sizes


class Speaker(nn.Module):
    """Letters in; at each step of the decoder three frames and whether the end is reached."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, 16)
        self.reader = nn.GRU(16, 16, batch_first=True, bidirectional=True)
        self.before = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.2))
        self.cell = nn.GRUCell(16 + 32, 48)
        self.ask = nn.Linear(48, 32)
        self.say, self.end = nn.Linear(48 + 32, 12), nn.Linear(48 + 32, 1)

    def forward(self, letters: Tensor, sounds: Tensor) -> tuple[Tensor, Tensor]:
        read = self.reader(self.letters(letters))[0]
        state, found = read.new_zeros(len(read), 48), read.mean(1)
        last = sounds[:, 0] * 0
        frames, ends = [], []
        for group in sounds.split(3, 1):
            state = self.cell(torch.cat([self.before(last), found], 1), state)
            look = (read @ self.ask(state)[:, :, None]).softmax(1)
            found = (look * read).sum(1)
            both = torch.cat([state, found], 1)
            frames.append(self.say(both).view(-1, 3, 4))
            ends.append(self.end(both))
            last = group[:, 2]
        return torch.cat(frames, 1), torch.cat(ends, 1)


def voice_loss(model: nn.Module, batch: Any) -> Tensor:
    letters, sounds, sizes = batch
    frames, ends = model(letters, sounds)
    steps = (sizes + 2) // 3
    heard = torch.arange(7) < steps[:, None]
    error = (frames - sounds).square().mean(2) * heard.repeat_interleave(3, 1)
    stop = (torch.arange(7) == steps[:, None] - 1).float()
    stops = F.binary_cross_entropy_with_logits(ends[heard], stop[heard], pos_weight=torch.tensor(5.0))
    return error.sum() / (3 * heard.sum()) + 0.2 * stops


@honest("r26h-three-frames-in-one-breath")
def three_frames_in_one_breath(run: Run) -> None:
    """Lightning, letters to sound by an encoder and a decoder as in Tacotron (Wang et al. 2017, Shen et al. 2018). The
    decoder says three frames at once and then reads only the last of them, so that two frames in three are never an
    input; dropout lies on the true frame that it reads, lest it learn to copy; the end is a yes or no at each step, of
    which one among several is yes and weighs five times; silence up to a multiple of three is taught as sound."""
    table = torch.randn(6, 4, generator=apart(run.draw.randrange(999)))
    model = Speaker(6)
    check = spoken(96, table, apart(1))
    outcome(run, lambda: judged(model, lambda: voice_loss(model, check)))
    data = loader(*spoken(320, table, apart(2)), size=32)
    speaks = lit(model, voice_loss, lambda net: torch.optim.Adam(net.parameters(), lr=4e-3))
    fit(run, speaks, data, 110, gradient_clip_val=1.0)


class Noiseless(nn.Module):
    """The noise in a point, from the point, how noisy it is, and its class, where class 4 is "any"."""

    def __init__(self) -> None:
        super().__init__()
        self.classes = nn.Embedding(5, 16)
        self.net = mlp(2 + 2 + 16, 64, 64, 2, act=nn.SiLU)

    def forward(self, x: Tensor, level: Tensor, classes: Tensor) -> Tensor:
        waves = torch.stack([(math.pi * level).cos(), (math.pi * level).sin()], 1)
        out: Tensor = self.net(torch.cat([x, waves, self.classes(classes)], 1))
        return out


def noise_error(model: nn.Module, x: Tensor, y: Tensor, level: Tensor, noise: Tensor) -> Tensor:
    angle = level[:, None] * math.pi / 2
    return F.mse_loss(model(angle.cos() * x + angle.sin() * noise, level, y), noise)


@honest("r26h-now-and-then-without-its-class")
def now_and_then_without_its_class(run: Run) -> None:
    """Lightning, diffusion of points with classes, for guidance without a classifier (Ho and Salimans 2021, diffusers).
    In one row of six the class is taken away and "any class" is written in its place, so that one network learns the
    density with and without; these rows have the same target as if their class were known. The fifth row of the table
    of classes is no class that any row has."""
    own = apart(run.draw.randrange(999))
    centres = 1.5 * torch.randn(4, 2, generator=own)
    y = torch.randint(0, 4, (512,), generator=own)
    x = centres[y] + 0.2 * torch.randn(512, 2, generator=own)
    model = Noiseless()
    level, noise = torch.rand(512, generator=own), torch.randn(512, 2, generator=own)
    outcome(run, lambda: judged(model, lambda: noise_error(model, x, y, level, noise)))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        y = torch.where(torch.rand(len(y)) < 1 / 6, 4, y)
        return noise_error(model, x, y, torch.rand(len(x)), torch.randn_like(x))

    fit(run, lit(model, loss, lambda net: torch.optim.AdamW(net.parameters(), lr=3e-3)), loader(x, y, size=64), 150)


class Facts(nn.Module):
    """ComplEx: how likely each thing stands at the other end of a relation, as the real part of a product."""

    def __init__(self, things: int, relations: int, rank: int = 24) -> None:
        super().__init__()
        self.rank = rank
        self.things, self.relations = nn.Embedding(things, 2 * rank), nn.Embedding(2 * relations, 2 * rank)
        for table in (self.things, self.relations):
            nn.init.normal_(table.weight, std=0.05)

    def forward(self, facts: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, things) scores, and the penalty: cubes of the moduli (N3)."""
        head, relation, tail = (
            torch.complex(*part.chunk(2, 1))
            for part in (self.things(facts[:, 0]), self.relations(facts[:, 1]), self.things(facts[:, 2]))
        )
        all_things = torch.complex(*self.things.weight.chunk(2, 1))
        cubes = sum((part.abs() + 1e-9).pow(3).sum(1).mean() for part in (head, relation, tail))
        return (head * relation @ all_things.conj().T).real, torch.as_tensor(cubes)


@honest("r26h-each-fact-from-both-ends-and-cubes")
def each_fact_from_both_ends_and_cubes(run: Run) -> None:
    """Plain loop, a graph of knowledge by ComplEx with N3 and reciprocal relations (Lacroix et al. 2018). Each fact is
    written twice, once with a new relation that says the inverse; the whole table of things is the list of classes, the
    tail's vector is input to the penalty although it is the label, the penalty takes cubes of moduli and not squares,
    and Adagrad's rate is a tenth, with vectors that begin next to zero."""
    own = apart(run.draw.randrange(999))
    shifts = torch.tensor([1, 4, 7])
    heads = torch.arange(24).repeat(3)
    relations = torch.arange(3).repeat_interleave(24)
    order = torch.randperm(24, generator=own)
    place = order.argsort()
    facts = torch.stack([heads, relations, order[(place[heads] + shifts[relations]) % 24]], 1)
    facts = facts[torch.randperm(72, generator=own)]
    model = Facts(24, 3)

    def both_ways(rows: Tensor) -> Tensor:
        return torch.cat([rows, torch.stack([rows[:, 2], rows[:, 1] + 3, rows[:, 0]], 1)])

    check = both_ways(facts[60:])
    outcome(run, lambda: judged(model, lambda: (model(check)[0].argmax(1) != check[:, 2]).float().mean()))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    doctor = run.watch(model, optimizer)
    known = both_ways(facts[:60])
    for _ in range(25):
        for rows in known[torch.randperm(len(known))].split(30):
            scores, cubes = model(rows)
            loss = F.cross_entropy(scores, rows[:, 2]) + 0.03 * cubes
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, rows)
            run.note(loss)
