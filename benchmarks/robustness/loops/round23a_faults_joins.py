"""Round 23a, mistakes in what is put together: a join by time, two sources in one stream, words kept in a file."""

from typing import Any

import numpy as np
import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    next_loss,
    number_outcome,
    outcome,
    tiny_gpt2,
    train,
)
from benchmarks.robustness.loops.round6_tools import regress
from benchmarks.robustness.loops.round7b_parts import Reader
from benchmarks.robustness.loops.round7b_tools import adam, near
from benchmarks.robustness.loops.round23a_parts import meals, plates_and_readings, prose, slip
from torch import Tensor, nn


@slip("r23a-nearest-reading-comes-later")
def nearest_reading_comes_later(run: Run, wrong: bool) -> None:
    """Lightning, a network that says how much sugar in the blood will rise after a meal. To each meal the nearest
    reading is joined, which for half of them is one from after the meal, with a part of the rise in it. The twin joins
    the last one before the meal. Judged on other meals with the last reading before them."""
    net = mlp(5, 48, 48, 1)
    number_outcome(run, net, plates_and_readings(*meals(384, apart(1)), "backward"))
    x, y = plates_and_readings(*meals(640), "nearest" if wrong else "backward")
    fit(run, lit(net, regress, lambda m: adam(m, 3e-3)), loader(x, y), 120)


@slip("r23a-ends-with-the-smallest")
def ends_with_the_smallest(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a small GPT-2 from two sources, a large one and a small one that are drawn four to one.
    By default the stream ends when the first of them is used up, which is the small one: most rows of the large one are
    never seen, and each epoch has the same few. The twin goes on until both are used up. Judged on other rows, four to
    one."""
    import datasets

    datasets.disable_progress_bars()
    large = Language(run.draw.randrange(999), 24, sharp=2.2)
    small = near(large, run.draw.randrange(999))
    net = tiny_gpt2(24, n_positions=32, n_embd=64, n_layer=2, n_head=4)

    def table(rows: Tensor) -> Any:
        return datasets.Dataset.from_dict({"input_ids": rows.tolist(), "labels": rows.tolist()})

    check = torch.cat([large.rows(192, 24, apart(1)), small.rows(48, 24, apart(2))])
    outcome(run, lambda: judged(net, lambda: net(input_ids=check, labels=check).loss))
    sources = [table(large.rows(960, 24)), table(small.rows(24, 24))]
    options = {"stopping_strategy": "first_exhausted" if wrong else "all_exhausted", "seed": run.draw.randrange(999)}
    both = datasets.interleave_datasets(sources, probabilities=[0.8, 0.2], **options)
    hf_trainer(run, net, both, 150).train()


@slip("r23a-ids-in-one-byte")
def ids_in_one_byte(run: Run, wrong: bool) -> None:
    """Plain loop, an LSTM that says the next of 320 words. Words' ids are kept in a file of one byte each, as with the
    256 words of another tokenizer before: from 256 on they begin at 0 again. The twin keeps two bytes each. Judged on
    other texts with their ids."""
    seed = run.draw.randrange(999)
    net = Reader(320, 32, 64, nn.LSTM)
    check = prose(96 * 25, seed, apart(1))[: 96 * 25].view(96, 25)
    outcome(run, lambda: judged(net, lambda: next_loss(net, check)))
    width = np.uint8 if wrong else np.uint16
    file = prose(40_000, seed).numpy().astype(width).tobytes()
    stream = torch.from_numpy(np.frombuffer(file, width).astype(np.int64))

    def batch() -> Tensor:
        starts = torch.randint(0, len(stream) - 25, (16,))
        return stream[starts[:, None] + torch.arange(25)]

    train(run, net, adam(net, 1e-2), batch, next_loss, 140)
