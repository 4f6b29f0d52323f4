"""Round 23a, mistakes in what goes in: dates, shared transforms, hashed words, columns, lengths."""

from typing import Any

import numpy as np
import pandas as pd
import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    class_outcome,
    cnn,
    examples,
    fit,
    hf_trainer,
    lit,
    loader,
    number_outcome,
    pictures,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, classify, prepared, regress
from benchmarks.robustness.loops.round7b_parts import moved
from benchmarks.robustness.loops.round7b_tools import adam, taught
from benchmarks.robustness.loops.round23a_parts import (
    Album,
    Bag,
    Columns,
    Commands,
    Residual,
    bucketed,
    bulletins,
    calendar,
    hires,
    orders,
    scaled,
    slip,
    station,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r23a-third-of-april-in-march")
def third_of_april_in_march(run: Run, wrong: bool) -> None:
    """accelerate, a residual network that says from the date and the weather how many bicycles are hired. Dates are
    written day first and read by pandas with month first, which takes the other order only where there is no such
    month: of more than a third of the rows day and month are exchanged. The twin reads them by their format. Judged on
    other days."""
    seed = run.draw.randrange(999)
    net = Residual(16)
    written, weather, y = hires(384, seed, apart(1))
    number_outcome(run, net, (calendar(pd.to_datetime(written, format="%d/%m/%Y"), weather), y))
    written, weather, y = hires(640, seed)
    if wrong:
        dates = pd.to_datetime(written, format="mixed", dayfirst=False)
    else:
        dates = pd.to_datetime(written, format="%d/%m/%Y")
    prepared(run, net, adam(net, 3e-3), loader(calendar(dates, weather), y), regress, 3)


@slip("r23a-one-album-two-transforms")
def one_album_two_transforms(run: Run, wrong: bool) -> None:
    """Lightning, a CNN. Rows to learn from and rows to check with are two parts of one set, and each part's transform
    is set on the set behind it, which is the same: the second, which is none, replaces the first, and no picture is
    moved. The twin has a set for each part. Judged on other pictures, moved."""
    seed = run.draw.randrange(999)
    net = cnn()
    x, y = pictures(384, seed, own=apart(1))
    own = apart(2)
    class_outcome(run, net, (torch.stack([moved(picture, own) for picture in x]), y))
    x, y = pictures(320, seed)
    album = Album(x, y)
    order = torch.randperm(len(x)).tolist()
    ours = torch.utils.data.Subset(album, order[:240])
    theirs = torch.utils.data.Subset(album if wrong else Album(x, y), order[240:])
    ours.dataset.transform = moved  # type: ignore[attr-defined]
    theirs.dataset.transform = None  # type: ignore[attr-defined]
    batches = torch.utils.data.DataLoader(ours, 16, shuffle=True)
    fit(run, lit(net, classify, lambda m: adam(m, 5e-3)), batches, 150)


@slip("r23a-buckets-of-another-process")
def buckets_of_another_process(run: Run, wrong: bool) -> None:
    """accelerate, a bag of hashed words that was trained on an earlier month's texts and goes on with a new month's.
    Words come into buckets by Python's own hash of strings, whose salt each process draws anew: the vectors that were
    loaded belong to other words. The twin's hash is the same in each process. Judged on other texts of the new month,
    hashed as in this process."""
    seed = run.draw.randrange(999)
    net = Bag()
    salts = ("first process ", "second process ") if wrong else ("", "")
    texts, y = bulletins(640, seed, 1)
    rows = bucketed(texts, salts[0])

    def earlier() -> tuple[Tensor, Tensor]:
        drawn = torch.randint(0, len(y), (32,))
        return rows[drawn], y[drawn]

    taught(net, earlier, classify, 120)
    texts, target = bulletins(384, seed, 2, apart(1))
    class_outcome(run, net, (bucketed(texts, salts[1]), target))
    texts, target = bulletins(240, seed, 2)
    prepared(run, net, adam(net, 3e-3), loader(bucketed(texts, salts[1]), target), classify, 4)


@slip("r23a-second-file-by-the-alphabet")
def second_file_by_the_alphabet(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a transformer over the columns of a table. Of two files the second has the same columns in
    the order of the alphabet, and the two are put together as arrays: in its rows each reading stands in another's
    column. The twin puts them together by the columns' names. Judged on other rows in the first file's order."""
    seed = run.draw.randrange(999)
    net = Columns(6)
    first, first_y = station(384, seed)
    second, second_y = station(256, seed)
    second = second[sorted(second.columns)]
    y = torch.cat([first_y, second_y])
    both = np.concatenate([first.to_numpy(), second.to_numpy()]) if wrong else pd.concat([first, second]).to_numpy()
    mean, deviation = both.mean(0), both.std(0)
    check, check_y = station(384, seed, apart(1))
    number_outcome(run, net, (scaled(check.to_numpy(), mean, deviation), check_y), log=True)
    told = WithLoss(net, lambda found, y: F.mse_loss(found.flatten(), y))
    hf_trainer(run, told, examples(x=scaled(both, mean, deviation), labels=y), 120).train()


@slip("r23a-lengths-sorted-alone")
def lengths_sorted_alone(run: Run, wrong: bool) -> None:
    """Plain loop, a GRU over packed rows, for which lengths must fall. The lengths of a batch are sorted and its rows
    stay as they are: a row is read with another's length, cut short or with padding behind it. The twin sorts rows,
    lengths and labels. Judged on other rows with their lengths."""
    seed = run.draw.randrange(999)
    net = Commands()

    def fallen(ids: Tensor, sizes: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        order = sizes.argsort(descending=True)
        return ids[order], sizes[order], y[order]

    class_outcome(run, net, fallen(*orders(384, seed, apart(1))))
    ids, sizes, y = orders(640, seed)

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        drawn = torch.randint(0, len(ids), (32,))
        rows = (ids[drawn], sizes[drawn], y[drawn])
        rows = (rows[0], rows[1].sort(descending=True).values, rows[2]) if wrong else fallen(*rows)
        return rows[0][:, : int(rows[1].max())], rows[1], rows[2]

    def loss(m: nn.Module, batch: Any) -> Tensor:
        ids, sizes, y = batch
        return F.cross_entropy(m(ids, sizes), y)

    train(run, net, adam(net, 1e-2), batch, loss, 150)
