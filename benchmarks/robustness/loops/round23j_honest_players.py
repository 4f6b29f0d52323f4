"""Round 23j, honest and odd: several players in one loop, who judge, vote, look up, or are told apart."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    apart,
    class_outcome,
    fit,
    judged,
    lit,
    loader,
    mlp,
    number_outcome,
    outcome,
    table,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_tools import adam, taught, update
from torch import Tensor, nn
from torch.nn import functional as F

MOVES = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])


def energy_distance(a: Tensor, b: Tensor) -> Tensor:
    """How far two samples' distributions are apart, from the distances of points (Székely and Rizzo 2013)."""
    a, b = a.flatten(1), b.flatten(1)
    return 2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()


def walk(policy: Any, start: Tensor, more: Tensor, length: int, own: torch.Generator | None = None) -> Any:
    """States (length + 1, walks, 2), actions (length, walks) of walks in the plane; the policy is told `more`, too."""
    states, actions = [start], []
    for _ in range(length):
        with torch.no_grad():
            chance = policy(torch.cat([states[-1], more], 1)).softmax(1)
        actions.append(torch.multinomial(chance, 1, generator=own).squeeze(1))
        blown = 0.05 * torch.randn(start.shape, generator=own)
        states.append((states[-1] + 0.3 * MOVES[actions[-1]] + blown).clamp(-2, 2))
    return torch.stack(states), torch.stack(actions)


def by_returns(policy: nn.Module, states: Tensor, more: Tensor, actions: Tensor, rewards: Tensor) -> Tensor:
    """Williams 1992, with what other walks got from the same moment on as the baseline, and a price of certainty."""
    returns = rewards.flip(0).cumsum(0).flip(0)
    gain = (returns - returns.mean(1, keepdim=True)) / (returns.std() + 1e-6)
    logs = policy(torch.cat([states[:-1], more.expand(len(actions), -1, -1)], 2)).log_softmax(2)
    entropy = -(logs.exp() * logs).sum(2).mean()
    return -(logs.gather(2, actions[..., None]).squeeze(2) * gain).mean() - 0.02 * entropy


@honest("r23j-rewarded-for-passing-as-the-expert")
def rewarded_for_passing_as_the_expert(run: Run) -> None:
    """Plain loop, imitation by a judge (GAIL, Ho and Ermon 2016). There is no reward but a classifier's that learns
    beside the policy to tell its moves from an expert's; it climbs towards chance while the policy's loss wanders
    around zero, and what a move was worth changes with each update of the judge."""
    goal = 1.2 * torch.randn(2, generator=apart(run.draw.randrange(999))).sign()

    def expert(states: Tensor) -> Tensor:
        return -10 * (states[:, None] + 0.3 * MOVES - goal).norm(dim=2)

    policy, judge = mlp(2, 32, 5, act=nn.Tanh), mlp(7, 32, 1, act=nn.Tanh)
    begin, nothing = 0.6 * torch.randn(256, 2, generator=apart(1)), torch.zeros(256, 0)

    def far() -> float:
        states, _ = walk(policy, begin, nothing, 10, apart(2))
        return judged(policy, lambda: (states[1:] - goal).norm(dim=2).mean())

    outcome(run, far)
    shown, moves = walk(expert, begin[:48], nothing[:48], 10)
    known = torch.cat([shown[:-1], F.one_hot(moves, 5)], 2).flatten(0, 1)
    policy_optimizer, judge_optimizer = adam(policy, 1e-2), adam(judge)
    doctor, other = run.watch(policy, policy_optimizer), run.watch(judge, judge_optimizer)
    for _ in range(110):
        states, actions = walk(policy, 0.6 * torch.randn(48, 2), nothing[:48], 10)
        own = torch.cat([states[:-1], F.one_hot(actions, 5)], 2)
        pairs = torch.cat([known, own.flatten(0, 1)])
        truth = (torch.arange(len(pairs)) < len(known)).float()[:, None]
        update(run, other, judge_optimizer, F.binary_cross_entropy_with_logits(judge(pairs), truth), (pairs, truth))
        with torch.no_grad():
            rewards = F.softplus(judge(own)).squeeze(2)
        loss = by_returns(policy, states, nothing[:48], actions, rewards)
        update(run, doctor, policy_optimizer, loss, (states, actions))


@honest("r23j-habits-that-can-be-told-apart")
def habits_that_can_be_told_apart(run: Run) -> None:
    """Plain loop, skills without any task (DIAYN, Eysenbach et al. 2019). Each walk is given one of four numbers that
    mean nothing; a classifier guesses the number from the places, and how sure it is of the right one is the reward.
    Both players win together, and the classes that the classifier learns come into being while it learns them."""
    policy, guesser = mlp(6, 48, 5, act=nn.Tanh), mlp(2, 32, 4, act=nn.Tanh)
    begin, asked = 0.2 * torch.randn(256, 2, generator=apart(1)), torch.arange(256) % 4

    def unsure() -> float:
        states, _ = walk(policy, begin, F.one_hot(asked, 4).float(), 8, apart(2))
        return judged(guesser, lambda: F.cross_entropy(guesser(states[-1]), asked))

    outcome(run, unsure)
    both = nn.ModuleDict({"policy": policy, "guesser": guesser})
    optimizer = adam(both, 8e-3)
    doctor = run.watch(both, optimizer)
    for _ in range(120):
        skill = torch.randint(0, 4, (64,))
        told = F.one_hot(skill, 4).float()
        states, actions = walk(policy, 0.2 * torch.randn(64, 2), told, 8)
        scores = guesser(states[1:])
        guessed = F.cross_entropy(scores.flatten(0, 1), skill.repeat(8))
        rewards = scores.detach().log_softmax(2).gather(2, skill.expand(8, -1)[..., None]).squeeze(2)
        loss = guessed + by_returns(policy, states, told, actions, rewards)
        update(run, doctor, optimizer, loss, (states, actions, skill))


class Finder(nn.Module):
    """Questions and documents as sums of the vectors of their words, and a GPT that reads one of each."""

    def __init__(self) -> None:
        super().__init__()
        self.question, self.document = nn.EmbeddingBag(71, 24, mode="sum"), nn.EmbeddingBag(71, 24, mode="sum")
        nn.init.normal_(self.question.weight, std=0.3)
        self.document.load_state_dict(self.question.state_dict())
        self.reader = Decoder(71, layers=2, length=12)

    @torch.no_grad()
    def index(self, documents: Tensor) -> Tensor:
        return self.document(documents)

    def read(self, documents: Tensor, asked: Tensor, answers: Tensor) -> Tensor:
        """The log probability of each answer."""
        rows = torch.cat([documents, asked, torch.full((len(asked), 1), 70), answers], 1)
        said = self.reader(rows[:, :-1])[:, -2:].log_softmax(2)
        return said.gather(2, answers[..., None]).sum((1, 2))

    def loss(self, documents: Tensor, index: Tensor, asked: Tensor, answers: Tensor) -> Tensor:
        """The answer may come from any of the four documents found."""
        with torch.no_grad():
            found = documents[(self.question(asked) @ index.T).topk(4, 1).indices].flatten(0, 1)
        likely = (self.document(found).view(len(asked), 4, -1) * self.question(asked)[:, None]).sum(2)
        said = self.read(found, asked.repeat_interleave(4, 0), answers.repeat_interleave(4, 0)).view(-1, 4)
        return -(likely.log_softmax(1) + said).logsumexp(1).mean()


@honest("r23j-looked-up-in-an-old-index")
def looked_up_in_an_old_index(run: Run) -> None:
    """Plain loop, a GPT answers from documents that it looks up (REALM, Guu et al. 2020). The search runs in vectors
    that were computed up to fifteen updates ago, as its authors' does, and choosing has no gradient; only of the four
    that were found are the vectors computed anew. Nobody says which document was the right one."""
    own = apart(run.draw.randrange(999))

    def library(generator: torch.Generator | None = None) -> Tensor:
        keys = torch.rand(200, 30, generator=generator).argsort(1)[:, :4]
        return torch.cat([keys, torch.randint(60, 70, (200, 2), generator=generator)], 1)

    def questions(documents: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """The documents, three of their four words, each perhaps by its synonym, and the answers."""
        places = torch.rand(len(documents), 4, generator=generator).argsort(1)[:, :3]
        other = (torch.rand(places.shape, generator=generator) < 0.3).long()
        return documents, documents.gather(1, places) + 30 * other, documents[:, 4:]

    model = Finder()
    documents, unseen = library(own), library(apart(1))
    check = questions(unseen, apart(2))[1:]
    taught(model.reader, lambda: questions(library()[:48]), lambda _, rows: -model.read(*rows).mean(), 200)
    outcome(run, lambda: judged(model, lambda: model.loss(unseen, model.index(unseen), *check)))
    optimizer = adam(model)
    doctor = run.watch(model, optimizer)
    for step in range(130):
        if step % 15 == 0:
            index = model.index(documents)
        batch = questions(documents[torch.randint(0, 200, (24,))])[1:]
        update(run, doctor, optimizer, model.loss(documents, index, *batch), batch)


class Strangers(nn.Module):
    """Eight networks, to each of which a fixed one that nobody trains is added."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(mlp(6, 24, 1, act=nn.ELU) for _ in range(8))
        self.strangers = nn.ModuleList(mlp(6, 24, 1, act=nn.ELU) for _ in range(8)).requires_grad_(False)

    def each(self, x: Tensor) -> Tensor:
        pairs = zip(self.members, self.strangers, strict=True)
        return torch.stack([(member(x) + 3 * stranger(x)).squeeze(1) for member, stranger in pairs])

    def forward(self, x: Tensor) -> Tensor:
        return self.each(x).mean(0)


@honest("r23j-a-fixed-stranger-beside-each")
def a_fixed_stranger_beside_each(run: Run) -> None:
    """Lightning, an ensemble that knows what it does not know (randomised prior functions, Osband et al. 2018). Half of
    the parameters are networks as they were drawn, thrice as loud, that have no gradient and stay in the outputs for
    ever; each member sees its own half of the rows, and each has its own noise upon the labels."""
    seed = run.draw.randrange(999)
    x, y = table(480, seed, apart(seed + 1))
    seen = (torch.rand(480, 8, generator=apart(seed + 2)) < 0.5).float()
    told = y[:, None] + 0.1 * torch.randn(480, 8, generator=apart(seed + 3))
    model = Strangers()
    number_outcome(run, model, table(256, seed, apart(1)))

    def loss(net: Any, batch: Any) -> Tensor:
        rows, labels, keep = batch
        return (keep.T * (net.each(rows) - labels.T).square()).sum() / keep.sum()

    def optimizer(net: nn.Module) -> Any:
        return torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=1e-2)

    fit(run, lit(model, loss, optimizer), loader(x, told, seen, size=32), 120)


def glows(count: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 1, 8, 8) pictures of one round glow somewhere."""
    at = 1.5 + 4 * torch.rand(count, 2, 1, generator=own)
    row, column = (-(torch.arange(8) - at).square() / 4).exp().unbind(1)
    return (row[:, :, None] * column[:, None])[:, None]


@honest("r23j-a-share-held-between-two")
def a_share_held_between_two(run: Run) -> None:
    """Plain loop, a forger of pictures against a judge that is an autoencoder (BEGAN, Berthelot et al. 2017). The judge
    is to reproduce real pictures well and forged ones badly, and the weight of the second is a number that begins at
    zero and is moved by hand after each update, so that the two errors keep a ratio. Real pictures count positive and
    forged ones negative in one loss."""
    forger = nn.Sequential(mlp(8, 64, 64), nn.Sigmoid(), nn.Unflatten(1, (1, 8, 8)))
    judge = nn.Sequential(
        *(nn.Conv2d(1, 12, 3, 2, 1), nn.ELU(), nn.Flatten(), nn.Linear(192, 10), nn.Linear(10, 192), nn.ELU()),
        *(nn.Unflatten(1, (12, 4, 4)), nn.Upsample(scale_factor=2), nn.Conv2d(12, 1, 3, padding=1)),
    )
    real, thought = glows(256, apart(1)), torch.rand(256, 8, generator=apart(2)) * 2 - 1
    outcome(run, lambda: judged(forger, lambda: energy_distance(forger(thought), real)))
    optimizers = [torch.optim.Adam(m.parameters(), lr=2e-3, betas=(0.5, 0.999)) for m in (forger, judge)]
    doctors = [run.watch(m, o) for m, o in zip((forger, judge), optimizers, strict=True)]

    def error(x: Tensor) -> Tensor:
        return (judge(x) - x).abs().mean()

    weight = 0.0
    for _ in range(200):
        batch = glows(32)
        forged = forger(torch.rand(32, 8) * 2 - 1)
        good, bad = error(batch), error(forged.detach())
        update(run, doctors[1], optimizers[1], good - weight * bad, batch)
        passed = error(forged)
        update(run, doctors[0], optimizers[0], passed, forged.detach())
        weight = min(1.0, max(0.0, weight + 0.02 * float(0.7 * good - passed)))


@honest("r23j-noisy-votes-of-those-who-may-not-be-asked")
def noisy_votes_of_those_who_may_not_be_asked(run: Run) -> None:
    """accelerate, what ten hospitals know without their tables (PATE, Papernot et al. 2017). Ten networks learn forty
    rows each by heart; a pupil learns public rows from their votes, to whose counts noise is added before the largest
    is taken, so that one label in some is wrong on purpose. The pupil never sees a true label."""
    seed = run.draw.randrange(999)
    direction = torch.randn(6, 3, generator=apart(seed))

    def rows(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 6, generator=own)
        return x, (x @ direction + 0.5 * (x * x) @ direction.roll(1, 0)).argmax(1)

    private, public = rows(400, apart(seed + 1)), rows(400, apart(seed + 2))[0]
    votes = torch.zeros(400, 3)
    for hospital in range(10):
        part = slice(40 * hospital, 40 * hospital + 40)
        teacher = mlp(6, 32, 3)
        taught(teacher, lambda part=part: (private[0][part], private[1][part]), classify, 60, 1e-2)
        with torch.no_grad():
            votes += F.one_hot(teacher(public).argmax(1), 3)
    labels = (votes + torch.distributions.Laplace(0.0, 1.5).sample(votes.shape)).argmax(1)
    pupil = mlp(6, 32, 3)
    class_outcome(run, pupil, rows(400, apart(1)))
    prepared(run, pupil, adam(pupil), loader(public, labels, size=32), classify, 10)


class Cooperation:
    """A forger whose works are revised by an energy, and who learns to do at once what the revision did."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.learned, self.forger = mlp(2, 48, 48, 1, act=nn.SiLU), mlp(2, 48, 48, 2)
        for layer in self.learned[::2]:
            nn.utils.parametrizations.spectral_norm(layer)
        nets, rates = (self.learned, self.forger), (1e-2, 5e-3)
        self.optimizers = [
            torch.optim.Adam(net.parameters(), lr=rate, betas=(0.5, 0.999))
            for net, rate in zip(nets, rates, strict=True)
        ]
        self.doctors = [run.watch(net, rule) for net, rule in zip(nets, self.optimizers, strict=True)]

    def energy(self, x: Tensor) -> Tensor:
        """The learned part upon that of a wide bell."""
        return 8 * self.learned(x).squeeze(1) + x.square().sum(1) / 4.5

    def revised(self, x: Tensor, steps: int = 15, size: float = 0.3) -> Tensor:
        with nn.utils.parametrize.cached():
            for _ in range(steps):
                x.requires_grad_(True)
                (slope,) = torch.autograd.grad(self.energy(x).sum(), x)
                x = (x - 0.5 * size**2 * slope + 0.2 * size * torch.randn_like(x)).detach()
        return x

    def step(self, real: Tensor) -> None:
        thought = torch.randn(len(real), 2)
        better = self.revised(self.forger(thought).detach())
        update(
            self.run, self.doctors[0], self.optimizers[0], self.energy(real).mean() - self.energy(better).mean(), real
        )
        update(self.run, self.doctors[1], self.optimizers[1], F.mse_loss(self.forger(thought), better), thought)


@honest("r23j-learns-from-how-it-was-revised")
def learns_from_how_it_was_revised(run: Run) -> None:
    """An own class, an energy and a forger who help each other (CoopNets, Xie et al. 2018). The forger's points go
    downhill with a little noise for fifteen steps of the energy; it then learns to have made the moved points from the
    same thoughts, so that its targets are its own outputs of a moment ago. The energy's loss is a difference of two
    means, of any sign and without a floor."""
    team = Cooperation(run)
    turn = 6.28 * torch.rand((), generator=apart(run.draw.randrange(999)))

    def points(count: int, own: torch.Generator | None = None) -> Tensor:
        angle = turn + 3.14 * torch.rand(count, generator=own)
        return 1.8 * torch.stack([angle.cos(), angle.sin()], 1) + 0.2 * torch.randn(count, 2, generator=own)

    real, thought = points(400, apart(1)), torch.randn(400, 2, generator=apart(2))
    outcome(run, lambda: judged(team.forger, lambda: energy_distance(team.forger(thought), real)))
    for _ in range(150):
        team.step(points(128))
