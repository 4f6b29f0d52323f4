"""Blind round 7, part a, mistakes: numerics and precision."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_faults_tuning import fitted
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
    next_loss,
    number_outcome,
    outcome,
    table,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7a_tools import Layer, Pairs, Stack, adam, causal
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
        r"inf|nan|finite|log(arithm)? of (zero|0)|log\(0",
        r"input|silen|\blog\b|logarithm|batch|data|feature|frame|spectr",
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
        r"nan|finite|inf|0/0|(division|divi\w+) by.{0,40}(zero|0\b|deviation)",
        r"advantage|reward|\bstd\b|deviation|spread|divi|0/0|group|normali|batch|input",
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
        scores = model(tokens).log_softmax(-1)
        answers = (scores - torch.empty(12, 6, 6).exponential_().log()).argmax(-1)
        rewards = (answers == right[tokens]).float() + 0.2 * (answers == (right[tokens] + 1) % 6).float()
        advantages = (rewards - rewards.mean(0)) / (rewards.std(0) if wrong else rewards.std(0) + 1e-4)
        optimizer.zero_grad()
        loss = -(advantages * scores.expand(12, 6, 6).gather(-1, answers[..., None])[..., 0]).mean()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (tokens, answers, advantages))
        run.note(loss)


@fault(
    "r7-angle-by-arccos",
    NUMERICS,
    (
        r"nan|finite|inf",
        r"acos|arc.?cos|\bangle|gradient|backward|derivative|beyond one|above one|greater than (one|1)|domain",
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
    "r7-spread-of-a-single-row",
    NUMERICS,
    (
        r"nan|finite|inf|0/0|one row|single row",
        r"\bstd\b|deviation|spread|single|one row|1 row|last batch|size (of )?(1|one)|varian|unbiased|0/0|degrees|divi",
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


@fault(
    "r7-rounded-before-the-loss",
    NUMERICS,
    (
        r"gradient|round|loss|output|prediction",
        r"zero|vanish|round|no gradient|not differentiable|non.?differentiable|integer|whole number|step function|discret",
    ),
)
def rounded_before_the_loss(run: Run, wrong: bool) -> None:
    """accelerate. Ratings are whole numbers, and the network's answer is rounded before the squared error: the gradient
    of rounding is zero everywhere. The twin rounds in use only."""
    seed = run.draw.randrange(999)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, y = table(count, seed, own)
        return x, (y + 3).clamp(1, 5).round()

    model = mlp(6, 48, 1)
    number_outcome(run, model, rows(512, apart(1)))

    def loss(m: nn.Module, b: Any) -> Tensor:
        answer = m(b[0]).flatten()
        return F.mse_loss(answer.round() if wrong else answer, b[1])

    prepared(run, model, adam(model), loader(*rows(512)), loss, 4)


class Rounded(nn.Module):
    """A linear layer whose weights are rounded to fifteen steps in the forward pass; the gradient goes straight through."""

    def __init__(self, linear: nn.Linear, dim: int | None) -> None:
        super().__init__()
        self.weight, self.bias, self.dim = linear.weight, linear.bias, dim

    def forward(self, x: Tensor) -> Tensor:
        size = self.weight.detach().abs()
        step = (size.max() if self.dim is None else size.amax(self.dim, keepdim=True)) / 7
        rounded = self.weight + ((self.weight / step).round() * step - self.weight).detach()
        return F.linear(x, rounded, self.bias)


@fault(
    "r7-one-scale-for-all-columns",
    NUMERICS,
    (
        r"\bround|quanti|scale|outlier|four.bit|4.bit",
        r"outlier|one (scale|column|channel)|per.?tensor|whole (matrix|tensor)|column|channel|largest weight|zero|dominat",
    ),
)
def one_scale_for_all_columns(run: Run, wrong: bool) -> None:
    """A language model is tuned with its MLPs rounded to four bits. As in large models, one column is twenty times as
    large as the rest, behind a small gain; the step is taken from the matrix's largest weight, and all other columns
    round to zero. The twin has a step for each column."""
    language = Pairs(run.draw.randrange(999))
    model = Stack(6, [Layer(32, 2, 0.25, causal()) for _ in range(2)])
    fitted(model, lambda: language.rows(24, 20), next_loss, 160)
    with torch.no_grad():
        for layer in model.layers:
            up = layer.feed[0]  # type: ignore[index]
            for gain in (layer.norm2.weight, layer.norm2.bias):  # type: ignore[union-attr]
                gain[5] /= 20
            up.weight[:, 5] *= 20
            layer.feed[0] = Rounded(up, None if wrong else 0)  # type: ignore[operator,index]
    language_outcome(run, model, language)
    train(run, model, adam(model, 1e-3), lambda: language.rows(24, 20), next_loss, 40)
