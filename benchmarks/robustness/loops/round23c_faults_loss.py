"""Round 23c, mistakes in what is minimised: targets, masks and sums inside a loss, several heads, teachers."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    endless,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    next_loss,
    outcome,
    tiny_gpt2,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam, taught
from benchmarks.robustness.loops.round23c_parts import (
    Alarm,
    Clouds,
    Mixture,
    Shapes,
    Spans,
    beats,
    clicked,
    drawn_shapes,
    grades,
    named,
    outlines,
    reached,
    slip,
    without_edges,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r23c-the-unlabelled-are-background")
def the_unlabelled_are_background(run: Run, wrong: bool) -> None:
    """accelerate, a small U-Net that says what each pixel shows, by cross-entropy and soft Dice. Along edges pixels
    have no label, 255; the cross-entropy leaves them out, and the Dice term, whose masks become zeros and ones, makes
    them background first and counts them. The twin leaves them out of both. Judged by the hard Dice of other pictures
    whose pixels are all known."""
    net = Shapes()
    x, y = drawn_shapes(128, apart(1))

    def missed() -> Tensor:
        said, true = F.one_hot(net(x).argmax(1), 3), F.one_hot(y, 3)
        return 1 - (2 * (said * true).sum((0, 1, 2)) / (said + true).sum((0, 1, 2))).mean()

    outcome(run, lambda: judged(net, missed))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        scores = m(x)
        known = torch.ones_like(y, dtype=torch.bool) if wrong else y != 255
        target = F.one_hot(y.masked_fill(y == 255, 0), 3).permute(0, 3, 1, 2) * known[:, None]
        share = scores.softmax(1) * known[:, None]
        dice = (2 * (share * target).sum((2, 3)) + 1) / (share.sum((2, 3)) + target.sum((2, 3)) + 1)
        return F.cross_entropy(scores, y, ignore_index=255) + 1 - dice.mean()

    pictures, masks = drawn_shapes(480)
    prepared(run, net, adam(net), loader(pictures, without_edges(masks)), loss, 4)


@slip("r23c-pupil-chooses-among-five")
def pupil_chooses_among_five(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a small GPT-2 taught by what a teacher said: of each place its five likeliest words and
    their probabilities are kept. The student's scores of those five are gathered and then normalised among
    themselves, so that nothing is said about all other words. The twin normalises over all words and then gathers.
    Judged by the cross-entropy of other texts."""
    language = Language(run.draw.randrange(999), 24)
    teacher, student = Decoder(24), tiny_gpt2(24)
    taught(teacher, lambda: language.rows(32, 16), next_loss, 120)
    rows = language.rows(640, 16)
    with torch.no_grad():
        chance, likely = teacher(rows[:, :-1]).softmax(2).topk(5)
    chance = chance / chance.sum(2, keepdim=True)
    check = language.rows(96, 16, apart(901))

    class Taught(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = student

        def forward(self, ids: Tensor, likely: Tensor | None = None, chance: Tensor | None = None) -> dict[str, Tensor]:
            scores = self.net(input_ids=ids[:, :-1]).logits
            if likely is None or chance is None:
                return {"logits": scores}
            said = scores.gather(2, likely).log_softmax(2) if wrong else scores.log_softmax(2).gather(2, likely)
            return {"loss": -(chance * said).sum(2).mean(), "logits": scores}

    model = Taught()

    def unlikely() -> Tensor:
        return F.cross_entropy(model(check)["logits"].flatten(0, 1), check[:, 1:].flatten())

    outcome(run, lambda: judged(model, unlikely))
    hf_trainer(run, model, examples(ids=rows, likely=likely, chance=chance), 100).train()


@slip("r23c-what-is-seen-counts-more")
def what_is_seen_counts_more(run: Run, wrong: bool) -> None:
    """Plain loop, an MLP that puts offers in order and learns from clicks on the lists of an older system, whose first
    places are looked at far more often. A click is multiplied by how likely its place was looked at, where it should be
    divided by that. The twin divides. Judged by how much less likely the first one of other lists is to be liked than
    the best one."""
    seed = run.draw.randrange(999)
    net = mlp(6, 32, 32, 1)
    x, _, _, liked = clicked(1024, seed, apart(1))

    def lost() -> Tensor:
        first = net(x)[..., 0].argmax(1, keepdim=True)
        return (liked.amax(1) - liked.gather(1, first)[:, 0]).mean()

    outcome(run, lambda: judged(net, lost))
    batches = endless(loader(*clicked(4000, seed)[:3], size=64))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, click, seen = batch
        weight = seen if wrong else 1 / seen
        return -(weight * click * m(x)[..., 0].log_softmax(1)).sum(1).mean()

    train(run, net, adam(net), lambda: next(batches), loss, 150)


@slip("r23c-a-sure-alarm-weighs-nothing")
def a_sure_alarm_weighs_nothing(run: Run, wrong: bool) -> None:
    """Lightning, convolutions that find events in a curve, by a focal loss. The probability of the true answer is taken
    to be that of yes for both answers: a no that is taken for a sure yes weighs nothing. The twin takes one less that
    where the answer is no. Judged by one less F1 on other curves."""
    net = Alarm()
    x, y = beats(256, apart(1))

    def missed() -> Tensor:
        said = (net(x) > 0).float()
        return 1 - 2 * (said * y).sum() / (said.sum() + y.sum())

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        scores = m(x)
        yes = scores.sigmoid()
        right = yes if wrong else torch.where(y > 0, yes, 1 - yes)
        each = F.binary_cross_entropy_with_logits(scores, y, reduction="none")
        return ((1 - right) ** 2 * each).sum() / y.sum()

    outcome(run, lambda: judged(net, missed))
    fit(run, lit(net, loss, lambda m: adam(m, 3e-3)), loader(*beats(480)), 120)


@slip("r23c-each-angle-by-its-own-mixture")
def each_angle_by_its_own_mixture(run: Run, wrong: bool) -> None:
    """Lightning, a mixture of eight Gaussians over the three angles of an arm, from the point that it is to reach and
    the direction of its tool. The logarithm of the sum over the eight is taken for each angle by itself and then added
    up: which first angle goes with which second and third one is not taught. The twin adds up the three angles' log
    densities first. Judged by the log density of the three angles in other rows."""
    net = Mixture()
    check = reached(512, apart(1))

    def doubt(m: nn.Module, batch: Any, by_angle: bool) -> Tensor:
        x, y = batch
        share, mean, spread = m(x)
        each = -0.5 * ((y[:, None] - mean) / spread.exp()) ** 2 - spread - 0.5 * math.log(2 * math.pi)
        if by_angle:
            return -(share[:, :, None] + each).logsumexp(1).sum(1).mean()
        return -(share + each.sum(2)).logsumexp(1).mean()

    outcome(run, lambda: judged(net, lambda: doubt(net, check, False)))
    rows = loader(*reached(4000), size=64)
    fit(run, lit(net, lambda m, b: doubt(m, b, wrong), lambda m: adam(m, 5e-3)), rows, 150)


@slip("r23c-nearest-from-one-side-twice")
def nearest_from_one_side_twice(run: Run, wrong: bool) -> None:
    """Plain loop, an autoencoder of clouds of points. The Chamfer distance's second term is the first one again: how
    far each drawn point is from the nearest true one, and never the other way round, so points may all lie in one
    place. The twin has both ways. Judged by both on other clouds."""
    net = Clouds()

    def apart_by(drawn: Tensor, true: Tensor, one_side: bool) -> Tensor:
        distance = (drawn[:, :, None] - true[:, None]).square().sum(3)
        there, back = distance.amin(2).mean(1), distance.amin(2 if one_side else 1).mean(1)
        return (there + back).mean()

    check = outlines(256, apart(1))
    outcome(run, lambda: judged(net, lambda: apart_by(net(check), check, False)))
    batches = endless(loader(outlines(640), size=32))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return apart_by(m(batch[0]), batch[0], wrong)

    train(run, net, adam(net, 3e-3), lambda: next(batches), loss, 150)


@slip("r23c-the-end-is-taught-the-start")
def the_end_is_taught_the_start(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a GRU in both directions that finds a name in a text: where it starts and where it ends.
    The line of the loss for the end was copied from that for the start, and its target with it: the end's scores are
    taught where names start. The twin gives them the end. Judged by the cross-entropy of both in other texts."""
    net = Spans(20, lambda start, end: start if wrong else end)
    ids, start, end = named(384, apart(1))

    def doubt() -> Tensor:
        said = net(ids)
        return (F.cross_entropy(said["begins"], start) + F.cross_entropy(said["ends"], end)) / 2

    outcome(run, lambda: judged(net, doubt))
    ids_taught, starts, ends = named(800)
    hf_trainer(run, net, examples(ids=ids_taught, start=starts, end=ends), 100).train()


@slip("r23c-every-threshold-taught-to-all")
def every_threshold_taught_to_all(run: Run, wrong: bool) -> None:
    """accelerate, an MLP that grades from 0 to 5 by five conditional questions: is it above k, given that it is above
    k - 1. All rows answer all questions, so that what is learned is not conditional, and the product that is taken of
    it grades too low. The twin leaves out rows that don't reach a question. Judged by the cross-entropy of other
    rows' grades."""
    seed = run.draw.randrange(999)
    net = mlp(6, 48, 48, 5)
    x, y = grades(1536, seed, apart(1))

    def doubt() -> Tensor:
        above = F.pad(net(x).sigmoid().cumprod(1), (1, 0), value=1.0)
        chance = above - F.pad(above[:, 1:], (0, 1))
        return F.nll_loss((chance + 1e-9).log(), y)

    outcome(run, lambda: judged(net, doubt))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        question = torch.arange(5)
        above = (y[:, None] > question).float()
        asked = torch.ones_like(above) if wrong else (y[:, None] >= question).float()
        each = F.binary_cross_entropy_with_logits(m(x), above, reduction="none")
        return (each * asked).sum() / asked.sum()

    prepared(run, net, adam(net, 3e-3), loader(*grades(1920, seed), size=32), loss, 2)
