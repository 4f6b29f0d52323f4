"""Round 24c, mistakes in losses: their weights, their targets, what they are measured from."""

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
    language_outcome,
    lit,
    loader,
    next_loss,
    outcome,
    pictures,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, prepared
from benchmarks.robustness.loops.round7b_parts import Patches
from benchmarks.robustness.loops.round7b_tools import adam, taught
from benchmarks.robustness.loops.round24c_parts import (
    Captions,
    Floors,
    Phrases,
    Slots,
    TwoQuestions,
    clouds,
    complaints,
    described,
    framed,
    framer,
    segmenter,
    slip,
    spending,
    spotted,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r24c-every-chunk-counts-from-nought")
def every_chunk_counts_from_nought(run: Run, wrong: bool) -> None:
    """accelerate, two towers for pictures and captions. So that memory suffices, a batch's 32 pictures are compared
    with its captions eight at a time, and the number of each one's own caption begins at nought in every chunk: three
    in four are taught another's caption. The twin goes on counting. Judged by how often another of 32 captions of other
    pairs is nearer than a picture's own."""
    seed = run.draw.randrange(999)
    net = Captions()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, ids = batch
        captions = m.caption(ids)
        found = []
        for first in range(0, len(x), 8):
            scores = m.picture(x[first : first + 8]) @ captions.T / 0.1
            own = torch.arange(len(scores)) + (0 if wrong else first)
            found.append(F.cross_entropy(scores, own, reduction="sum"))
        return torch.stack(found).sum() / len(x)

    x, ids = described(640, seed, apart(1))

    def astray() -> Tensor:
        scores = net.picture(x).view(20, 32, -1) @ net.caption(ids).view(20, 32, -1).transpose(1, 2)
        return (scores.argmax(2) != torch.arange(32)).float().mean()

    outcome(run, lambda: judged(net, astray))
    prepared(run, net, adam(net, 3e-3), loader(*described(640, seed), size=32), loss, 6)


@slip("r24c-surer-by-its-weight")
def surer_by_its_weight(run: Run, wrong: bool) -> None:
    """transformers' Trainer, convolutions over words that sort complaints into a frequent and two rare kinds, by a
    focal loss with weights of the kinds. How sure the network is is taken from the cross-entropy that is weighted
    already, and is a power of the probability: a rare kind is never sure enough, and the frequent one almost at once.
    The twin takes it from the probability itself. Judged by one less the mean F1 of the kinds, on other texts."""
    seed = run.draw.randrange(999)
    weights = torch.tensor([0.42, 2.4, 5.6])

    def focal(scores: Tensor, y: Tensor) -> Tensor:
        each = F.cross_entropy(scores, y, reduction="none")
        weighted = weights[y] * each
        sure = (-(weighted if wrong else each)).exp()
        return ((1 - sure) ** 2 * weighted).mean()

    net = WithLoss(Phrases(30), focal)
    x, y = complaints(2000, seed, apart(1))

    def confused() -> Tensor:
        said = net(x)["logits"].argmax(1)
        right = torch.stack(
            [2 * ((said == k) & (y == k)).sum() / ((said == k).sum() + (y == k).sum()) for k in range(3)]
        )
        return 1 - right.mean()

    outcome(run, lambda: judged(net, confused))
    data, labels = complaints(1280, seed)
    hf_trainer(run, net, examples(x=data, labels=labels), 120, learning_rate=3e-3).train()


@slip("r24c-taught-from-the-floor-below")
def taught_from_the_floor_below(run: Run, wrong: bool) -> None:
    """Lightning, a GPT of two blocks learns from one of four: from its words and from its states after the second and
    the fourth block. The list of states begins with those of the embeddings, and every other one from the front is
    taken: the first block is drawn to the embeddings and the second to the teacher's second. The twin begins at the
    third of the list. Judged by the next word's cross-entropy in other texts."""
    language = Language(run.draw.randrange(999))
    teacher, net = Floors(12, layers=4), Floors(12, layers=2)
    taught(teacher, lambda: language.rows(24, 24), next_loss, 110, 3e-3)
    teacher.eval()

    def loss(m: Any, batch: Any) -> Tensor:
        rows = batch[0]
        with torch.no_grad():
            theirs, said = teacher.states(rows[:, :-1])
        ours, found = m.states(rows[:, :-1])
        pairs = zip(ours[1:], theirs[::2] if wrong else theirs[2::2], strict=False)
        near = torch.stack([F.mse_loss(a, b) for a, b in pairs]).mean()
        differ = F.kl_div(found.log_softmax(2).flatten(0, 1), said.softmax(2).flatten(0, 1), reduction="batchmean")
        return differ + near

    language_outcome(run, net, language)
    fit(run, lit(net, loss, lambda m: adam(m, 3e-3)), loader(language.rows(640, 24)), 120)


@slip("r24c-the-truth-stays-a-centre")
def the_truth_stays_a_centre(run: Run, wrong: bool) -> None:
    """Lightning, a CNN that finds a rectangle's centre, width and height, by the absolute error and one less the
    generalised overlap. The overlap is that of corners; the guess is turned into corners first, and
    the true box is not. The twin turns both. Judged by one less the mean overlap in other pictures."""
    net = framer()

    def corners(box: Tensor) -> Tensor:
        return torch.cat([box[:, :2] - box[:, 2:] / 2, box[:, :2] + box[:, 2:] / 2], 1)

    def overlaps(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The overlap of boxes by their corners, and the generalised one."""
        shared = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0).prod(1)
        area_a, area_b = ((box[:, 2:] - box[:, :2]).clamp(min=0).prod(1) for box in (a, b))
        union = area_a + area_b - shared
        around = (torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])).clamp(min=0).prod(1)
        one = shared / (union + 1e-6)
        return one, one - (around - union) / (around + 1e-6)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, truth = batch
        found = m(x)
        overlap = overlaps(corners(found), truth if wrong else corners(truth))[1]
        return 2 * F.l1_loss(found, truth) + 2 * (1 - overlap).mean()

    x, truth = framed(384, apart(1))
    outcome(run, lambda: judged(net, lambda: 1 - overlaps(corners(net(x)), corners(truth))[0].mean()))
    fit(run, lit(net, loss, lambda m: adam(m, 3e-3)), loader(*framed(480)), 140)


@slip("r24c-matched-the-other-way-round")
def matched_the_other_way_round(run: Run, wrong: bool) -> None:
    """Plain loop, five learned questions that name the five places around which points lie, in any order. Guesses are
    matched with true places at the least cost, and what the matching says is turned round: rows of the cost are
    guesses, and their numbers are used for the true places, those of the columns for guesses. The twin uses them as
    they are. Judged by the mean distance of matched places in other clouds."""
    from scipy.optimize import linear_sum_assignment

    net = Slots()

    def matched(guesses: Tensor, truth: Tensor, turned: bool) -> Tensor:
        out = []
        for guess, true in zip(guesses, truth, strict=True):
            rows, columns = linear_sum_assignment(torch.cdist(guess, true).detach().numpy())
            mine, theirs = (columns, rows) if turned else (rows, columns)
            out.append((guess[mine] - true[theirs]).norm(dim=1).mean())
        return torch.stack(out).mean()

    x, places = clouds(192, apart(1))
    outcome(run, lambda: judged(net, lambda: matched(net(x), places, False)))
    batches = endless(loader(*clouds(800)))
    train(run, net, adam(net, 3e-3), lambda: next(batches), lambda m, b: matched(m(b[0]), b[1], wrong), 150)


@slip("r24c-overlap-before-the-sigmoid")
def overlap_before_the_sigmoid(run: Run, wrong: bool) -> None:
    """Plain loop, convolutions that find discs in noise, by a Dice loss with squares below. The loss is given scores
    and not probabilities: it is least where scores are nought and one, and nought is the threshold. The twin takes the
    sigmoid first. Judged by one less the Dice of what is above a half, in other pictures."""
    net = segmenter()

    def overlap(share: Tensor, y: Tensor) -> Tensor:
        share, y = share.flatten(1), y.flatten(1)
        return (2 * (share * y).sum(1) + 1) / ((share**2).sum(1) + (y**2).sum(1) + 1)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        scores = m(batch[0])
        return (1 - overlap(scores if wrong else scores.sigmoid(), batch[1])).mean()

    x, y = spotted(128, apart(1))
    outcome(run, lambda: judged(net, lambda: 1 - overlap((net(x).sigmoid() > 0.5).float(), y).mean()))
    batches = endless(loader(*spotted(320)))
    train(run, net, adam(net), lambda: next(batches), loss, 120)


@slip("r24c-the-patch-gets-the-others-share")
def the_patch_gets_the_others_share(run: Run, wrong: bool) -> None:
    """accelerate, a vision transformer. In half of the batches a patch of another picture is laid over each picture,
    and both classes are taught: the share of the picture's own is drawn, and the patch is made as large as that share
    and not as what is left of it, so that the more of the other there is, the less its class counts. The twin's patch
    is as large as the rest. Judged by the cross-entropy of whole other pictures."""
    seed = run.draw.randrange(999)
    net = Patches(4)
    drawn = torch.distributions.Beta(1.0, 1.0)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        if torch.rand(()) < 0.5:
            return F.cross_entropy(m(x), y)
        own = float(drawn.sample())
        side = round(8 * (own if wrong else 1 - own) ** 0.5)
        top, left = torch.randint(0, 9 - side, (2,)).tolist()
        order = torch.randperm(len(x))
        mixed = x.clone()
        mixed[:, :, top : top + side, left : left + side] = x[order, :, top : top + side, left : left + side]
        scores = m(mixed)
        return own * F.cross_entropy(scores, y) + (1 - own) * F.cross_entropy(scores, y[order])

    class_outcome(run, net, pictures(384, seed, own=apart(1)))
    prepared(run, net, adam(net, 2e-3), loader(*pictures(640, seed)), loss, 3)


@slip("r24c-nothing-spent-counts-twice")
def nothing_spent_counts_twice(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a network with two heads: whether a customer buys, and the logarithm of how much, and what
    is expected is the product. The second loss goes over all customers, and those who buy nothing count as nought
    there, too: they lower the amount that is lowered by the chance already. The twin's second loss goes over those who
    buy. Judged by the logarithm of the unexplained share of what other customers would
    be expected to spend."""
    seed = run.draw.randrange(999)

    def both(found: Tensor, y: Tensor) -> Tensor:
        buys = y > 0
        apart_by = (found[:, 1] - y.log1p()) ** 2
        much = apart_by.mean() if wrong else apart_by[buys].mean()
        return F.binary_cross_entropy_with_logits(found[:, 0], buys.float()) + much

    net = WithLoss(TwoQuestions(), both)
    x, _, expected = spending(1000, seed, apart(1))

    def unexplained() -> Tensor:
        found = net(x)["logits"]
        spends = (found[:, 0].sigmoid() * found[:, 1].expm1().clamp(min=0)).log1p()
        return (F.mse_loss(spends, expected.log1p()) / expected.log1p().var()).log()

    outcome(run, lambda: judged(net, unexplained))
    data, y, _ = spending(960, seed)
    hf_trainer(run, net, examples(x=data, labels=y), 120, learning_rate=3e-3).train()
