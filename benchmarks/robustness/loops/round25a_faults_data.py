"""Mistakes in what a network is shown: layout of a stream, units, readings, neighbours, edges, sampling of a signal."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    class_outcome,
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
    train,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared, regress
from benchmarks.robustness.loops.round7b_parts import Listener, Reader
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round25a_parts import (
    Columns,
    EdgeConvolutions,
    Links,
    accounts,
    acquaintances,
    clouds,
    engines,
    slip,
    turbines,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r25a-every-sixteenth-word")
def every_sixteenth_word(run: Run, wrong: bool) -> None:
    """Plain loop, an LSTM language model. One long text is laid out in sixteen rows that are read side by side; it is
    cut by a view into columns of sixteen words, so that in each row a word is followed by the one sixteen places on.
    The twin cuts it into sixteen long pieces. Judged by the cross-entropy of other texts."""
    language = Language(run.draw.randrange(999))
    net = Reader(12, core=nn.LSTM)
    language_outcome(run, net, language)
    text = language.rows(1, 16 * 480)[0]
    rows = text.view(-1, 16).T if wrong else text.view(16, -1)
    windows = endless([rows[:, start : start + 25] for start in range(0, 455, 24)])
    train(run, net, adam(net, 1e-2), lambda: next(windows), next_loss, 120)


@slip("r25a-sine-of-two-hundred-and-fifty")
def sine_of_two_hundred_and_fifty(run: Run, wrong: bool) -> None:
    """Lightning, a network that tells a turbine's power from the wind. The wind's direction is in degrees, and its sine
    and cosine are taken as if it were in radians: neighbouring directions lie far apart, and the circle is gone round
    57 times. The twin turns degrees into radians. Judged on other hours, prepared as those for training are."""

    def columns(degrees: Tensor, others: Tensor) -> Tensor:
        angle = degrees.float() if wrong else degrees.float().deg2rad()
        scaled = (others - torch.tensor([8.5, 10.0])) / torch.tensor([3.0, 8.0])
        return torch.cat([angle.sin()[:, None], angle.cos()[:, None], scaled], 1)

    net = mlp(4, 48, 48, 1, act=nn.SiLU)
    *check, power = turbines(384, apart(1))
    number_outcome(run, net, (columns(*check), power))
    *hours, power = turbines(640)
    fit(run, lit(net, regress, lambda m: adam(m, 5e-3)), loader(columns(*hours), power), 120)


@slip("r25a-one-thousand-is-one")
def one_thousand_is_one(run: Run, wrong: bool) -> None:
    """accelerate, a transformer over the columns of a table. Amounts were written with a point between thousands, as in
    1.250, and are read as decimal numbers: all from 1000 on become numbers between 1 and 1000. The twin takes the
    points out first. Judged on accounts whose amounts came as numbers."""
    seed = run.draw.randrange(999)
    net = Columns(6)

    def columns(amounts: Tensor, others: Tensor) -> Tensor:
        return torch.cat([amounts.clamp_min(1).log() - 6.9, others], 1)

    amounts, others, score = accounts(384, seed, apart(1))
    number_outcome(run, net, (columns(amounts, others), score))
    amounts, others, score = accounts(640, seed)
    written = [[f"{int(amount):,}".replace(",", ".") for amount in row] for row in amounts.tolist()]
    read = [[float(text if wrong else text.replace(".", "")) for text in row] for row in written]
    prepared(run, net, adam(net, 5e-3), loader(columns(torch.tensor(read), others), score), regress, 3)


@slip("r25a-neighbours-in-other-clouds")
def neighbours_in_other_clouds(run: Run, wrong: bool) -> None:
    """Lightning, edge convolutions over clouds of points of four shapes. A batch's points are put behind one another
    and each one's six nearest are looked for among all of them: most neighbours belong to other clouds. The twin looks
    within each cloud. Judged on other clouds, neighbours from the cloud itself."""

    def nearest(points: Tensor, within: bool) -> Tensor:
        flat = points.flatten(0, 1)
        apart_by = torch.cdist(flat, flat)
        if within:
            cloud = torch.arange(len(flat)) // points.shape[1]
            apart_by = apart_by.masked_fill(cloud[:, None] != cloud, torch.inf)
        return apart_by.fill_diagonal_(torch.inf).topk(6, largest=False).indices

    def collated(rows: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        points, y = (torch.stack(column) for column in zip(*rows, strict=True))
        return [points, nearest(points, within=not wrong), y]

    def loss(m: nn.Module, batch: Any) -> Tensor:
        points, near, y = batch
        return F.cross_entropy(m(points, near), y)

    net = EdgeConvolutions()
    points, y = clouds(128, apart(1))
    class_outcome(run, net, (points, nearest(points, within=True), y))
    fit(run, lit(net, loss, lambda m: adam(m, 5e-3)), loader(*clouds(480), collate_fn=collated), 120)


@slip("r25a-the-answer-is-in-the-graph")
def the_answer_is_in_the_graph(run: Run, wrong: bool) -> None:
    """Plain loop, a graph network that says who will know whom. The edges that are asked about stay among those along
    which nodes hear one another, so that whether two are joined can be read off the graph itself. The twin takes a
    batch's edges out of the graph. Judged on edges that were kept apart, which are not in the graph."""
    own = apart(run.draw.randrange(999))
    x, edges, strangers = acquaintances(own)
    net = Links()
    kept, known = edges[:, :160], edges[:, 160:]
    pairs = torch.cat([kept, strangers[:, :160]], 1)
    joined = torch.arange(320) < 160
    outcome(run, lambda: judged(net, lambda: F.binary_cross_entropy_with_logits(net(x, known, pairs), joined.float())))

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        order = torch.randperm(known.shape[1])
        no = strangers[:, torch.randint(160, strangers.shape[1], (128,))]
        there = known if wrong else known[:, order[128:]]
        return there, torch.cat([known[:, order[:128]], no], 1), (torch.arange(256) < 128).float()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        there, pairs, joined = batch
        return F.binary_cross_entropy_with_logits(m(x, there, pairs), joined)

    train(run, net, adam(net, 1e-2), batch, loss, 120)


@slip("r25a-every-fourth-reading")
def every_fourth_reading(run: Run, wrong: bool) -> None:
    """Plain loop, convolutions that tell four low tones of engines apart. Recordings are brought to a quarter of their
    rate by taking every fourth reading, without a filter before it: a whistle from far above comes down among the
    tones. The twin takes the mean of each four. Judged on other recordings, prepared as those for training are."""

    def quarter(x: Tensor) -> Tensor:
        return x[..., ::4] if wrong else F.avg_pool1d(x, 4)

    net = Listener()
    x, y = engines(384, apart(1))
    class_outcome(run, net, (quarter(x), y))
    x, y = engines(480)
    batches = endless(loader(quarter(x), y))
    train(run, net, adam(net, 5e-3), lambda: next(batches), classify, 120)
