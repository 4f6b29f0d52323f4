"""What labels weigh, in passes of different sizes and in rows of different lengths."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.bench import VOCAB, Decoder

LABELS = (4, 12)
"""Of each row of the first and of the second pass."""


def batches() -> list[tuple[Tensor, Tensor]]:
    made = []
    for count in LABELS:
        ids = torch.randint(4, VOCAB, (4, 17))
        targets = ids[:, 1:].clone()
        targets[:, count:] = -100
        made.append((ids[:, :-1], targets))
    return made


def said(loss_of: Callable[[nn.Module, list[tuple[Tensor, Tensor]]], list[Tensor]]) -> tuple[str, float]:
    """The sentences on the loss, and the mean surprise of all labels of the last step."""
    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            given = batches()
            with torch.no_grad():
                total = sum(F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum") for x, y in given)
            optimizer.zero_grad()
            losses = loss_of(model, given)
            for loss in losses:
                loss.backward()
            optimizer.step()
            doctor.step(torch.stack(losses).sum())
    assert doctor.description is not None
    return "\n".join(doctor.description.of("loss")), float(total) / (4 * sum(LABELS))


def by_pass(model: nn.Module, given: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Each pass a mean, and the mean of both."""
    return [F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / len(given) for x, y in given]


def by_row(model: nn.Module, given: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Each row a mean, and the mean of all rows, of both passes in one."""
    x, y = (torch.cat(parts) for parts in zip(*given, strict=True))
    each = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none").sum(1)
    return [(each / (y >= 0).sum(1)).mean()]


def test_a_mean_of_means() -> None:
    told, surprise = said(by_pass)
    weights = [1 / (2 * 4 * count) for count in LABELS]
    each = torch.tensor([weights[0]] * 4 * LABELS[0] + [weights[1]] * 4 * LABELS[1])
    assert f"unevenly: deviation {float(each.std(correction=0) / each.mean()):.2f} of their mean" in told
    shown = ", ".join(f"{weight:.3g}" for weight in weights)
    assert f"a label weighs by forward pass {shown}; these have 16, 48 labels" in told
    assert f"{surprise:.3g} nats a label; {math.log(VOCAB):.3g}" in told


def test_rows_that_weigh_alike() -> None:
    told, _ = said(by_row)
    assert "rows weigh alike, however many labels they have" in told
    assert "by forward pass" not in told
