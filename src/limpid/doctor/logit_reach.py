"""How far apart logits can come, whatever the weights: nothing, or what a cap, a clamp or a squashing leaves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from limpid.doctor.calls import find_logits
from limpid.doctor.undisturbed import seeded, undisturbed

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam

FACTORS = (1e2, 1e4)
"""What all that is trained behind the blocks is multiplied by, after a pass with it as it is."""
LEVEL = 1.5
"""Growth of the logits while the weights grow a hundredfold: 1 where they are bounded, 100 where they are not."""


def reach(exam: Exam) -> float | None:
    """Largest less least logit once all trained gains and matrices outside of the blocks are large; None if that grows.

    None, too, where logits do not grow from the beginning: normalised vectors, of which this shows no bound.
    """
    info, call = exam.info, exam.probe
    head = info.head(exam.vocab) if exam.vocab else None
    grown = [
        p
        for name, p in info.parameters.items()
        if p.requires_grad and p.is_floating_point() and info.block_of(name) is None and not name.endswith("bias")
        if head is None or p is head[1] or name not in info.embedding_names
    ]
    plain = exam.plain
    if plain is None or call is None or not info.blocks or info.sharded:
        return None
    if not any(exam.vocab in p.shape for p in grown if p.ndim == 2):
        return None
    kept, spans = [p.data for p in grown], [float(plain.max() - plain.min())]
    with undisturbed(exam.shield):
        exam.model.eval()
        try:
            for factor in FACTORS:
                for parameter, start in zip(grown, kept, strict=True):
                    parameter.data = start * factor
                seeded()
                logits = find_logits(call.make(exam.model))
                spans.append(math.nan if logits is None else float(logits.float().max() - logits.float().min()))
        finally:
            for parameter, start in zip(grown, kept, strict=True):
                parameter.data = start
    begun, large, larger = spans
    return larger if math.isfinite(sum(spans)) and larger < LEVEL * large and large > LEVEL * begun else None


def floor(classes: int, span: float) -> float:
    """Least cross-entropy of logits that lie at most `span` apart: all others at one end, the target at the other."""
    return math.log1p((classes - 1) * math.exp(-span))
