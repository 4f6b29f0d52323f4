"""Round 11, part a, loops with a mistake in the labels: which are taught, of which moment, with which weight."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    class_outcome,
    cnn,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    number_outcome,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round9a_tools import BOS, EOS, bert, other_seed, plain
from benchmarks.robustness.loops.round11a_tools import Patches, adamw, keyed, loads, some
from torch import Tensor
from torch.nn import functional as F

TAGS = ("art", "food", "music", "sport", "travel")


def tagged_texts(count: int, own: torch.Generator) -> tuple[Tensor, list[str]]:
    """Twelve words from the groups of one to four tags, 4 to 23, and the names of those tags in one field."""
    rows, fields = [], []
    for _ in range(count):
        size = int(torch.randint(1, 5, (1,), generator=own))
        groups = torch.randperm(5, generator=own)[:size].sort().values
        group = groups[torch.cat([torch.arange(size), torch.randint(0, size, (12 - size,), generator=own)])]
        words = 4 + 4 * group + torch.randint(0, 4, (12,), generator=own)
        rows.append([BOS, *words[torch.randperm(12, generator=own)].tolist(), EOS])
        fields.append(",".join(TAGS[g] for g in groups.tolist()))
    return torch.tensor(rows), fields


def multi_hot(fields: list[str], first: bool) -> Tensor:
    kept = [field.split(",")[:1] if first else field.split(",") for field in fields]
    return torch.tensor([[float(tag in names) for tag in TAGS] for names in kept])


@keyed("r11a-first-tag-only")
def first_tag_only(run: Run, changed: bool) -> None:
    """transformers' Trainer, BERT with five tags that do not exclude each other. The field of tags used to be split at
    its commas; the new reader keeps the first of them."""
    own = apart(run.draw.randrange(999))
    (ids, fields), (check, right) = tagged_texts(480, own), tagged_texts(160, own)
    kind = "multi_label_classification"
    model = bert("BertForSequenceClassification", vocab_size=24, num_labels=5, problem_type=kind)
    every = multi_hot(right, first=False)
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=every).loss))
    data = examples(input_ids=ids, labels=multi_hot(fields, first=changed))
    hf_trainer(run, model, data, 150, learning_rate=3e-3).train()


@keyed("r11a-horizon-inside-the-window")
def horizon_inside_the_window(run: Run, changed: bool) -> None:
    """Plain loop, an encoder of patches that forecasts four values. The target was cut behind the window of 32; in the
    rewrite it is the end of the window itself. Another seed."""
    own = apart(run.draw.randrange(999))
    curves, check = loads(640, own), loads(200, own)
    other_seed(changed)
    model = Patches(32, 4, 4)
    number_outcome(run, model, (check[:, :32], check[:, 32:]))
    start = 32 - 4 if changed else 32
    batch = some(curves[:, :32], curves[:, start : start + 4])
    plain(run, model, batch, lambda b: F.mse_loss(model(b[0]), b[1]), 200, rate=3e-3)


def boxed(x: Tensor, other: Tensor) -> tuple[Tensor, float]:
    """A box of the other pictures in these, and the share of the picture that it takes."""
    side = math.sqrt(1 - float(torch.rand(())))
    size = round(8 * side)
    top, left = (int(torch.randint(0, 8 - size + 1, ())) for _ in range(2))
    out = x.clone()
    out[..., top : top + size, left : left + size] = other[..., top : top + size, left : left + size]
    return out, size * size / 64


@keyed("r11a-cutmix-shares-exchanged")
def cutmix_shares_exchanged(run: Run, changed: bool) -> None:
    """Lightning, a small CNN with CutMix. After the box is cut, the share of what is left is computed anew; the new
    code takes the share of the box itself for it. Another seed."""
    seed = run.draw.randrange(999)
    x, y = pictures(480, seed, own=apart(seed + 1))
    other_seed(changed)
    model = cnn()
    class_outcome(run, model, pictures(192, seed, own=apart(seed + 2)))

    def loss(net: Any, batch: Any) -> Tensor:
        order = torch.randperm(len(batch[0]))
        shots, box = boxed(batch[0], batch[0][order])
        left = box if changed else 1 - box
        logits = net(shots)
        out: Tensor = left * F.cross_entropy(logits, batch[1])
        return out + (1 - left) * F.cross_entropy(logits, batch[1][order])

    fit(run, lit(model, loss, adamw(3e-3)), loader(x, y, size=32), 150, gradient_clip_val=1.0)
