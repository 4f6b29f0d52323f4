"""Round 27a, mistakes in what is taught: the places of boxes, rows without a mark, pairs, holes, tags."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    class_outcome,
    endless,
    fit,
    judged,
    lit,
    loader,
    number_outcome,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_parts import Listener, sounds
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round27a_parts import (
    Depth,
    Judge,
    Tagger,
    answers,
    entitled,
    finder,
    pages,
    rooms,
    slip,
    with_holes,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r27a-rows-counted-from-below")
def rows_counted_from_below(run: Run, wrong: bool) -> None:
    """Lightning, a CNN that finds the block of print on a page. Two in five boxes come from a tool that counts from the
    lower edge, as PDF does, and are taken as they are: where they say a block is, it is mirrored. The twin turns them
    to count from the upper edge like the others. Judged by other pages."""
    net = finder()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0]), batch[1])

    number_outcome(run, net, pages(384, apart(1)))
    x, boxes = pages(480)
    from_pdf = torch.rand(len(x)) < 0.4
    mirrored = torch.stack([boxes[:, 0], 1 - boxes[:, 1], boxes[:, 2], boxes[:, 3]], 1)
    stored = torch.where(from_pdf[:, None], mirrored, boxes)
    if not wrong:
        stored = torch.where(from_pdf[:, None] & (torch.arange(4) == 1), 1 - stored, stored)
    fit(run, lit(net, loss, lambda m: adam(m, 3e-3)), loader(x, stored), 140)


@slip("r27a-no-mark-is-the-first")
def no_mark_is_the_first(run: Run, wrong: bool) -> None:
    """accelerate, convolutions over recordings of four pitches. Marks stand in a table with a column for each pitch,
    and a third of the recordings have no mark yet; the largest column of a row of noughts is the first, and all of
    these are taught as the first pitch. The twin leaves them out. Judged by other recordings, all marked."""
    net = Listener()
    class_outcome(run, net, sounds(384, apart(1)))
    x, y = sounds(640)
    marks = F.one_hot(y, 4) * (torch.rand(640, 1) > 0.35)
    used = torch.ones(640, dtype=torch.bool) if wrong else marks.sum(1) > 0
    data = torch.utils.data.TensorDataset(x[used], marks[used].argmax(1))
    drawn = torch.utils.data.RandomSampler(data, replacement=True, num_samples=2240)
    prepared(run, net, adam(net), torch.utils.data.DataLoader(data, 16, sampler=drawn), classify, 1)


@slip("r27a-exchanged-and-the-verdict-kept")
def exchanged_and_the_verdict_kept(run: Run, wrong: bool) -> None:
    """Plain loop, a GRU that reads two answers and says whether the first is better. In four pairs of five it is, and
    so that the place tells nothing, half of the pairs are exchanged at random in each batch; the verdict stays as it
    was and is that of the other order. The twin turns the verdict, too. Judged by other pairs in either order."""
    net = Judge()

    def compared(count: int, share: float, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        better, worse = answers(count, own)
        first = torch.rand(count, generator=own) < share
        ours = first[:, None]
        return torch.where(ours, better, worse), torch.where(ours, worse, better), first.float()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(m(batch[0], batch[1]), batch[2])

    check = compared(384, 0.5, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    batches = endless(loader(*compared(960, 0.8), size=32))

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        first, second, verdict = next(batches)
        turned = torch.rand(len(first)) < 0.5
        a = torch.where(turned[:, None], second, first)
        b = torch.where(turned[:, None], first, second)
        return a, b, verdict if wrong else torch.where(turned, 1 - verdict, verdict)

    train(run, net, adam(net), batch, loss, 150)


@slip("r27a-holes-are-nought-away")
def holes_are_nought_away(run: Run, wrong: bool) -> None:
    """accelerate, a small U-Net that tells how far away each pixel is. Where the sensor got nothing back it says
    nought, and these pixels are taught as nought metres away. The twin leaves them out of the mean. Judged by other
    rooms whose distances are known everywhere."""
    net = Depth()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, far = batch
        each = (m(x) - far) ** 2
        return each.mean() if wrong else each[far > 0].mean()

    x, far = rooms(96, apart(1))
    number_outcome(run, net, (x, far))
    x, far = rooms(240)
    prepared(run, net, adam(net), loader(x, with_holes(far)), loss, 8)


@slip("r27a-word-left-out-tag-kept")
def word_left_out_tag_kept(run: Run, wrong: bool) -> None:
    """Plain loop, an LSTM that tags words. In training one word in seven is left out at random; of the tags as many as
    words are left are kept from the beginning, so that behind the first gap each word has the tag of one before it. The
    twin leaves out the tags of those words. Judged by other texts as they are."""
    seed = run.draw.randrange(999)
    net = Tagger()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(m(batch[0]).flatten(0, 1), batch[1].flatten(), ignore_index=-100)

    def padded(texts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        ids, tags = zip(*texts, strict=True)
        fill = nn.utils.rnn.pad_sequence
        return fill(list(ids), batch_first=True), fill(list(tags), batch_first=True, padding_value=-100)

    def thinned(words: Tensor, tags: Tensor) -> tuple[Tensor, Tensor]:
        stays = torch.rand(len(words)) > 1 / 7
        stays[0] = True
        return words[stays], tags[: int(stays.sum())] if wrong else tags[stays]

    check = padded(entitled(256, seed, apart(1)))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    texts = entitled(480, seed)

    def batch() -> tuple[Tensor, Tensor]:
        return padded([thinned(*texts[i]) for i in torch.randint(0, len(texts), (16,)).tolist()])

    train(run, net, adam(net), batch, loss, 140)
