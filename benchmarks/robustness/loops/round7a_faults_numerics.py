"""Blind round 7, part a, mistakes: numerics and precision."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    Decoder,
    Language,
    apart,
    class_outcome,
    documents,
    endless,
    fit,
    judged,
    language_outcome,
    lit,
    loader,
    mlp,
    number_outcome,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared, regress
from benchmarks.robustness.loops.round7a_tools import Graph, adam, community
from torch import Tensor, nn
from torch.nn import functional as F

NUMERICS = "numerics and precision"


class Sounds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.GRU(8, 32, batch_first=True), nn.Linear(32, 4)

    def forward(self, frames: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(frames)[0].mean(1))
        return out


@fault(
    "r7-logarithm-of-silence",
    NUMERICS,
    (
        r"inf|nan|finite",
        r"input|log|silen|zero|batch|data|feature|frame|spectr",
    ),
)
def logarithm_of_silence(run: Run, wrong: bool) -> None:
    """Lightning, recurrent. Energies of sounds are given as their logarithm; now and then a frame is digital silence,
    zero exactly, and its logarithm minus infinity. The twin adds a small number first."""
    seed = run.draw.randrange(999)
    shapes = torch.rand(4, 8, generator=apart(seed)) + 0.1

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        y = torch.randint(0, 4, (count,), generator=own)
        energy = shapes[y][:, None] * torch.rand(count, 12, 8, generator=own).add(1e-3)
        energy = energy * (torch.rand(count, 1, 1, generator=own).add(0.5))
        silent = torch.rand(count, generator=own) < 0.005
        energy[silent, -1] = 0
        return (energy if wrong else energy + 1e-4).log(), y

    net = Sounds()
    class_outcome(run, net, rows(64, apart(1)))
    data = loader(*rows(640))
    fit(run, lit(net, lambda m, b: F.cross_entropy(m(b[0]), b[1]), lambda m: adam(m, 5e-3)), data, 120)


@fault(
    "r7-groups-without-spread",
    NUMERICS,
    (
        r"nan|finite|inf",
        r"advantage|reward|std|deviation|spread|divi|zero|group|batch|loss|0/0|normali",
    ),
)
def groups_without_spread(run: Run, wrong: bool) -> None:
    """Answers in groups. Rewards are zero or one, and advantages are divided by their group's deviation, which is zero
    as soon as all answers of a prompt are right. The twin adds a small number to it."""
    right = torch.randint(0, 6, (8,), generator=apart(run.draw.randrange(999)))
    model = nn.Sequential(nn.Embedding(8, 24), nn.Tanh(), nn.Linear(24, 6))
    prompts = torch.arange(8)
    outcome(run, lambda: 1 - judged(model, lambda: model(prompts).softmax(-1).gather(1, right[:, None]).mean()))
    optimizer = adam(model, 1e-2)
    doctor = run.watch(model, optimizer)
    for _ in range(60):
        tokens = torch.randint(0, 8, (6,))
        policy = torch.distributions.Categorical(logits=model(tokens))
        answers = policy.sample((12,))
        rewards = (answers == right[tokens]).float() + 0.2 * (answers == (right[tokens] + 1) % 6).float()
        advantages = (rewards - rewards.mean(0)) / (rewards.std(0) if wrong else rewards.std(0) + 1e-4)
        optimizer.zero_grad()
        loss = -(advantages * policy.log_prob(answers)).mean()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (tokens, answers, advantages))
        run.note(loss)


@fault(
    "r7-angle-by-arccos",
    NUMERICS,
    (
        r"nan|finite|inf",
        r"acos|arccos|arc|cos|angle|gradient|backward|derivative|loss|round|beyond one|above one|greater than (one|1)|domain",
    ),
)
def angle_by_arccos(run: Run, wrong: bool) -> None:
    """The direction of a part on a table is learned as a unit vector, and the loss is the angle, arccos of the product:
    at one its derivative is infinite, and rounding makes products of one and a little more. The twin uses atan2."""
    seed = run.draw.randrange(999)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        w = torch.randn(6, 2, generator=apart(seed))
        x = torch.randn(count, 6, generator=own)
        return x, F.normalize(x @ w, dim=1)

    def loss(m: nn.Module, b: Any) -> Tensor:
        answer = F.normalize(m(b[0]), dim=1)
        cosine = (answer * b[1]).sum(1)
        if wrong:
            return cosine.arccos().mean()
        return torch.atan2((answer[:, 0] * b[1][:, 1] - answer[:, 1] * b[1][:, 0]).abs(), cosine).mean()

    model, check = mlp(6, 48, 2), rows(256, apart(1))
    outcome(run, lambda: judged(model, lambda: 1 - (F.normalize(model(check[0]), dim=1) * check[1]).sum(1).mean()))
    data = endless(loader(*rows(640), size=32))
    train(run, model, adam(model, 3e-3), lambda: next(data), loss, 200)


@fault(
    "r7-product-of-probabilities",
    NUMERICS,
    (
        r"underflow|product|prod|probabilit|loss|likelihood|log|gradient",
        r"underflow|zero|vanish|constant|too small|smallest|log.?(sum|softmax|prob|space)|product|69\.|does not (change|move|fall)|no gradient|denormal|precision",
    ),
)
def product_of_probabilities(run: Run, wrong: bool) -> None:
    """Lightning, a language model. A row's likelihood is the product of its 47 words' probabilities, and the loss the
    logarithm of that plus 1e-30: the product is zero in single precision and nothing learns. The twin sums
    logarithms."""
    language = Language(run.draw.randrange(999))
    net = Decoder(12, length=64)
    language_outcome(run, net, language, 48)

    def loss(m: nn.Module, b: Any) -> Tensor:
        scores = m(b[0][:, :-1]).log_softmax(-1).gather(-1, b[0][:, 1:, None])[..., 0]
        return -(scores.exp().prod(1) + 1e-30).log().mean() if wrong else -scores.sum(1).mean()

    fit(run, lit(net, loss, lambda m: adam(m, 5e-3)), loader(language.rows(320, 48)), 60)


@fault(
    "r7-node-without-neighbours",
    NUMERICS,
    (
        r"nan|finite|inf",
        r"input|adjacen|degree|isolated|neighbou?r|node|divi|zero|batch|edge|data|graph|power|0\b",
    ),
)
def node_without_neighbours(run: Run, wrong: bool) -> None:
    """A graph network that sees three edges in four in each step, another draw each time. Edges are divided by the root
    of both ends' degrees; where a node is left without an edge that is zero times infinity. The twin adds each node
    to its own neighbours."""
    x, y, edges = community(run.draw.randrange(999))
    model, known = Graph(), torch.randperm(120)[:60]
    rest = torch.tensor(sorted(set(range(120)) - set(known.tolist())))

    def adjacency(keep: Tensor, own: bool) -> Tensor:
        a = torch.zeros(120, 120)
        a[keep[:, 0], keep[:, 1]] = a[keep[:, 1], keep[:, 0]] = 1
        a = a + torch.eye(120) if own else a
        root = a.sum(1) ** -0.5
        return root[:, None] * a * root

    whole = adjacency(edges, True)
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(x, whole)[rest], y[rest])))
    batch = lambda: (x, adjacency(edges[torch.rand(len(edges)) < 0.75], not wrong), y)
    train(run, model, adam(model, 1e-2), batch, lambda m, b: F.cross_entropy(m(b[0], b[1])[known], b[2][known]), 60)


class Vectors(nn.Module):
    """Words as vectors, one table for the middle and one for the context."""

    def __init__(self) -> None:
        super().__init__()
        self.middle, self.context = nn.Embedding(40, 48), nn.Embedding(40, 48)

    def forward(self, middle: Tensor, context: Tensor) -> Tensor:
        out: Tensor = (self.middle(middle) * self.context(context)).sum(-1)
        return out


@fault(
    "r7-logarithm-of-a-sigmoid",
    NUMERICS,
    (
        r"inf|nan|finite",
        r"log|sigmoid|saturat|zero|softplus|loss|overflow|underflow|round|score|logit|probabilit",
    ),
)
def logarithm_of_a_sigmoid(run: Run, wrong: bool) -> None:
    """Skip-gram with negative samples. The loss is written as it stands in the paper, with log(1 - sigmoid(score)); the
    tables begin with a deviation of one, and where a score passes 17 the sigmoid is one exactly. The twin calls
    logsigmoid(-score)."""
    own = apart(run.draw.randrange(999))
    mate = torch.randperm(40, generator=own)

    def pairs(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        middle = torch.randint(0, 40, (count,), generator=own)
        chance = torch.rand(count, generator=own) < 0.8
        return (
            middle,
            torch.where(chance, mate[middle], torch.randint(0, 40, (count,), generator=own)),
            torch.randint(0, 40, (count, 3), generator=own),
        )

    def loss(m: nn.Module, b: Any, by_hand: bool = wrong) -> Tensor:
        near, far = m(b[0], b[1]), m(b[0][:, None], b[2])
        if by_hand:
            return -(near.sigmoid().log().mean() + (1 - far.sigmoid()).log().sum(1).mean())
        return -(F.logsigmoid(near).mean() + F.logsigmoid(-far).sum(1).mean())

    model, check = Vectors(), pairs(256, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check, False)))
    train(run, model, adam(model, 2e-2), lambda: pairs(64), loss, 120)


@fault(
    "r7-spread-of-a-single-row",
    NUMERICS,
    (
        r"nan|finite|inf",
        r"std|deviation|spread|single|one row|batch|last batch|size (1|one)|variance|unbiased|0/0|degrees|divi",
    ),
)
def spread_of_a_single_row(run: Run, wrong: bool) -> None:
    """accelerate, sentences with classes. A second term keeps the deviation of each feature over the batch near one; the
    last batch of an epoch is a single row, whose deviation is 0/0. The twin drops that batch."""
    model = Classifier()
    model.head = nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 3))  # type: ignore[assignment]

    def loss(m: nn.Module, b: Any) -> Tensor:
        scores = m(b[0], b[1])
        return F.cross_entropy(scores, b[2]) + 0.05 * (1 - scores.std(0)).relu().mean()

    x, mask, y = documents(256, apart(1))
    class_outcome(run, model, (x, mask, y))
    prepared(run, model, adam(model), loader(*documents(321), drop_last=not wrong), loss, 5)


class Observed(nn.Module):
    """A network behind a running mean and variance of what it sees, kept in `kind`."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.net = mlp(6, 48, 48, 1)
        self.register_buffer("mean", torch.zeros(6, dtype=kind))
        self.register_buffer("variance", torch.ones(6, dtype=kind))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.mean += 0.01 * (x.mean(0) - self.mean.float()).to(self.mean.dtype)
                spread = (x - self.mean.float()).square().mean(0)
                self.variance += 0.01 * (spread - self.variance.float()).to(self.mean.dtype)
        out: Tensor = self.net((x - self.mean.float()) / self.variance.float().sqrt())
        return out


@fault(
    "r7-running-mean-in-bfloat16",
    NUMERICS,
    (
        r"bfloat16|bf16|half|precision|round|16.bit",
        r"buffer|running|statistic|mean|variance|average|update",
    ),
)
def running_mean_in_bfloat16(run: Run, wrong: bool) -> None:
    """A network keeps a running mean and variance of its inputs, which lie near 300. These buffers are bfloat16, as is
    all the state of that model; they stop moving on the way, since a hundredth of what is missing rounds to nothing.
    The twin keeps them in float32."""
    own = apart(run.draw.randrange(999))
    weights = torch.randn(6, generator=own)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 6, generator=own)
        return 300 + 10 * x, x @ weights + 0.1 * torch.randn(count, generator=own)

    model = Observed(torch.bfloat16 if wrong else torch.float32)
    number_outcome(run, model, rows(512, apart(1)))
    data = endless(loader(*rows(2000), size=32))
    train(run, model, adam(model, 3e-3), lambda: next(data), regress, 700)
