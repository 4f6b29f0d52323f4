"""Targets that are probabilities: how sure they are beside the outputs, and which label the batch has there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.doctor.description.words import number, share

if TYPE_CHECKING:
    from limpid.doctor.step_record import StepRecord

PLACES, TOP = 256, 3
"""Places that are looked at, the first ones, and classes of one that are told."""
ROUNDING = 1e-2
"""How far probabilities in half precision may be from adding up to 1."""


@dataclass(frozen=True)
class SoftTargets:
    """Of the first places of the last loss that was given some, on the host: (place, class) each."""

    target: Tensor
    output: Tensor  # probabilities
    places: int  # in all

    @classmethod
    def of(cls, given: Tensor, target: Tensor) -> SoftTargets | None:
        """Of scores or their logarithms with the classes last, and probabilities or their logarithms."""
        classes = given.shape[-1] if given.ndim else 0
        if given.shape != target.shape or given.ndim < 2 or classes < 2 or not target.is_floating_point():
            return None
        said, aims = (one.detach().reshape(-1, classes)[:PLACES].float().cpu() for one in (given, target))
        aims = aims.exp() if float(aims.max()) <= 0 else aims
        return None if bool((aims < 0).any()) else cls(aims, said.softmax(-1), given.numel() // classes)

    def told(self, record: StepRecord) -> Iterator[str]:
        """In sentences."""
        sums = self.target.sum(-1)
        off = "" if float((sums - 1).abs().max()) < ROUNDING else f", which add up to {float(sums.mean()):.3g}"
        sure = self.target / sums.clamp(min=1e-30)[:, None]
        spreads = [float(torch.special.entr(one).sum(-1).mean()) for one in (sure, self.output)]
        yield (
            f"targets are probabilities{off}: their entropy is {spreads[0]:.3g} nats, that of what is held against "
            f"them {spreads[1]:.3g}"
        )
        yield from self._factors(record, sure)
        labels = self._labels(record)
        also = ""
        if labels is not None:
            known = labels >= 0
            same = float((self.target.argmax(-1) == labels)[known].double().mean())
            count = number(int(known.sum()))
            yield f"the likeliest class of a target is the batch's label there in {share(same)} of {count}"
            also = f"; the batch's label there is {int(labels[0])}"
        yield f"the first: target {_top(sure[0])}; held against it {_top(self.output[0])}{also}"

    def _factors(self, record: StepRecord, sure: Tensor) -> Iterator[str]:
        """Whose outputs, divided by which temperature, they are the softmax of."""
        sources = [("the model's outputs", outputs) for outputs, _ in record.row_gradients[:1]]
        sources += [
            (f"the outputs of {type(one.module).__name__}", one.gave)
            for one in record.besides.values()
            if one.gave is not None
        ]
        for what, probabilities in (("what is held against them is", self.output), ("the targets are", sure)):
            factors = ((name, _factor(scores, probabilities)) for name, scores in sources)
            yield from (f"{what} the softmax of {name} times {by:.3g}" for name, by in factors if by is not None)

    def _labels(self, record: StepRecord) -> Tensor | None:
        """The batch's own labels of these places, where it has as many as there are places."""
        held = record.micros[0].labels if len(record.micros) == 1 else None
        found = None if held is None or held.numel() != self.places else record.host(held)
        return None if found is None or not bool((found >= 0).any()) else found.flatten()[: len(self.target)]


def _factor(scores: Tensor, probabilities: Tensor) -> float | None:
    """What scores are multiplied by before a softmax makes these probabilities of them; None where nothing does."""
    classes = probabilities.shape[-1]
    if scores.shape[-1] != classes or scores.numel() // classes < len(probabilities):
        return None
    given = scores.reshape(-1, classes)[: len(probabilities)].float().cpu()
    made = probabilities.clamp(min=1e-30).log()
    given, made = (one - one.mean(-1, keepdim=True) for one in (given, made))
    factor = float((given * made).sum() / given.square().sum().clamp(min=1e-30))
    return factor if float((made - factor * given).norm()) <= ROUNDING * float(made.norm()) else None


def _top(probabilities: Tensor) -> str:
    """The likeliest classes, the likeliest first."""
    values, classes = probabilities.topk(min(TOP, len(probabilities)))
    return ", ".join(f"{c} ({p:.2f})" for c, p in zip(classes.tolist(), values.tolist(), strict=True))
