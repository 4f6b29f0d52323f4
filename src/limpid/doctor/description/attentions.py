"""What attentions of a step multiply their queries and keys by, and how large their scores are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.description.words import counted, number, span

if TYPE_CHECKING:
    from limpid.doctor.step_record import StepRecord

NEAR = 0.02
"""How far, relative, a factor may be from 1/√d_head and be called so."""


def attentions(record: StepRecord) -> Iterator[str]:
    """One sentence for each size of head and factor."""
    kinds: dict[tuple[int, float], list[int]] = {}
    for index, one in enumerate(record.attentions):
        factor = 0.0 if math.isnan(one.factor) else float(f"{one.factor:.3g}")
        kinds.setdefault((one.query.shape[-1], factor), []).append(index)
    for (size, factor), those in kinds.items():
        usual = 1 / math.sqrt(size)
        by = f"1/√{size}" if abs(factor - usual) <= NEAR * usual else f"{factor:.3g} (1/√{size} is {usual:.3g})"
        times = f", multiplied by {by}" if factor else ""
        keys = span([record.attentions[i].key.shape[-2] for i in those])
        largest = max(record.attentions[i].largest for i in those)
        bound = "" if all(record.attentions[i].exact for i in those) else "at most "
        yield (
            f"{counted(len(those), 'attention')} of {keys} keys, queries and keys of {number(size)} numbers{times}: "
            f"scores up to {bound}{largest:.3g}"
        )
