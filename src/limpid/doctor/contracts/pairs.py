"""Losses of pairs: labels of -1 and 1, and two things that are to differ.

Source: the documentation of torch.nn.functional and torch.nn, function by function.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from limpid.doctor.contracts.contract import Breach, Given, names
from limpid.doctor.rules.arguments import ITSELF, OUTSIDE, UNREACHABLE

FEW = 8
"""Labels of which all may be of one kind by chance."""

WITH_ZERO = {
    "cosine_embedding_loss": "pairs of label 0 have no loss at all, so that nothing pushes unlike ones apart",
    "margin_ranking_loss": "pairs of label 0 have the margin as a loss and no gradient",
    "hinge_embedding_loss": "pairs of label 0 are pulled together and pushed apart at once",
    "soft_margin_loss": "rows of label 0 have the loss ln 2 and no gradient",
}
"""What each does with a label of 0."""


def _of_signs(name: str, target: Tensor) -> Iterator[Breach]:
    """Labels of 0 and 1 where -1 and 1 are asked for."""
    labels = target.detach()
    zeros, ones = labels == 0, labels == 1
    if labels.numel() < FEW or not bool((zeros | ones).all()) or not bool(zeros.any()) or not bool(ones.any()):
        return
    yield Breach(
        rule=OUTSIDE,
        where=f"{name}: target",
        says=f"labels are {names(labels)} where -1 and 1 are asked for: {WITH_ZERO[name]} ("
        f"{float(zeros.float().mean()):.0%} of them).",
        cause="labels of 0 and 1, as cross-entropy takes them",
        fix="2 * label - 1",
        looks=2,
        evidence={"labels": names(labels), "zeros": float(zeros.float().mean())},
    )


def soft_margin(given: Given) -> Iterator[Breach]:
    yield from _of_signs("soft_margin_loss", given["target"])


def hinge_embedding(given: Given) -> Iterator[Breach]:
    yield from _of_signs("hinge_embedding_loss", given["target"])


def margin_ranking(given: Given) -> Iterator[Breach]:
    yield from _of_signs("margin_ranking_loss", given["target"])
    yield from _itself("margin_ranking_loss", "input1", "input2", given["input1"], given["input2"])


def cosine_embedding(given: Given) -> Iterator[Breach]:
    """`target` -1 or 1, `margin` below 1."""
    target, margin = given["target"], given["margin"]
    yield from _of_signs("cosine_embedding_loss", target)
    yield from _itself("cosine_embedding_loss", "input1", "input2", given["input1"], given["input2"])
    if margin >= 1 and bool((target == -1).any()):
        yield Breach(
            rule=UNREACHABLE,
            where="cosine_embedding_loss: margin",
            says=f"margin is {margin:g}, and no cosine is above 1: unlike pairs have no loss, and nothing pushes them "
            "apart.",
            cause="a margin of distances, not of cosines",
            fix="a margin between 0 and 0.5",
            meant="unlike pairs are left alone on purpose" if margin == 1 else None,
            evidence={"margin": float(margin)},
        )


def triplet(given: Given) -> Iterator[Breach]:
    """`anchor`, `positive` and `negative` are three different things."""
    yield from _itself("triplet_margin_loss", "anchor", "positive", given["anchor"], given["positive"])
    yield from _itself("triplet_margin_loss", "positive", "negative", given["positive"], given["negative"])
    yield from _itself("triplet_margin_loss", "anchor", "negative", given["anchor"], given["negative"])
    lengths = [given[name].detach().float().norm(dim=-1) for name in ("anchor", "positive", "negative")]
    unit = all(bool(((length - 1).abs() < 1e-2).all()) for length in lengths)
    if unit and given.get("p", 2) == 2 and given["margin"] >= 2:
        yield Breach(
            rule=UNREACHABLE,
            where="triplet_margin_loss: margin",
            says=f"margin is {given['margin']:g}, and vectors of length 1 are at most 2 apart: the loss of every "
            "triplet stays above 0, and those that are right already are pushed like all others.",
            cause="a margin of vectors that are not normalised",
            fix="a margin of 0.2 to 1 for vectors of length 1",
            meant="a triplet loss without a hinge: every triplet is pushed, all the time",
            severity="warning",
            evidence={"margin": float(given["margin"])},
        )


def _itself(name: str, first: str, second: str, a: Tensor, b: Tensor) -> Iterator[Breach]:
    """Two arguments that are equal in every row."""
    if a.ndim == 0 or len(a) < 2 or a.shape != b.shape or not (a.requires_grad or b.requires_grad):
        return
    if a is b or torch.equal(a.detach(), b.detach()):
        yield Breach(
            rule=ITSELF,
            where=f"{name}: {second}",
            says=f"{first} and {second} are equal in every row: their distance is 0 whatever the model says, and the "
            "pair teaches nothing.",
            cause="the same output twice, or one batch for both",
            fix=f"another example as {second}",
            meant="pushing apart alone: each anchor is its own positive" if second == "positive" else None,
            looks=2,
        )
