"""How large what tables give is, what the first block is given of it, and how far outputs spread at first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from limpid.doctor.weights import sample

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam
    from limpid.doctor.forward_probe import Flow

ENTRIES = 65536
"""Entries by which the size of a table is measured."""
OTHER = 1.5
"""How many times as large as its entries what a table gives must be to be told apart from them."""


@dataclass(frozen=True)
class Scales:
    """Root mean squares in one pass before the first update."""

    tables: dict[str, tuple[float, float]]  # by module: of its entries, and of what it gives
    first: float | None  # of what the first block is given; None where there are no blocks
    outputs: float | None  # deviation of the logits
    of_matrix: float | None  # what the matrix of the outputs would make of a normed input: its size times √width

    def told(self) -> Iterator[str]:
        """In a sentence, of models with tables and blocks."""
        if not self.tables or self.first is None:
            return
        said = [
            f"{name} {given:.2g}" + (f" (entries {own:.2g})" if _apart(own, given) else "")
            for name, (own, given) in self.tables.items()
        ]
        spread = ""
        if self.outputs is not None:
            normed = "" if self.of_matrix is None else f" ({self.of_matrix:.2g} of a normed input)"
            spread = f"; outputs spread by {self.outputs:.2g} at first{normed}"
        added = math.hypot(*(given for _, given in self.tables.values()))
        beside = "" if len(said) == 1 else f" ({added:.2g} if added as they are)"
        yield (
            f"size (rms) of what tables give: {', '.join(said)}; of the first block's input "
            f"{self.first:.2g}{beside}{spread}"
        )


def scales(exam: Exam) -> Scales | None:
    """What was measured of it by now: no pass is made for it."""
    flow: Flow | None = exam.__dict__.get("flow")
    if flow is None:
        return None
    modules = dict(exam.info.model.named_modules())
    tables = {name: (_size(modules[name].weight), given) for name, given in flow.given_by_tables.items()}
    logits: Tensor | None = exam.__dict__.get("plain")
    spread, normed = None, None
    if logits is not None and logits.ndim == 3:
        spread = float(logits.std())
        head = exam.info.head(int(logits.shape[-1])) or exam.info.embedding
        if head is not None and head[1].ndim == 2:
            normed = _size(head[1]) * math.sqrt(head[1].numel() / logits.shape[-1])
    return Scales(tables, flow.given_to_first_block, spread, normed)


def _size(weight: Tensor) -> float:
    return float(sample(weight, ENTRIES).float().square().mean().sqrt())


def _apart(one: float, other: float) -> bool:
    return max(one, other) > OTHER * min(one, other)
