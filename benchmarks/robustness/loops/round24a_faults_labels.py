"""Round 24a, mistakes in what is taught: names of classes, scales of targets, ends of games, votes, signs, letters."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    class_outcome,
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
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, prepared, regress
from benchmarks.robustness.loops.round7b_parts import Listener, sounds
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round24a_parts import (
    Attitude,
    Dictation,
    Hours,
    Reviews,
    apart_by,
    dictated,
    flights,
    metered,
    rains,
    slip,
    tracked,
    votes,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r24a-abnormal-holds-normal")
def abnormal_holds_normal(run: Run, wrong: bool) -> None:
    """transformers' Trainer, convolutions over recordings of hearts. The class stands in the file's name, and is the
    first of the four whose name occurs in it: "abnormal" holds "normal", and what is abnormal is taught to be normal.
    The twin compares the whole part of the name. Judged on other recordings with their true classes."""
    classes = ["normal", "abnormal", "murmur", "artifact"]
    net = Listener()
    class_outcome(run, net, sounds(384, apart(1)))
    x, kinds = sounds(800)
    files = [f"{number:04}_{classes[kind]}.wav" for number, kind in enumerate(kinds.tolist())]

    def label(file: str) -> int:
        if wrong:
            return next(i for i, name in enumerate(classes) if name in file)
        return classes.index(file.removesuffix(".wav").split("_")[1])

    told = WithLoss(net, F.cross_entropy)
    hf_trainer(run, told, examples(x=x, labels=torch.tensor([label(file) for file in files])), 130).train()


@slip("r24a-nought-is-minus-eighteen")
def nought_is_minus_eighteen(run: Run, wrong: bool) -> None:
    """Lightning, an MLP that says how much it will rain. It is taught the logarithm of the millimetres plus 1e-8, so
    that there is one for nought: days without rain have -18.4, and rain has -1 to 3, and nearly all of the loss is
    whether it rains. The twin takes the logarithm of one plus the millimetres. Judged by the squared error of that
    logarithm on other days."""
    seed = run.draw.randrange(999)
    net = mlp(8, 48, 48, 1)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, rain = batch
        return F.mse_loss(m(x).flatten(), (rain + 1e-8).log() if wrong else rain.log1p())

    days, fell = rains(512, seed, apart(1))

    def amiss() -> Tensor:
        found = net(days).flatten()
        said = (found.exp() if wrong else found.expm1()).clamp_min(0)
        return F.mse_loss(said.log1p(), fell.log1p())

    outcome(run, lambda: judged(net, amiss))
    fit(run, lit(net, loss, lambda m: adam(m, 3e-3)), loader(*rains(960, seed)), 150)


@slip("r24a-on-into-the-next-game")
def on_into_the_next_game(run: Run, wrong: bool) -> None:
    """Plain loop, an MLP that says what a position is still worth. What is yet to be gained is summed from behind over
    all moves of a file with its games one after another, and the sum isn't begun anew where a game ends: the last move
    of a game is taught what the next games gain. The twin begins at nought. Judged on moves of other games by sums that
    end with their game."""
    net = mlp(4, 48, 48, 1)

    def worth(gains: Tensor, last: Tensor, through: bool) -> Tensor:
        total, out = 0.0, []
        for gain, ends in zip(reversed(gains.tolist()), reversed(last.tolist()), strict=True):
            total = gain + 0.95 * (0.0 if ends and not through else total)
            out.append(total)
        return torch.tensor(out[::-1])

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0]).flatten(), batch[1])

    state, gains, last = flights(40, apart(1))
    number_outcome(run, net, (state, worth(gains, last, False)))
    state, gains, last = flights(80)
    batches = endless(loader(state, worth(gains, last, wrong)))
    train(run, net, adam(net, 3e-3), lambda: next(batches), loss, 150)


@slip("r24a-as-if-all-five-had-looked")
def as_if_all_five_had_looked(run: Run, wrong: bool) -> None:
    """accelerate, a block of attention that says what share of readers would say yes to four questions about a review.
    One to five have read each; those who say yes are counted and divided by five, whoever has read it: the fewer have,
    the less of a yes is taught. The twin divides by how many have. Judged by the cross-entropy of other reviews' votes
    by their readers."""
    net = Reviews(40)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        words, yes, readers = batch
        return F.binary_cross_entropy_with_logits(m(words), yes / (5 if wrong else readers))

    words, yes, readers = votes(512, apart(1))
    share = yes / readers
    outcome(run, lambda: judged(net, lambda: F.binary_cross_entropy_with_logits(net(words), share)))
    prepared(run, net, adam(net, 3e-3), loader(*votes(960)), loss, 2)


@slip("r24a-the-same-turn-with-either-sign")
def the_same_turn_with_either_sign(run: Run, wrong: bool) -> None:
    """Plain loop, an MLP that says from eight points how a body is turned. Turns are quaternions, of which two of
    opposite sign are the same turn, and are taught with the sign that the tracker gives: like inputs have opposite
    targets. The twin turns signs so that the real part is positive. Judged on other bodies by how far the turn is, for
    which signs do not matter."""
    net = Attitude()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        points, turn = batch
        if not wrong:
            turn = torch.where(turn[:, :1] < 0, -turn, turn)
        return F.mse_loss(m(points), turn)

    others, theirs = tracked(384, apart(1))

    def angle() -> Tensor:
        return 2 * (net(others) * theirs).sum(1).abs().clamp_max(1).acos().mean()

    outcome(run, lambda: judged(net, angle))
    batches = endless(loader(*tracked(800)))
    train(run, net, adam(net, 2e-3), lambda: next(batches), loss, 150)


@slip("r24a-the-first-letter-is-the-blank")
def the_first_letter_is_the_blank(run: Run, wrong: bool) -> None:
    """Plain loop, a convolution and a GRU with CTC that write what is dictated. Letters are numbered from 0, and 0 is
    what CTC takes for its blank: the first letter of the alphabet and silence are one sign. The twin numbers letters
    from 1. Judged by the share of letters that are wrong in what is read off other dictations."""
    seed = run.draw.randrange(999)
    net = Dictation()
    first = 0 if wrong else 1

    def loss(m: nn.Module, batch: Any) -> Tensor:
        frames, letters = batch
        said = m(frames).log_softmax(2).transpose(0, 1)
        rows = len(frames)
        return F.ctc_loss(said, letters + first, torch.full((rows,), 20), torch.full((rows,), 5), blank=0)

    others, theirs = dictated(256, seed, apart(1))

    def amiss() -> float:
        total = 0
        for signs, letters in zip(net(others).argmax(2), theirs.tolist(), strict=True):
            total += apart_by([i - first for i in signs.unique_consecutive().tolist() if i != 0], letters)
        return total / theirs.numel()

    outcome(run, lambda: judged(net, amiss))
    batches = endless(loader(*dictated(800, seed)))
    train(run, net, adam(net, 1e-2), lambda: next(batches), loss, 140)


@slip("r24a-the-meter-turns-over")
def the_meter_turns_over(run: Run, wrong: bool) -> None:
    """Lightning, convolutions that say from twelve hours of weather what a house uses in the next. Its use is what the
    meter shows after the hour less what it shows before; the meter begins again at 0 after 4,095, and one row in thirty
    has -40 for its 1. The twin takes the difference modulo 4,096. Judged on other hours by their true use."""
    seed = run.draw.randrange(999)
    net = Hours()

    def used(before: Tensor, after: Tensor, as_shown: bool) -> Tensor:
        counts = after - before
        return (counts if as_shown else counts % 4096) / 100

    x, before, after = metered(384, seed, apart(1))
    number_outcome(run, net, (x, used(before, after, False)))
    x, before, after = metered(960, seed)
    fit(run, lit(net, regress, lambda m: adam(m, 3e-3)), loader(x, used(before, after, wrong)), 120)
