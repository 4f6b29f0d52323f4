"""One thing is changed at a time; what heals a step names the cause."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from limpid.doctor.anatomy import Anatomy
from limpid.doctor.breakage.search import Culprit, search
from limpid.doctor.calls import Call


def heal(anatomy: Anatomy, call: Call, before: Call | None, rng: Tensor | None, culprit: Culprit) -> dict[str, Any]:
    """One thing changed at a time: single rows, and the batch before."""
    facts: dict[str, Any] = {}
    ids = call.ids
    if ids is not None and len(ids) > 1:
        bad = []
        for row in range(min(len(ids), 64)):
            found, _ = search(anatomy, call.rows(slice(row, row + 1)), None, rng, backward=False)
            if found is not None:
                bad.append(row)
        facts["rows_that_break_alone"] = bad
        facts["rows"] = min(len(ids), 64)
    if before is not None:
        found, _ = search(anatomy, before, None, rng, backward=False)
        facts["previous_batch_is_finite"] = found is None
    return facts
