"""Round 21h, honest and odd: labels that say less than one would like, or that the data give themselves."""

from collections.abc import Callable
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    apart,
    class_outcome,
    cnn,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    outcome,
    pictures,
    tiny_bert,
    train,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_tools import adam
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r21h-only-shares-of-each-bag")
def only_shares_of_each_bag(run: Run) -> None:
    """Lightning, pictures in bags of sixteen, of which only the share of each class is known, as it is where voters or
    patients must not be named (Quadrianto et al. 2009, Ardehaly and Culotta 2017). The mean of a bag's probabilities
    is compared with the shares, so that the loss does not fall below the shares' own entropy, and no single picture
    has a label that it could be right about."""
    seed = run.draw.randrange(999)
    own = apart(seed)
    x, y = pictures(1200, seed, own=own)
    shares = torch.distributions.Dirichlet(torch.full((4,), 0.6)).sample((120,))
    drawn = torch.multinomial(shares, 16, replacement=True, generator=own)
    of_class = [torch.nonzero(y == k).flatten() for k in range(4)]
    picked = torch.stack(
        [of_class[k][torch.randint(len(of_class[k]), (1,), generator=own)][0] for k in drawn.flatten().tolist()]
    )
    bags = x[picked].view(120, 16, 1, 8, 8)
    known = F.one_hot(drawn, 4).float().mean(1)
    net = cnn()
    class_outcome(run, net, pictures(256, seed, own=apart(1)))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        inside, wanted = batch
        mean = model(inside.flatten(0, 1)).softmax(1).view(len(inside), 16, 4).mean(1)
        return -(wanted * mean.clamp_min(1e-6).log()).sum(1).mean()

    fit(run, lit(net, loss, lambda m: torch.optim.Adam(m.parameters(), lr=5e-3)), loader(bags, known, size=8), 120)


def votes(x: Tensor, mask: Tensor) -> Tensor:
    """(rows, 6) what each of six rules says of a text, -1 where it says nothing."""
    out = []
    for group in range(3):
        here = (x >= 1 + 5 * group) & (x < 6 + 5 * group) & mask
        often = here.sum(1) >= 4
        begins = here[:, 0] & (x[:, 0] < 4 + 5 * group)
        out += [torch.where(fires, group, -1) for fires in (often, begins)]
    return torch.stack(out, 1)


def belief(said: Tensor) -> Tensor:
    """(rows, 3) what the rules' votes together make of each row, with accuracies by expectation-maximisation."""
    right = torch.full((6,), 0.7)
    speaks = said >= 0
    for _ in range(10):
        scores = torch.zeros(len(said), 3)
        for k in range(3):
            agree = said == k
            each = torch.where(agree, right.log(), ((1 - right) / 2).log())
            scores[:, k] = (each * speaks).sum(1)
        chance = scores.softmax(1)
        hit = (chance.gather(1, said.clamp_min(0)) * speaks).sum(0)
        right = (hit / speaks.sum(0).clamp_min(1)).clamp(0.05, 0.95)
    return chance


class Noisy(nn.Module):
    """A BERT that is taught by probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.bert = tiny_bert()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.bert(input_ids=input_ids, attention_mask=attention_mask).logits
        return {"logits": logits} | ({} if labels is None else {"loss": F.cross_entropy(logits, labels)})


@honest("r21h-six-rules-and-no-label")
def six_rules_and_no_label(run: Run) -> None:
    """Trainer, a BERT names the kind of a text and has seen no label: six rules of thumb vote or abstain, a model of
    their votes says how far each is to be believed, and its probabilities are what is taught (data programming, Ratner
    et al. 2016, Snorkel). Texts of which no rule says anything are left out, so that the rest is no fair sample."""
    x, mask, _ = documents(900, apart(run.draw.randrange(999)))
    said = votes(x, mask)
    told = (said >= 0).any(1)
    model = Noisy()
    new, there, truth = documents(300, apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(new, there.long())["logits"], truth)))
    rows = examples(input_ids=x[told], attention_mask=mask[told].long(), labels=belief(said)[told])
    hf_trainer(run, model, rows, 120, learning_rate=2e-3, lr_scheduler_type="constant").train()


@honest("r21h-only-the-sum-is-known")
def only_the_sum_is_known(run: Run) -> None:
    """Plain loop, two pictures of digits and their sum, the addition of DeepProbLog (Manhaeve et al. 2018). No digit is
    ever labelled: one network reads both pictures, and the chance of the sum is added up over all pairs of digits that
    have it. Only for the smallest and the largest sum is a pair named by it."""
    seed = run.draw.randrange(999)
    x, y = pictures(1500, seed, own=apart(2))
    model = cnn()
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    totals = torch.arange(4)[:, None] + torch.arange(4)

    def pairs() -> tuple[Tensor, Tensor, Tensor]:
        a, b = torch.randint(0, len(x), (2, 48))
        return x[a], x[b], y[a] + y[b]

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        first, second, total = batch
        p, q = model(torch.cat([first, second])).softmax(1).chunk(2)
        both = p[:, :, None] * q[:, None]
        fits = totals[None] == total[:, None, None]
        return -(both * fits).sum((1, 2)).clamp_min(1e-8).log().mean()

    train(run, model, adam(model, 3e-3), pairs, loss, 130)


def relaxing(count: int, own: torch.Generator) -> Tensor:
    """(count, 40, 1) readings of something that is knocked up now and then and comes slowly down."""
    level = torch.zeros(count)
    out = []
    for _ in range(60):
        knock = (torch.rand(count, generator=own) < 0.12) * (0.5 + torch.rand(count, generator=own))
        level = 0.85 * level + knock
        out.append(level + 0.1 * torch.randn(count, generator=own))
    return torch.stack(out[20:], 1)[..., None]


class Listens(nn.Module):
    """A GRU over readings and their changes; the mean of its states is read."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.head = nn.GRU(2, 24, batch_first=True), nn.Linear(24, 2)

    def forward(self, x: Tensor) -> Tensor:
        changes = F.pad(x[:, 1:] - x[:, :-1], (0, 0, 1, 0))
        out: Tensor = self.head(self.core(torch.cat([x, 2 * changes], 2))[0].mean(1))
        return out


@honest("r21h-forwards-or-backwards-in-time")
def forwards_or_backwards_in_time(run: Run) -> None:
    """accelerate's loop, a GRU is shown readings in their order or from the end and says which (the arrow of time, Wei
    et al. 2018, Misra et al. 2016). All labels are made by the script: each row stands in the data twice, with the same
    numbers and with opposite labels."""

    def both(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
        rows = relaxing(count, own)
        return torch.cat([rows, rows.flip(1)]), torch.arange(2).repeat_interleave(count)

    net = Listens()
    class_outcome(run, net, both(150, apart(1)))
    data = loader(*both(400, apart(run.draw.randrange(999))), size=32)
    prepared(run, net, adam(net, 8e-3), data, classify, 5)


COLOURS = 5


def scenes(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """(count, 1, 12, 12) grey pictures of ground under a sky with one thing, and the colour of each pixel: one for the
    sky, one for the ground, and one for each of three kinds of things, which cover few pixels."""
    grey, colour = torch.zeros(count, 12, 12), torch.zeros(count, 12, 12, dtype=torch.long)
    for i in range(count):
        ground, kind, row, column = (int(torch.randint(a, b, (1,), generator=own)) for a, b in HOW_FAR)
        grey[i], grey[i, ground:], colour[i, ground:] = 0.8, 0.3, 1
        at = (slice(row, row + 3), slice(column, column + 3))
        form = FORMS[kind]
        grey[i][at] = torch.where(form, 0.55, grey[i][at])
        colour[i][at] = torch.where(form, 2 + kind, colour[i][at])
    return grey[:, None] + 0.05 * torch.randn(count, 1, 12, 12, generator=own), colour


HOW_FAR = ((5, 9), (0, 3), (1, 8), (1, 8))

FORMS = torch.tensor(
    [[[1, 1, 1], [1, 1, 1], [1, 1, 1]], [[0, 1, 0], [1, 1, 1], [0, 1, 0]], [[1, 0, 1], [0, 1, 0], [1, 0, 1]]]
).bool()


def colourist(weights: Tensor) -> tuple[nn.Module, Callable[[nn.Module, Any], Tensor]]:
    net = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        nn.Conv2d(16, COLOURS, 1),
    )
    return (
        net,
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], weights, reduction="sum") / (batch[1].numel()),
    )


@honest("r21h-rare-colours-count-more")
def rare_colours_count_more(run: Run) -> None:
    """accelerate's loop, colours of pixels from grey pictures as classes (Zhang et al. 2016). The labels are the data's
    own colours; each pixel weighs by one over a mixture of how frequent its colour is and of evenness, normalised so
    that the mean weight of a pixel is one, and the weighed sum is divided by the number of pixels."""
    x, y = scenes(320, apart(run.draw.randrange(999)))
    share = torch.bincount(y.flatten(), minlength=COLOURS) / y.numel()
    weights = 1 / (0.5 * share + 0.5 / COLOURS)
    net, loss = colourist(weights / (share * weights).sum())
    check = scenes(96, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    prepared(run, net, adam(net, 5e-3), loader(x, y, size=16), loss, 5)
