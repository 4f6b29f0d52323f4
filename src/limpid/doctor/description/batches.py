"""How batches of measured numbers differ from one another over the run: their means and deviations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.doctor.data_sheet import row_inputs, row_targets
from limpid.doctor.description.course import fifths
from limpid.doctor.description.inputs import held_by_name
from limpid.doctor.description.pushes import REWARDS

if TYPE_CHECKING:
    from limpid.doctor.step_record import StepRecord

NUMBERS = 2**16
"""Of a batch that are read at every step."""
ENOUGH, FIFTHS = 10, 5
"""Batches from which on they are told, and parts of the run."""
MOST = 10_000
"""Batches that are kept."""


@dataclass
class Batches:
    """Mean and deviation of each batch, of what the model is given first and of the targets."""

    seen: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    rewards: dict[str, list[float]] = field(default_factory=dict)  # means, by name

    def take(self, record: StepRecord) -> None:
        """Add a step."""
        for name, held in held_by_name(record).items() if record.micros else ():
            if (
                name in REWARDS
                and held.device.type == "cpu"
                and held.numel()
                and len(self.rewards.get(name, ())) < MOST
            ):
                self.rewards.setdefault(name, []).append(float(held.detach().float().mean()))
        call = record.calls[0] if record.calls else None
        if call is None or len(self.seen.get("inputs", ())) >= MOST:
            return
        for name, of in (("inputs", row_inputs), ("targets", row_targets)):
            x = of(record)
            if x is not None and x.is_floating_point() and 1 < x.numel() <= NUMBERS and x.device.type == "cpu":
                deviation, mean = torch.std_mean(x.detach().float(), correction=0)
                self.seen.setdefault(name, []).append((float(mean), float(deviation)))

    def told(self) -> Iterator[str]:
        """In sentences."""
        for name, each in self.rewards.items():
            if said := fifths(each):
                yield f"mean of {name} in a batch: {each[0]:.3g} at first{said}"
        for name, seen in self.seen.items():
            if len(seen) < ENOUGH:
                continue
            means, deviations = (torch.tensor(one) for one in zip(*seen, strict=True))
            yield (
                f"{name} of {len(seen):,} batches: the mean of a batch lies between {float(means.min()):.3g} and "
                f"{float(means.max()):.3g}, its deviation between {float(deviations.min()):.3g} and "
                f"{float(deviations.max()):.3g}; in the first fifth of the run {_of(means, deviations, 0)} in the "
                f"mean, in the last {_of(means, deviations, FIFTHS - 1)}"
            )


def _of(means: Tensor, deviations: Tensor, part: int) -> str:
    size = len(means) // FIFTHS
    at = slice(part * size, (part + 1) * size) if part < FIFTHS - 1 else slice(-size, None)
    return f"{float(means[at].mean()):.3g} and {float(deviations[at].mean()):.3g}"
