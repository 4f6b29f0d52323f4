"""Which places of a row's outputs read an early place of its inputs, or how much its one output does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.doctor.calls import find_rows
from limpid.doctor.description.others import far, outputs, with_other
from limpid.doctor.description.words import number

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam

FEWEST = 4
"""Places from which on rows are held to be series."""


@dataclass(frozen=True)
class Series:
    """What moves when one place of the first row is another row's, before the first update."""

    name: str
    places: int
    spans: tuple[tuple[int, tuple[int, ...]], ...] = ()  # place -> places of outputs that move
    sizes: tuple[tuple[int, float], ...] = ()  # place -> how far the one output moves, of its size
    outputs: int = 0

    def told(self) -> Iterator[str]:
        """In a sentence."""
        for place, moved in self.spans:
            span = f"{number(moved[0])} to {number(moved[-1])}" if moved else "none"
            some = f", {number(len(moved))} of these" if moved and len(moved) <= moved[-1] - moved[0] else ""
            yield (
                f"another {self.name} at place {place} of {number(self.places)} of row 0 moves its outputs at {span} "
                f"of {number(self.outputs)}{some}"
            )
        if self.sizes:
            each = ", ".join(f"at {place} by {size:.2g}" for place, size in self.sizes)
            yield f"another {self.name} moves the output of its row: {each} of its size"


def series(exam: Exam) -> Series | None:
    """Of a model whose one input has rows of places, and of tokens where its outputs have no places."""
    call = None if exam.info.translates else exam.few_rows
    call = None if call is None else call.without_loss()
    given = [] if call is None else [(n, x) for n, x in call.tensors.items() if x.layout == torch.strided and x.ndim]
    tokens = None if call is None else call.ids
    name, x = next(((n, x) for n, x in given if x is tokens or (tokens is None and x.ndim == 3)), ("", None))
    if call is None or x is None or x.shape[1] < FEWEST or len(x) < 2 or x.is_complex():
        return None
    if tokens is None and (not x.is_floating_point() or len([one for _, one in given if one.ndim > 1]) > 1):
        return None
    if tokens is not None and exam.plain is not None and exam.plain.ndim > 2:  # of outputs with places `Reach` tells
        return None
    base = outputs(exam, call, find_rows)
    if base is None or len(base) != len(x):
        return None
    placed = base.ndim > 2 or (tokens is None and base.ndim == 2 and base.shape[1] == x.shape[1])
    if placed and tokens is not None:  # `Reach` tells of these
        return None
    places = x.shape[1]
    tried = sorted({0, places // 2} if placed else {0, places // 4, places // 2, places - 1})
    spans, sizes = [], []
    for place in tried:
        now = outputs(exam, with_other(call, x, _other(x, place)), find_rows)
        if now is None or now.shape != base.shape:
            return None
        if placed:
            moved = far(base, now)[0].reshape(base.shape[1], -1).any(1)
            spans.append((place, tuple(moved.nonzero().flatten().tolist())))
        else:
            sizes.append((place, float((now[0] - base[0]).norm() / base[0].norm().clamp(min=1e-30))))
    return Series(name, places, tuple(spans), tuple(sizes), base.shape[1] if placed else 0)


def _other(x: Tensor, place: int) -> Tensor:
    """The same with another row's numbers at one place of the first, which differ from its own."""
    changed = x.clone()
    differ = (x[:, place] != x[:1, place]).reshape(len(x), -1).any(1).nonzero().flatten()
    if len(differ):
        changed[0, place] = x[int(differ[0]), place]
    return changed
