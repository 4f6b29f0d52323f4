"""Round 26a, mistakes in what is taught: boxes, chords, times of sounds, places of answers, tables of tags."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
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
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, classify, prepared
from benchmarks.robustness.loops.round10a_tools import adamw
from benchmarks.robustness.loops.round26a_parts import (
    Chords,
    Finder,
    Frames,
    chords,
    collages,
    detector,
    framed,
    notices,
    overlap,
    slip,
    sounding,
    speech,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r26a-width-for-a-corner")
def width_for_a_corner(run: Run, wrong: bool) -> None:
    """Plain loop, a CNN that says where a thing's corners are. The file has left, top, width and height; they are
    taught as left, top, right and bottom. The twin adds width and height to left and top. Judged by how little boxes
    overlap with the true ones in other pictures."""
    net = detector()

    def corners(box: Tensor) -> Tensor:
        return torch.cat([box[:, :2], box[:, :2] + box[:, 2:]], 1)

    x, box = framed(384, apart(1))
    truth = corners(box)
    outcome(run, lambda: judged(net, lambda: 1 - overlap(net(x), truth)))
    pictures, boxes = framed(480)
    batches = endless(loader(pictures, boxes if wrong else corners(boxes)))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.smooth_l1_loss(m(batch[0]), batch[1], beta=0.1)

    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    train(run, net, optimizer, lambda: next(batches), loss, 150, clip=1.0)


@slip("r26a-names-stay-when-transposed")
def names_stay_when_transposed(run: Run, wrong: bool) -> None:
    """Lightning, attention over frames of a chord, whose root is to be said. Half of the rows are transposed by one or
    two semitones up or down, and the root's name stays what it was. The twin transposes the root too. Judged by the
    cross-entropy of other chords as they are."""
    net = Chords()

    def collated(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        out = []
        for x, root in rows:
            by = int(torch.randint(1, 3, ())) * (1 if torch.rand(()) < 0.5 else -1)
            if torch.rand(()) < 0.5:
                x = x.roll(by, 1)
                if not wrong:
                    root = (root + by) % 12
            out.append((x, root))
        return torch.stack([x for x, _ in out]), torch.stack([root for _, root in out])

    class_outcome(run, net, chords(384, apart(1)))
    fit(run, lit(net, classify, adamw(5e-3)), loader(*chords(640), collate_fn=collated), 120)


@slip("r26a-a-hundred-frames-a-second")
def a_hundred_frames_a_second(run: Run, wrong: bool) -> None:
    """accelerate, a GRU in both directions that says which sound each frame is of. Frames come each 12.5 milliseconds,
    and labels are laid on them as if they came each ten: the further into a row, the later the sound is taught. The
    twin has eighty frames a second. Judged by the cross-entropy of other frames with the right times."""
    seed = run.draw.randrange(999)
    net = Frames()

    def labelled(count: int, rate: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, begins, which = speech(count, seed, own)
        return x, sounding(begins, which, torch.arange(40) / rate)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(m(batch[0]).flatten(0, 1), batch[1].flatten())

    check = labelled(192, 80, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    optimizer = torch.optim.RMSprop(net.parameters(), lr=2e-3)
    prepared(run, net, optimizer, loader(*labelled(480, 100 if wrong else 80)), loss, 3)


@slip("r26a-found-where-it-first-occurs")
def found_where_it_first_occurs(run: Run, wrong: bool) -> None:
    """transformers' Trainer, convolutions that find where in a text the answer to a question stands. The file has the
    answer and where it stands; the place is looked up in the text once more, and what is found is the first place where
    the same name stands, in any connection. The twin takes the file's place. Judged by the cross-entropy of the places
    in other texts."""
    net = WithLoss(Finder(23), F.cross_entropy)

    def first_found(ids: Tensor, place: Tensor) -> Tensor:
        text = ids[:, 1:]
        answer = text.gather(1, place[:, None])
        return torch.tensor([row.index(name[0]) for row, name in zip(text.tolist(), answer.tolist(), strict=True)])

    class_outcome(run, net.net, notices(384, apart(1)))
    ids, place = notices(960)
    data = examples(x=ids, labels=first_found(ids, place) if wrong else place)
    hf_trainer(run, net, data, 120, per_device_train_batch_size=32).train()


@slip("r26a-one-tag-a-picture")
def one_tag_a_picture(run: Run, wrong: bool) -> None:
    """Plain loop, a CNN that says which of six patterns lie in a picture. The table has a line for each picture and
    tag; it is made a dictionary by picture, in which the last line of a picture is left, and its other tags are taught
    to be absent. The twin keeps all lines. Judged by the loss of other pictures with all their tags."""
    seed = run.draw.randrange(999)
    net = cnn(classes=6, norm=False)

    def told(lines: list[tuple[int, int]], count: int, by_picture: bool) -> Tensor:
        out = torch.zeros(count, 6)
        for picture, tag in dict(lines).items() if by_picture else lines:
            out[picture, tag] = 1
        return out

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(m(batch[0]), batch[1])

    x, lines = collages(384, seed, apart(1))
    check = x, told(lines, len(x), False)
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    pictures, table = collages(640, seed)
    batches = endless(loader(pictures, told(table, len(pictures), wrong)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=0.05)
    train(run, net, optimizer, lambda: next(batches), loss, 120)
