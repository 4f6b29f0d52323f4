"""Labels as the batch holds them beside what the loss teaches: their order, and what those of no class do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.doctor.description.words import listed, number, share

if TYPE_CHECKING:
    from limpid.doctor.loss_gradient import LossGradient
    from limpid.doctor.step_record import StepRecord

MOST, ENOUGH = 64, 8
"""Classes up to which it is told which are never taught, and labels for each of them from which on."""
FEW = 8
"""Classes up to which the share of each is told."""
ALIGNED = 0.5
"""Share of the taught labels that are the batch's in their places, from which on both are held to be one list."""


@dataclass
class TaughtClasses:
    """Of outputs that are classes of rows, on steps whose loss is read; of the batch's labels, on all."""

    counts: Counter[int] = field(default_factory=Counter)  # of the labels of all batches so far
    alike: int = 0  # pairs of rows, one after the other, with the same label
    pairs: int = 0
    labels: int = 0
    classes: int = 0
    found: set[int] = field(default_factory=set)

    def take(self, record: StepRecord) -> None:
        """Add a step."""
        for held in record.class_labels:
            if not held.is_floating_point() and len(self.counts) <= MOST:
                values, counts = held.unique(return_counts=True)
                self.counts.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
                self.alike += int((held[1:] == held[:-1]).sum())
                self.pairs += max(0, len(held) - 1)
        for one in record.taught if record.read else ():
            if one.ids is None and one.shape[-1] <= MOST:
                self.classes = max(self.classes, one.shape[-1])
                self.labels += int(one.labelled.sum())
                self.found |= set(one.taught[one.labelled].tolist())

    def told(self) -> Iterator[str]:
        """In sentences; what is never taught where labels are so many that chance leaves none out."""
        total = sum(self.counts.values())
        if 2 <= len(self.counts) <= MOST and total >= ENOUGH * len(self.counts):
            common = self.counts.most_common()
            which = common if len(common) <= FEW else [*common[: FEW // 2], *common[-FEW // 2 :]]
            between = "" if len(common) <= FEW else " (the commonest and the rarest)"
            shares = ", ".join(f"{label} at {share(times / total)}" for label, times in which)
            expected = sum((times / total) ** 2 for times in self.counts.values())
            yield (
                f"labels of all batches so far, {number(total)}: {shares}{between}; a row has the label of the one "
                f"before it in {share(self.alike / max(1, self.pairs))}, by chance it would in {share(expected)}"
            )
        never = sorted(set(range(self.classes)) - self.found)
        if never and self.labels >= ENOUGH * self.classes:
            yield f"never taught, in {number(self.labels)} labels: class {listed(list(map(str, never)), 6)}"


def given_labels(record: StepRecord, read: Sequence[LossGradient]) -> Iterator[str]:
    """In sentences, of batches whose labels are as many as the outputs."""
    both = zip(_held(record), read, strict=False)
    pairs = [(held, one) for held, one in both if held.numel() == len(one.weight) and one.complete]
    if not pairs or len(pairs) < len(read):
        return
    held = torch.cat([one.flatten().long() for one, _ in pairs])
    taught, weight = (torch.cat([getattr(one, name).cpu() for _, one in pairs]) for name in ("taught", "weight"))
    labelled = weight > 0
    alike = held[labelled] == taught[labelled]
    part = float(alike.double().mean()) if len(alike) else 1.0
    if part < 1 and torch.equal(held[labelled].sort().values, taught[labelled].sort().values):
        yield (
            f"the labels that are taught are the batch's in another order: {number(int(alike.sum()))} of "
            f"{number(len(alike))} in their own place"
        )
    elif part >= ALIGNED:
        yield from _outside(held, taught, weight, read[0].shape[-1])


def _outside(held: Tensor, taught: Tensor, weight: Tensor, classes: int) -> Iterator[str]:
    """Labels that no class has, where they are taught."""
    outside = ((held < 0) | (held >= classes)) & (weight > 0)
    if bool(outside.any()):
        values = ", ".join(str(one) for one in held[outside].unique().tolist()[:4])
        ways = ", ".join(str(one) for one in taught[outside].unique().tolist()[:4])
        yield (
            f"labels of the batch that are no class ({values}) are taught, as class {ways}: "
            f"{number(int(outside.sum()))} of {number(int((weight > 0).sum()))} labels, "
            f"{share(float(weight[outside].sum() / weight.sum()))} of the weight"
        )


def _held(record: StepRecord) -> list[Tensor]:
    """The batch's labels, by forward pass; none where one has no such."""
    labels = [one.labels for one in record.micros]
    found = [one for one in labels if one is not None]
    return record.on_hosts(found) if len(found) == len(labels) else []
