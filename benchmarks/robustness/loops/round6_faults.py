"""Blind round 6, mistakes: data and labels; loss and masking; architecture and graph; numerics and precision."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    class_outcome,
    cnn,
    endless,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    number_outcome,
    outcome,
    pictures,
    table,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, classify, prepared, regress
from torch import Tensor, nn
from torch.nn import functional as F

DATA, LOSS = "data and labels", "loss and masking"
ARCHITECTURE, NUMERICS = "architecture and graph", "numerics and precision"


def adam(model: nn.Module, rate: float = 5e-3) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=rate)


# data and labels


@fault(
    "r6-missing-as-minus-999",
    DATA,
    (
        r"input|feature|column|batch|data|value",
        r"999|sentinel|missing|outlier|extreme|huge|far (larger|greater|from)|scale|standardi|normali|magnitude|placeholder|fill",
    ),
)
def missing_as_minus_999(run: Run, wrong: bool) -> None:
    """A table whose missing entries, one in twelve of three columns, are written as -999 and go into the network as
    they are. The twin fills in the columns' mean, zero."""
    seed = run.draw.randrange(999)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, y = table(count, seed, own)
        lost = torch.rand(count, 6, generator=own) < torch.tensor([1, 1, 1, 0, 0, 0]) / 12
        return x.masked_fill(lost, -999.0 if wrong else 0.0), y

    model = mlp(6, 48, 48, 1)
    number_outcome(run, model, rows(512, apart(1)))
    data = endless(loader(*rows(640)))
    train(run, model, adam(model, 3e-3), lambda: next(data), regress, 150)


@fault(
    "r6-targets-standardised-by-batch",
    DATA,
    (
        r"target|label",
        r"batch.{0,60}(mean|statistic|standardi|normali|deviation|scale)|(mean|statistic|standardi|normali|deviation|scale|zero.mean).{0,80}batch|depend.{0,40}(other rows|batch)|same (input|row).{0,40}(other|different) (target|label)",
    ),
)
def targets_standardised_by_batch(run: Run, wrong: bool) -> None:
    """Lightning. The target is standardised in the training step, with the mean and deviation of the four rows that
    happen to be in the batch. The twin uses those of the training set."""
    seed = run.draw.randrange(999)
    x, y = table(480, seed)
    y = 40 + 7 * y
    mean, deviation = y.mean(), y.std()
    net = mlp(6, 48, 1)
    cx, cy = table(512, seed, apart(1))
    number_outcome(run, net, (cx, (40 + 7 * cy - mean) / deviation))

    def loss(m: nn.Module, b: Any) -> Tensor:
        target = (b[1] - b[1].mean()) / (b[1].std() + 1e-6) if wrong else (b[1] - mean) / deviation
        return F.mse_loss(m(b[0]).flatten(), target)

    fit(run, lit(net, loss, lambda m: adam(m, 3e-3)), loader(x, y, size=4), 240)


class Jittered(torch.utils.data.Dataset[Any]):
    """Pictures to which noise is added whenever they are asked for."""

    def __init__(self, x: Tensor, y: Tensor, in_place: bool) -> None:
        self.x, self.y, self.in_place = x, y, in_place

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = self.x[index]
        noise = 0.25 * torch.randn(x.shape)
        if self.in_place:
            x += noise
        else:
            x = x + noise
        return x, self.y[index]


@fault(
    "r6-augmented-in-place",
    DATA,
    (
        r"input|data|batch|row|picture|sample|augment",
        r"in.place|accumul|grow|drift|more and more|change.{0,30}(over|from|between|during)|corrupt|overwrit|spread.{0,30}(rise|larger)|(scale|deviation|variance|range).{0,40}(rise|rose|increas|grow)",
    ),
)
def augmented_in_place(run: Run, wrong: bool) -> None:
    """`x = self.x[i]; x += noise` in a data set: the row is a view, so that the augmentation is written into the
    stored data, and after some epochs these are noise. The twin makes a new tensor."""
    seed = run.draw.randrange(999)
    model = cnn()
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    data = endless(torch.utils.data.DataLoader(Jittered(*pictures(96, seed), wrong), 16, shuffle=True))
    train(run, model, adam(model, 3e-3), lambda: next(data), classify, 180)


# loss and masking


@fault(
    "r6-mean-before-square",
    LOSS,
    (
        r"loss|error|mean|gradient|output|prediction",
        r"mean.{0,40}(before|first|then|of the (error|difference|residual))|average.{0,40}(before|first|then)|square of the mean|cancel|only (the )?(mean|average)|whole batch|rank (one|1)|all rows.{0,40}(same|equal) gradient|same gradient|constant.{0,40}row|every row.{0,40}(same|alike)",
    ),
)
def mean_before_square(run: Run, wrong: bool) -> None:
    """accelerate. The squared error is written as `(prediction - target).mean() ** 2`: errors of a batch cancel, the
    loss falls to nothing, and only the batch's mean is learned. The twin squares first."""
    seed = run.draw.randrange(999)
    model = mlp(6, 48, 1)
    number_outcome(run, model, table(512, seed, apart(1)))

    def loss(m: nn.Module, b: Any) -> Tensor:
        error = m(b[0]).flatten() - b[1]
        return error.mean() ** 2 if wrong else (error**2).mean()

    prepared(run, model, adam(model), loader(*table(512, seed)), loss, 5)


@fault(
    "r6-entropy-arguments-exchanged",
    LOSS,
    (
        r"loss|cross.?entropy|binary",
        r"argument|exchang|swap|order|revers|interchang|target.{0,40}(place|position|first)|input.{0,40}target|(log|clamp).{0,30}(of the )?(label|target|0|zero)|100",
    ),
)
def entropy_arguments_exchanged(run: Run, wrong: bool) -> None:
    """F.binary_cross_entropy(label, probability): the arguments are exchanged. The logarithm is of the labels, which are
    smoothed, 0.05 or 0.95; the loss is linear in the probability, which goes to 0 or 1 although labels are uncertain."""
    seed = run.draw.randrange(999)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, z = table(count, seed, own)
        return x, torch.bernoulli((z / 2).sigmoid(), generator=own)

    model = nn.Sequential(mlp(6, 32, 1, act=nn.Tanh), nn.Sigmoid(), nn.Flatten(0))
    x, y = rows(512, apart(1))
    outcome(run, lambda: judged(model, lambda: F.binary_cross_entropy(model(x), y)))
    data = endless(loader(*rows(512)))

    def loss(m: nn.Module, b: Any) -> Tensor:
        b, p = (b[0], 0.05 + 0.9 * b[1]), m(b[0])
        return F.binary_cross_entropy(b[1], p) if wrong else F.binary_cross_entropy(p, b[1])

    train(run, model, adam(model), lambda: next(data), loss, 150)


@fault(
    "r6-tags-through-softmax",
    LOSS,
    (
        r"softmax|cross.?entropy|loss|target|label",
        r"multi.?(label|hot)|several (tags|labels|classes)|more than one|sum.{0,30}(one|1)|not.{0,20}(exclusive|distribution)|sigmoid|binary|bce|independent",
    ),
)
def tags_through_softmax(run: Run, wrong: bool) -> None:
    """transformers' Trainer. A row has any number of six tags; the vector of zeros and ones is given to cross_entropy,
    which takes it for probabilities and has the tags compete. The twin has a sigmoid each."""
    own = apart(run.draw.randrange(999))
    weights, bias = 1.5 * torch.randn(8, 6, generator=own), 0.5 * torch.randn(6, generator=own)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 8, generator=own)
        return x, torch.bernoulli((x @ weights + bias).sigmoid(), generator=own)

    net = mlp(8, 32, 6)
    x, y = rows(512, apart(1))
    outcome(run, lambda: judged(net, lambda: ((net(x) > 0).float() != y).float().mean()))
    kind = F.cross_entropy if wrong else F.binary_cross_entropy_with_logits
    x2, y2 = rows(512)
    hf_trainer(run, WithLoss(net, kind), examples(x=x2, labels=y2), 120).train()


# architecture and graph


class Convolutions(nn.Module):
    """A language model of three convolutions over the words so far."""

    def __init__(self, words: int, ahead: bool) -> None:
        super().__init__()
        self.tokens, self.ahead = nn.Embedding(words, 32), ahead
        self.layers = nn.ModuleList(nn.Conv1d(32, 32, 3, padding=1 if ahead else 0) for _ in range(3))
        self.head = nn.Linear(32, words)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids).transpose(1, 2)
        for layer in self.layers:
            x = x + layer(x if self.ahead else F.pad(x, (2, 0))).relu()
        out: Tensor = self.head(x.transpose(1, 2))
        return out


@fault(
    "r6-convolution-sees-ahead",
    ARCHITECTURE,
    (r"future|ahead|later|leak|causal|next token|right|answer", r"conv|layers?\b|pad|causal|see|leak|depend|attend"),
)
def convolution_sees_ahead(run: Run, wrong: bool) -> None:
    """A language model of convolutions with `padding=1` on both sides: each layer sees one word ahead, and the first of
    those is the answer. Judged where nothing comes after. The twin pads on the left only."""
    language = Language(run.draw.randrange(999))
    model = Convolutions(12, wrong)
    check = language.rows(256, 13, apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(check[:, :-1])[:, -1], check[:, -1])))

    def loss(m: nn.Module, rows: Tensor) -> Tensor:
        return F.cross_entropy(m(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    train(run, model, adam(model), lambda: language.rows(16, 24), loss, 120)


class Factors(nn.Module):
    """Ratings as products of unit vectors of users and of things."""

    def __init__(self, renewed: bool) -> None:
        super().__init__()
        self.users, self.things = nn.Embedding(30, 4), nn.Embedding(30, 4)
        self.scale, self.renewed = nn.Parameter(torch.ones(())), renewed

    def forward(self, pairs: Tensor) -> Tensor:
        parts = []
        for part, ids in ((self.users, pairs[:, 0]), (self.things, pairs[:, 1])):
            unit = F.normalize(part.weight, dim=1)
            if self.renewed:
                part.weight = nn.Parameter(unit)
                parts.append(part(ids))
            else:
                parts.append(F.embedding(ids, unit))
        return self.scale * (parts[0] * parts[1]).sum(1)


@fault(
    "r6-parameter-renewed-in-forward",
    ARCHITECTURE,
    (
        r"users|things|embedding|weight|parameter",
        r"optimizer|not (updated|trained|held|in)|never|replac|new (tensor|parameter|object)|renew|re.?creat|reassign|rebound|stale|no gradient|does not move|unchanged|other object",
    ),
)
def parameter_renewed_in_forward(run: Run, wrong: bool) -> None:
    """A factorisation normalises its tables in forward() with `table.weight = nn.Parameter(normalize(table.weight))`:
    the optimizer goes on holding the first tensors, and the tables never learn. The twin normalises a copy for use."""
    own = apart(run.draw.randrange(999))
    users, things = (F.normalize(torch.randn(30, 3, generator=own), dim=1) for _ in range(2))

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        pairs = torch.randint(0, 30, (count, 2), generator=own)
        return pairs, 3 * (users[pairs[:, 0]] * things[pairs[:, 1]]).sum(1) + 0.1 * torch.randn(count, generator=own)

    model = Factors(wrong)
    number_outcome(run, model, rows(512, apart(1)))
    data = endless(loader(*rows(600), size=32))
    train(run, model, adam(model, 3e-2), lambda: next(data), regress, 150)


@fault(
    "r6-dropout-on-the-answer",
    ARCHITECTURE,
    (
        r"drop",
        r"output|last|answer|prediction|after the (head|final)|final|logit|end|head|result",
    ),
)
def dropout_on_the_answer(run: Run, wrong: bool) -> None:
    """Lightning. A regression whose dropout stands after the last layer: half of the answers are zero, the rest doubled,
    and the best that can be learned is half of the target. The twin has it before the last layer."""
    seed = run.draw.randrange(999)
    parts: list[nn.Module] = [nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()]
    ends: list[nn.Module] = [nn.Linear(64, 1), nn.Dropout(0.4)]
    net = nn.Sequential(*parts, *(ends if wrong else ends[::-1]))
    number_outcome(run, net, table(512, seed, apart(1)))
    fit(run, lit(net, regress, lambda m: adam(m, 3e-3)), loader(*table(640, seed)), 160)


# numerics and precision


@fault(
    "r6-integer-division",
    NUMERICS,
    (
        r"input|feature|column|data|batch",
        r"integer|floor|divi|zero|constant|same (value|in)|never (change|var)|no (information|variation)|does not var|truncat|dead",
    ),
)
def integer_division(run: Run, wrong: bool) -> None:
    """The time of day is minutes `// 1440` with whole numbers, which is 0 for every minute of the day; the rest of the
    row cannot replace it. The twin divides with `/`."""
    own = apart(run.draw.randrange(999))
    weights = torch.randn(3, generator=own)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        minutes, more = torch.randint(0, 1440, (count,), generator=own), torch.randn(count, 3, generator=own)
        y = 2 * torch.sin(6.283 * minutes / 1440) + more @ weights + 0.1 * torch.randn(count, generator=own)
        time = (minutes // 1440).float() if wrong else minutes / 1440
        return torch.cat([time[:, None], more], 1), y

    model = mlp(4, 48, 48, 1)
    number_outcome(run, model, rows(512, apart(1)))
    data = endless(loader(*rows(640)))
    train(run, model, adam(model, 8e-3), lambda: next(data), regress, 160)


class Prices(nn.Module):
    """A regression whose last bias begins at the mean price."""

    def __init__(self, half: bool) -> None:
        super().__init__()
        self.body, self.last, self.half = mlp(6, 48, 48, act=nn.Tanh), nn.Linear(48, 1), half
        nn.init.constant_(self.last.bias, 300.0)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            h = self.body(x)
            if self.half:
                return self.last(h).float()
        out: Tensor = self.last(h.float())
        return out


@fault(
    "r6-answers-in-bfloat16",
    NUMERICS,
    (
        r"bfloat16|bf16|half|precision|autocast|round|resol",
        r"output|last|answer|prediction|head|target|step|300|magnitude|offset|large",
    ),
)
def answers_in_bfloat16(run: Run, wrong: bool) -> None:
    """Autocast over the whole network, whose answers lie at 300 and a little off: bfloat16 counts there in steps of
    2. The twin computes the last layer in float32."""
    seed = run.draw.randrange(999)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, y = table(count, seed, own)
        return x, 300 + y / 2

    model = Prices(wrong)
    number_outcome(run, model, rows(512, apart(1)))
    data = endless(loader(*rows(640)))
    train(run, model, adam(model), lambda: next(data), regress, 150)


@fault(
    "r6-where-does-not-save",
    NUMERICS,
    (
        r"nan|finite|inf",
        r"where|log|entropy|zero|0|mask|gradient|backward",
    ),
)
def where_does_not_save(run: Run, wrong: bool) -> None:
    """A policy with forbidden actions, imitated with an entropy bonus, `where(p > 0, p * log(p), 0)`: the value is right,
    but the gradient of log(0) goes through the branch that was not taken and is NaN. The twin clamps before the log."""
    seed = run.draw.randrange(999)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        x, z = table(count, seed, own)
        allowed = torch.rand(count, 5, generator=own) < 0.7
        y = (z + 2.5).clamp(0, 4.9).long()
        allowed[torch.arange(count), y] = True
        return x, allowed, y

    model = mlp(6, 48, 5)
    cx, ca, cy = rows(512, apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(cx).masked_fill(~ca, -torch.inf), cy)))
    data = endless(loader(*rows(512)))

    def loss(m: nn.Module, b: Any) -> Tensor:
        logits = m(b[0]).masked_fill(~b[1], -torch.inf)
        p = logits.softmax(1)
        term = torch.where(p > 0, p * p.log(), 0.0) if wrong else p * p.clamp_min(1e-9).log()
        return F.cross_entropy(logits, b[2]) + 0.01 * term.sum(1).mean()

    train(run, model, adam(model), lambda: next(data), loss, 120)
