"""Round 22j, honest and odd: stages of a training, styles of loop, and as special fields do it."""

from collections.abc import Callable
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    apart,
    class_outcome,
    cnn,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, classify, prepared
from benchmarks.robustness.loops.round7b_parts import Listener, sounds
from benchmarks.robustness.loops.round7b_tools import adam, taught, update
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r22j-head-drawn-anew-and-balanced")
def head_drawn_anew_and_balanced(run: Run) -> None:
    """Lightning, pictures of which some classes are rare, in two stages (classifier re-training, Kang et al. 2020). The
    first learns from what there is, unbalanced; then the body is frozen, its norms too, the trained head is thrown away
    and drawn anew, and only it learns, from batches in which a row of a rare class comes thirty times as often."""
    seed = run.draw.randrange(999)
    x, y = pictures(900, seed)
    common = torch.tensor([1.0, 0.4, 0.12, 0.05])
    kept = torch.rand(900) < common[y]
    x, y = x[kept], y[kept]
    model = cnn()
    class_outcome(run, model, pictures(256, seed, own=apart(901)))

    def momentum(rate: float) -> Callable[[nn.Module], Any]:
        def optimizer(net: nn.Module) -> Any:
            learn = [p for p in net.parameters() if p.requires_grad]
            out = torch.optim.SGD(learn, lr=rate, momentum=0.9, weight_decay=5e-4)
            return {
                "optimizer": out,
                "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(out, 80), "interval": "step"},
            }

        return optimizer

    fit(run, lit(model, classify, momentum(0.05)), loader(x, y, size=32), 80)
    body, head = model[:-1], model[-1]
    body.requires_grad_(False).eval()  # type: ignore[operator]
    head.reset_parameters()  # type: ignore[operator]
    weights = (1 / y.bincount(minlength=4).clamp_min(1).float())[y]
    sampler = torch.utils.data.WeightedRandomSampler(weights.tolist(), 32 * 60)
    data = loader(x, y, size=32, shuffle=False, sampler=sampler)
    fit(run, lit(model, classify, momentum(0.1)), data, 60)


def muffled(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """The same tones in another room: softer, dull, with a hum."""
    x, y = sounds(count, own, noise=0.5)
    x = F.conv1d(F.pad(x, (2, 2)), torch.tensor([[[0.15, 0.35, 0.5, 0.35, 0.15]]]))
    return 0.6 * x + 0.4 + 0.2 * torch.randn(x.shape, generator=own), y


@honest("r22j-the-head-stays-and-the-body-moves")
def the_head_stays_and_the_body_moves(run: Run) -> None:
    """Plain loop, sounds of a new room without labels and without the old sounds (SHOT, Liang et al. 2020). The other
    way around than usual, the head is frozen and the body learns: each answer should be sure and all answers together
    spread out, so that the loss is a difference of entropies and lies below zero, and once in thirty steps each sound
    is given the class of the nearest centre of what the network itself has said."""
    model = Listener()
    taught(model, lambda: sounds(32), classify, 150)
    x, _ = muffled(256, apart(run.draw.randrange(999)))
    test = muffled(384, apart(901))
    outcome(run, lambda: judged(model, lambda: (model(test[0]).argmax(1) != test[1]).float().mean()))
    model.head.requires_grad_(False)
    optimizer = torch.optim.SGD(model.body.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=1e-3)
    doctor = run.watch(model, optimizer)
    guesses = torch.zeros(256, dtype=torch.long)
    for step in range(150):
        if step % 30 == 0:
            with torch.no_grad():
                model.eval()
                states, said = F.normalize(model.body(x).mean(2), dim=1), model(x).softmax(1)
                for _ in range(2):
                    centres = F.normalize(said.T @ states, dim=1)
                    guesses = (states @ centres.T).argmax(1)
                    said = F.one_hot(guesses, 4).float()
                model.train()
        at = torch.randint(0, 256, (64,))
        logits = model(x[at])
        said = logits.softmax(1)
        each, together = -(said * logits.log_softmax(1)).sum(1).mean(), said.mean(0)
        spread = -(together * (together + 1e-5).log()).sum()
        update(run, doctor, optimizer, each - spread + 0.3 * F.cross_entropy(logits, guesses[at]), (x[at], guesses[at]))


def collisions(count: int, pure: Tensor, shift: Tensor, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Six readings of an event, and whether it is of the new kind, which it is by the given chances."""
    new = torch.rand(count, generator=own) < pure
    x = torch.randn(count, 6, generator=own)
    return torch.where(new[:, None], 0.6 * x + shift, x), new.long()


@honest("r22j-two-mixtures-are-the-labels")
def two_mixtures_are_the_labels(run: Run) -> None:
    """Trainer, events of a collider by classification without labels (CWoLa, Metodiev et al. 2017). What an event is
    nobody knows: there are two samples of the same two kinds, in one of which the new kind is somewhat more frequent,
    and the label says from which sample an event stems. Next to nothing can be told of a label and the loss stays
    near ln 2 however long it trains, yet the best classifier of samples is the best of kinds."""
    shift = torch.randn(6, generator=apart(run.draw.randrange(999)))
    model = WithLoss(mlp(6, 48, 48, 2), F.cross_entropy)
    x, new = collisions(1024, torch.tensor(0.5), shift, apart(901))

    def confused() -> Tensor:
        score = model.net(x).diff(dim=1).squeeze(1)
        return (score[new == 1][:, None] < score[new == 0]).float().mean()

    outcome(run, lambda: judged(model, confused))
    labels = torch.randint(0, 2, (6000,))
    data = examples(x=collisions(6000, 0.35 + 0.3 * labels, shift)[0], labels=labels)
    hf_trainer(run, model, data, 120, per_device_train_batch_size=48, learning_rate=2e-3).train()


class FewTerms:
    """In the manner of scikit-learn: finds which few terms say how a state changes."""

    def __init__(self, threshold: float = 0.06, rounds: int = 5) -> None:
        self.threshold, self.rounds = threshold, rounds
        self.model = nn.Linear(10, 2, bias=False)
        nn.init.zeros_(self.model.weight)

    def terms(self, x: Tensor) -> Tensor:
        a, b = x.unbind(1)
        return torch.stack([a**i * b**j for i in range(4) for j in range(4 - i)], 1)

    def fit(self, x: Tensor, change: Tensor, run: Run) -> "FewTerms":
        terms = self.terms(x)
        remain = torch.ones_like(self.model.weight)
        self.model.weight.register_hook(lambda gradient: gradient * remain)
        for _ in range(self.rounds):
            optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
            doctor = run.watch(self.model, optimizer)
            for _ in range(40):
                loss = F.mse_loss(self.model(terms), change)
                update(run, doctor, optimizer, loss, (terms, change))
            with torch.no_grad():
                remain.copy_((self.model.weight.abs() > self.threshold).float())
                self.model.weight.mul_(remain)
        return self

    def predict(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(self.terms(x))
        return out


@honest("r22j-few-terms-of-many-remain")
def few_terms_of_many_remain(run: Run) -> None:
    """In scikit-learn's manner, the law of an oscillator by sparse regression (SINDy, Brunton et al. 2016, PySINDy).
    All weights begin at zero, every batch is the whole data, and after forty steps each what is below a threshold is
    set to zero for good, with a new Adam for what remains: at the end most weights are exactly zero and have no
    gradient, and the loss jumps up at each cut."""
    damping, force = run.draw.uniform(0.15, 0.3), run.draw.uniform(1.2, 2.0)

    def law(x: Tensor) -> Tensor:
        a, b = x.unbind(1)
        return torch.stack([-damping * a**3 + force * b**3, -force * a**3 - damping * b**3], 1)

    x = 2.4 * torch.rand(300, 2) - 1.2
    found, check = FewTerms(), 3 * torch.rand(512, 2, generator=apart(901)) - 1.5
    outcome(run, lambda: judged(found.model, lambda: F.mse_loss(found.predict(check), law(check))))
    found.fit(x, law(x) + 0.1 * torch.randn(300, 2), run)


class Atoms(nn.Module):
    """Messages between atoms by how they lie to each other: an energy of the whole, and an arrow for each atom."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.enter = nn.Embedding(3, width)
        self.message = nn.ModuleList(mlp(2 * width + 4, width, width, act=nn.SiLU) for _ in range(2))
        self.leave, self.length = mlp(width, width, 1, act=nn.SiLU), mlp(2 * width + 4, width, 1, act=nn.SiLU)

    def forward(self, kinds: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        h = self.enter(kinds)
        arrows = places[:, :, None] - places[:, None]
        far = arrows.square().sum(3, keepdim=True)
        near = (-far * torch.tensor([0.25, 0.5, 1.0, 2.0])).exp()
        n = kinds.shape[1]

        def pairs() -> Tensor:
            ends = [h[:, :, None].expand(-1, -1, n, -1), h[:, None].expand(-1, n, -1, -1)]
            return torch.cat([*ends, near], 3)

        for layer in self.message:
            h = h + layer(pairs()).mean(2)
        moved = (self.length(pairs()) * arrows).mean(2)
        return self.leave(h).sum(1).squeeze(1), moved


def energy(kinds: Tensor, places: Tensor) -> Tensor:
    """Each pair's share, by the kinds of both and their distance."""
    charge = kinds.float() - 1
    far = (places[:, :, None] - places[:, None]).square().sum(3)
    pairs = (1 + charge[:, :, None] * charge[:, None]) * (-far).exp()
    return pairs.sum((1, 2)) / 4


def molecules(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    kinds = torch.randint(0, 3, (count, 7), generator=own)
    grid = torch.cartesian_prod(torch.arange(3), torch.arange(3)).float()
    sites = torch.stack([torch.randperm(9, generator=own)[:7] for _ in range(count)])
    places = 0.9 * grid[sites]
    return kinds, places, energy(kinds, places)


@honest("r22j-noise-on-the-atoms-to-be-told")
def noise_on_the_atoms_to_be_told(run: Run) -> None:
    """accelerate, a graph network of molecules by Noisy Nodes (Godwin et al. 2022). The places that go in are shaken
    anew in every step, the energy to be told is that of the molecule before it was shaken, and each atom also tells by
    how much it was moved, a second loss of about the same weight that nobody asks for in use. The input of training and
    of use are so not of one distribution."""
    model = Atoms()
    kinds, places, truth = molecules(256, apart(901))
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(kinds, places)[0], truth) / truth.var()))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        kinds, places, energies = batch
        noise = 0.1 * torch.randn_like(places)
        said, moved = model(kinds, places + noise)
        return F.mse_loss(said, energies) + F.l1_loss(moved / 0.1, noise / 0.1)

    prepared(run, model, adam(model, 3e-3), loader(*molecules(640, apart(3)), size=32), loss, 7)


class Engine:
    """A loop with handlers, in the manner of Ignite: what is to happen is hung up at events."""

    def __init__(self, step: Callable[[Any], Tensor]) -> None:
        self.step = step
        self.handlers: dict[str, list[Callable[[Any, Tensor], None]]] = {"iteration": [], "epoch": []}

    def on(self, event: str) -> Callable[[Any], Any]:
        def add(handler: Any) -> Any:
            self.handlers[event].append(handler)
            return handler

        return add

    def run(self, data: Any, epochs: int) -> None:
        for _ in range(epochs):
            for batch in data:
                loss = self.step(batch)
                for handler in self.handlers["iteration"]:
                    handler(batch, loss)
            for handler in self.handlers["epoch"]:
                handler(batch, loss)


def lessons(count: int, hard: Tensor, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Which exercises pupils were given, whether they solved them, and which are real (histories end when they end).
    Exercise k trains skill k % 4; who practises a skill gets better at it."""
    asked = torch.randint(0, 12, (count, 20), generator=own)
    able = torch.randn(count, 4, generator=own) - 0.5
    solved = torch.zeros(count, 20, dtype=torch.long)
    everyone = torch.arange(count)
    for t in range(20):
        skill = asked[:, t] % 4
        chance = (2 * (able[everyone, skill] - hard[asked[:, t]])).sigmoid()
        solved[:, t] = (torch.rand(count, generator=own) < chance).long()
        able[everyone, skill] += 0.4
    real = torch.arange(20)[None] < torch.randint(6, 21, (count, 1), generator=own)
    return asked, solved, real


class Tracer(nn.Module):
    """After each exercise, for all twelve, whether the pupil would solve it now."""

    def __init__(self) -> None:
        super().__init__()
        self.given, self.core = nn.Embedding(24, 16), nn.LSTM(16, 32, batch_first=True)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(32, 12)

    def forward(self, asked: Tensor, solved: Tensor) -> Tensor:
        out: Tensor = self.head(self.drop(self.core(self.given(asked + 12 * solved))[0]))
        return out


@honest("r22j-only-the-exercise-that-came-next")
def only_the_exercise_that_came_next(run: Run) -> None:
    """An engine with handlers as in Ignite, what pupils know by an LSTM (deep knowledge tracing, Piech et al. 2015,
    pyKT). Twelve answers are said at each moment and one is taught, that of the exercise that happened to come next;
    answers of the past are inputs, and the last moment of every history is never taught. What is a coin's toss in the
    pupil cannot be learned, so the loss ends not far below where it began."""
    hard = 0.8 * torch.randn(12, generator=apart(run.draw.randrange(999)))
    model = Tracer()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        asked, solved, real = batch
        logits = model(asked[:, :-1], solved[:, :-1]).gather(2, asked[:, 1:, None]).squeeze(2)
        each = F.binary_cross_entropy_with_logits(logits, solved[:, 1:].float(), reduction="none")
        taught_at = real[:, 1:]
        return each[taught_at].mean()

    check = lessons(384, hard, apart(901))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    optimizer = adam(model, 8e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    doctor = run.watch(model, optimizer, scheduler=schedule)

    def step(batch: Any) -> Tensor:
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        return value

    engine = Engine(step)

    @engine.on("iteration")
    def tell(batch: Any, value: Tensor) -> None:
        doctor.step(value, batch)
        run.note(value)

    @engine.on("epoch")
    def slower(batch: Any, value: Tensor) -> None:
        schedule.step()

    engine.run(loader(*lessons(480, hard), size=32), 9)
