"""Round 24b, mistakes in a model: what is wired to what, norms, places, masks, shapes, weights at the start."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    class_outcome,
    endless,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, classify, prepared
from benchmarks.robustness.loops.round7b_parts import Patches, spots
from benchmarks.robustness.loops.round7b_tools import adam, taught
from benchmarks.robustness.loops.round24b_parts import (
    Atoms,
    BothWays,
    Causal,
    EachPlace,
    FromTheLast,
    Mixture,
    Remembering,
    Steered,
    Weighed,
    cued,
    either_way,
    letters,
    molecules,
    one_graph,
    rings,
    slip,
    slopes,
    tagged,
    walks,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r24b-one-network-for-all-elements")
def one_network_for_all_elements(run: Run, wrong: bool) -> None:
    """Plain loop, a potential energy as a sum over atoms, with a network for each element. The networks are made by
    dict.fromkeys, which has one value for all keys: carbon, hydrogen and oxygen are one network. The twin makes three.
    Judged by the energies of other molecules."""
    seed = run.draw.randrange(999)
    nets = dict.fromkeys("HCO", network()) if wrong else {kind: network() for kind in "HCO"}
    net = Atoms(nets)
    places, elements, energy = molecules(384, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(places, elements), energy) / energy.var()))
    batches = endless(loader(*molecules(800, seed), size=32))
    train(run, net, adam(net), lambda: next(batches), lambda m, b: F.mse_loss(m(b[0], b[1]), b[2]), 150)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 1))


@slip("r24b-second-reader-left-reversed")
def second_reader_left_reversed(run: Run, wrong: bool) -> None:
    """accelerate, a tagger of two GRUs by hand, one of which reads from the right. Its states are joined to the other's
    as they came out, from right to left: each place has the state of its mirror image. The twin turns them back. Judged
    by the cross-entropy of other rows' tags."""
    seed = run.draw.randrange(999)
    net = BothWays(12, 4, turned_back=not wrong)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(m(batch[0]).flatten(0, 1), batch[1].flatten())

    x, y = tagged(256, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: F.cross_entropy(net(x).flatten(0, 1), y.flatten())))
    prepared(run, net, adam(net, 8e-3), loader(*tagged(640, seed), size=32), loss, 6)


@slip("r24b-triangle-from-the-upper-left")
def triangle_from_the_upper_left(run: Run, wrong: bool) -> None:
    """Plain loop, a language model that reads streams piece by piece and looks at the piece before as well. The mask is
    that of is_causal, whose triangle begins in the upper left corner although there are more keys than queries: a word
    sees the oldest places of the memory and nothing later, not even itself. The twin's triangle ends in the lower right
    corner. Judged on other streams."""
    language = Language(run.draw.randrange(999), 12, sharp=1.8)
    net = Remembering(12, 10, from_the_corner=wrong)

    def read(rows: Tensor, at: int, memory: Tensor | None) -> tuple[Tensor, Tensor]:
        logits, memory = net(rows[:, at : at + 10], memory)
        return F.cross_entropy(logits.flatten(0, 1), rows[:, at + 1 : at + 11].flatten()), memory

    def measure() -> Tensor:
        losses, memory = [], None
        for at in range(0, 60, 10):
            value, memory = read(check, at, memory)
            losses.append(value)
        return torch.stack(losses).mean()

    check = language.rows(64, 61, apart(901))
    outcome(run, lambda: judged(net, measure))
    optimizer = adam(net)
    doctor = run.watch(net, optimizer)
    for _ in range(22):
        rows, memory = language.rows(16, 61), None
        for at in range(0, 60, 10):
            optimizer.zero_grad()
            value, memory = read(rows, at, memory)
            value.backward()
            optimizer.step()
            doctor.step(value, rows[:, at : at + 11])
            run.note(value)


@slip("r24b-five-that-stay-one")
def five_that_stay_one(run: Run, wrong: bool) -> None:
    """Lightning, a mixture density network with five normal components. Its head begins with all weights and biases at
    nought, for a quiet start: the five components are the same, have the same gradients and stay the same. The twin's
    head begins as PyTorch draws it. Judged by the negative log likelihood of other rows."""
    net = Mixture(3)
    if wrong:
        nn.init.zeros_(net.head.weight)
        nn.init.zeros_(net.head.bias)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        share, mean, spread = m(batch[0])
        apart_by = (batch[1][:, None] - mean) * (-spread).exp()
        return -(share - spread - 0.5 * apart_by.square() - 0.5 * math.log(2 * math.pi)).logsumexp(1).mean()

    check = either_way(384, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    fit(run, lit(net, loss, lambda m: adam(m, 1e-2)), loader(*either_way(640), size=32), 120)


@slip("r24b-last-values-of-all-rows")
def last_values_of_all_rows(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a GRU that says by how much the next price differs from the last. The change is a column
    and the last price is not, so that their sum is a square: each row's change on each row's last price, and the mean
    square error takes that as well. The twin adds a column. Judged by forecasts of one series at a time."""
    net = FromTheLast(as_column=not wrong)
    model = WithLoss(net, lambda forecast, price: (forecast - price).square().mean())
    x, y = walks(200, apart(1))

    def one_by_one() -> Tensor:
        return (torch.cat([net(row) for row in x.split(1)]) - y).square().mean() / y.var()

    outcome(run, lambda: judged(net, one_by_one))
    rows, prices = walks(640)
    hf_trainer(run, model, examples(x=rows, labels=prices), 120, lr_scheduler_type="constant").train()


@slip("r24b-places-stretched-by-view")
def places_stretched_by_view(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a vision transformer tuned for larger pictures than it was made for. The table of places
    is stretched bilinearly, but what interpolates wants channels first, and the table is only given that shape: rows of
    numbers of different places become maps. The twin moves the channels. Judged on other large pictures."""
    side, more = 4, 7
    old = Patches(side)
    rows, kinds = spots(400, side)
    batches = endless(loader(rows, kinds))
    taught(old, lambda: next(batches), classify, 240, 4e-3)
    net = Patches(more)
    grid = old.places.data[:, 1:]
    width = grid.shape[2]
    grid = grid.reshape(1, width, side, side) if wrong else grid.reshape(1, side, side, width).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, size=(more, more), mode="bilinear", align_corners=False)
    places = torch.cat([old.places.data[:, :1], grid.flatten(2).transpose(1, 2)], 1)
    net.load_state_dict(old.state_dict() | {"places": places})
    class_outcome(run, net, spots(384, more, apart(1)))
    x, y = spots(240, more)
    model = WithLoss(net, F.cross_entropy)
    hf_trainer(run, model, examples(x=x, labels=y), 60, learning_rate=1e-3, weight_decay=0.01).train()


@slip("r24b-ones-in-the-third-quarter")
def ones_in_the_third_quarter(run: Run, wrong: bool) -> None:
    """accelerate, an LSTM that must remember the first word of a row. The biases of its forget gates are to begin at
    two, but the quarter is that of another library's order of gates: the candidates get them. The twin fills the second
    quarter. Judged by the cross-entropy on other rows."""
    core, width = nn.LSTM(16, 32, batch_first=True), 32
    quarter = 2 if wrong else 1
    core.bias_ih_l0.data[quarter * width : (quarter + 1) * width] = 2.0
    net = LastState(nn.Embedding(12, 16), core, nn.Linear(width, 4))
    class_outcome(run, net, cued(384, apart(1)))
    prepared(run, net, adam(net), loader(*cued(640), size=32), classify, 5)


class LastState(nn.Module):
    """A vector for each word, a recurrent network, a head on its last output."""

    def __init__(self, words: nn.Module, core: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.words, self.core, self.head = words, core, head

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(self.words(ids))[0][:, -1])
        return out


@slip("r24b-shares-among-the-same-sender")
def shares_among_the_same_sender(run: Run, wrong: bool) -> None:
    """Plain loop, attention on a graph. The weights of messages are made to sum to one over all edges that leave the
    same node, not over those that lead to the same node. The twin takes the end of edges. Judged by the numbers of
    other graphs' nodes."""
    net = Weighed(4, of=0 if wrong else 1)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        nodes, edges, y = batch
        return F.mse_loss(m(nodes.flatten(0, 1), one_graph(edges, 12)), y.flatten())

    check = letters(96, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, check) / check[2].var()))
    batches = endless(loader(*letters(320)))
    train(run, net, adam(net), lambda: next(batches), loss, 120)


@slip("r24b-norm-over-what-is-to-come")
def norm_over_what_is_to_come(run: Run, wrong: bool) -> None:
    """Lightning, causal convolutions that forecast at each place of a series. The norms behind them are group norms of
    one group, whose mean and spread are those of all places, also of the later ones. The twin's norms are of each place
    alone. Judged as it is used: by the forecast from each beginning of other series, with nothing behind it."""
    net = Causal((lambda width: nn.GroupNorm(1, width)) if wrong else EachPlace)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0][:, :-1]), batch[0][:, 1:])

    check = slopes(256, apart(1))

    def from_beginnings() -> Tensor:
        errors = [(net(check[:, :size])[:, -1] - check[:, size]).square().mean() for size in range(4, 33)]
        return torch.stack(errors).mean()

    outcome(run, lambda: judged(net, from_beginnings))
    fit(run, lit(net, loss, lambda m: adam(m, 5e-3)), loader(slopes(480)), 120)


@slip("r24b-scaled-by-nought-not-one")
def scaled_by_nought_not_one(run: Run, wrong: bool) -> None:
    """Plain loop, a small denoiser steered by its condition as diffusion transformers are. Scales that begin at nought
    multiply the norms' outputs themselves, without the one that is to be added: all parts see nought at the start. The
    twin adds one. Judged by the error of predicted noise on other rows."""
    seed = run.draw.randrange(999)
    net = Steered(6, 4, one_more=0.0 if wrong else 1.0)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, kind, level, noise = batch
        turn = 0.5 * math.pi * level[:, None]
        return F.mse_loss(m(turn.cos() * x + turn.sin() * noise, level, kind), noise)

    def noisy(x: Tensor, kind: Tensor, own: torch.Generator | None = None) -> list[Tensor]:
        return [x, kind, torch.rand(len(x), generator=own), torch.randn(x.shape, generator=own)]

    check = noisy(*rings(768, seed, apart(1)), apart(2))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    batches = endless(loader(*rings(640, seed), size=32))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    train(run, net, optimizer, lambda: noisy(*next(batches)), loss, 120)
