"""What the batch says about the task: is it the next token that is taught?"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam


def next_token_is_taught(exam: Exam) -> bool:
    """Whether each position is taught a token that lies after it, so that no output may see one.

    By the gradient where there is one; else by the labels; with no labels at all, when the model says so itself.
    """
    from limpid.doctor.checks.data import pairs

    for reading in exam.readings:
        if reading.ids is not None:
            return max(reading.match(1)[0], reading.match(2)[0], reading.match(3)[0]) >= 0.9
    for micro in exam.micros:
        if micro.ids is not None and micro.labels is not None and micro.ids.shape == micro.labels.shape:
            later = max(pairs(micro.ids, micro.labels, k)[0] for k in (1, 2, 3))
            own = pairs(micro.ids, micro.labels, 0)[0] >= 0.99 and hasattr(micro.given, "keys")
            return later >= 0.9 or (own and _decodes(exam))
    return _decodes(exam)


def _decodes(exam: Exam) -> bool:
    """Whether the model calls itself a decoder."""
    kind = type(exam.model).__name__.lower()
    if any(word in kind for word in ("causallm", "lmhead", "gpt", "llama")):
        return True
    if any(word in kind for word in ("masked", "bert", "encoder")):
        return False
    return type(exam.model).__module__.startswith("limpid.")
