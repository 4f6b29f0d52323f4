"""Rows that choose among several sequences of tokens: what is chosen from, what is taught, and whether that agrees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from limpid.doctor.calls import is_whole
from limpid.doctor.description.words import counted, number

if TYPE_CHECKING:
    from limpid.doctor.step_record import StepRecord

ROWS, TOKENS = 3, 8
"""Rows that are shown, and tokens of each of their choices."""
KINDS = 4096
"""Different sequences of which counts are kept."""


@dataclass
class Choices:
    """Of the steps that are looked at."""

    counts: dict[tuple[int, ...], list[int]] = field(default_factory=dict)  # by tokens: times taught, times not
    shown: list[tuple[list[list[int]], int]] = field(default_factory=list)  # choices and what is taught, of some rows

    def take(self, record: StepRecord) -> None:
        """Add a step."""
        found = _choices(record) if record.sampled or record.read else None
        if found is None:
            return
        rows, taught = found[0].tolist(), found[1].tolist()
        self.shown = list(zip(rows[:ROWS], taught[:ROWS], strict=True))
        for row, right in zip(rows, taught, strict=True):
            for place, tokens in enumerate(row):
                if len(self.counts) < KINDS or tuple(tokens) in self.counts:
                    self.counts.setdefault(tuple(tokens), [0, 0])[place != right] += 1

    def told(self) -> Iterator[str]:
        """In sentences."""
        for row, (choices, right) in enumerate(self.shown):
            said = "; ".join(" ".join(map(str, tokens[:TOKENS])) for tokens in choices)
            yield f"row {row} chooses among {said}; it is taught number {right}, counted from 0"
        again = [pair for pair in self.counts.values() if sum(pair) > 1]
        if again:
            both = sum(min(pair) > 0 for pair in again)
            yield (
                f"of {counted(len(again), 'sequence')} to choose that came more than once {number(both)} were the "
                "right one in some rows and a wrong one in others"
            )


def _choices(record: StepRecord) -> tuple[Tensor, Tensor] | None:
    """Tokens (row, choice, position), and the number of the choice that each row is taught, (row,)."""
    labels = record.class_labels
    if len(record.calls) != 1 or len(labels) != 1:
        return None
    several = [one for one in record.calls[0].tensors.values() if is_whole(one) and one.ndim == 3]
    if not several or len(several[0]) != len(labels[0]) or int(labels[0].max()) >= several[0].shape[1]:
        return None
    tokens = record.host(several[0])
    return None if tokens is None else (tokens, labels[0])
