"""Which places of a row's outputs read an early place of its inputs, or how much its one output does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.doctor.calls import find_rows
from limpid.doctor.description.columns import MOST as COLUMNS
from limpid.doctor.description.others import far, outputs, with_other
from limpid.doctor.description.words import number, span

if TYPE_CHECKING:
    from limpid.doctor.calls import Call
    from limpid.doctor.exam import Exam

FEWEST = 4
"""Places from which on rows are held to be series."""


@dataclass(frozen=True)
class Series:
    """What moves when one place of the first row is another row's, in passes of the doctor's own."""

    name: str
    places: int
    spans: tuple[tuple[int, tuple[int, ...]], ...] = ()  # place -> places of outputs that move
    sizes: tuple[tuple[int, float], ...] = ()  # place -> how far the one output moves, of its size
    outputs: int = 0
    axis: int = 1

    def told(self) -> Iterator[str]:
        """In a sentence."""
        if self.spans:
            along = "place" if self.axis == 1 else f"index of axis {self.axis}"
            each = "; ".join(f"at {place} those at {_which(moved)}" for place, moved in self.spans)
            yield (
                f"another {self.name} at one {along} of row 0, of {number(self.places)}, moves of its "
                f"{number(self.outputs)} outputs: {each}"
            )
        if self.sizes:
            each = ", ".join(f"at {place} by {size:.2g}" for place, size in self.sizes)
            along = "" if self.axis == 1 else f" along axis {self.axis}"
            yield f"another {self.name} moves the output of its row{along}: {each} of its size"


def _which(moved: tuple[int, ...]) -> str:
    if not moved:
        return "none"
    some = f", {number(len(moved))} of these" if len(moved) <= moved[-1] - moved[0] else ""
    return f"{span(moved)}{some}"


def series(exam: Exam) -> tuple[Series, ...]:
    """Of a model whose one input has rows of places, and of tokens where its outputs have no places.

    Measured numbers with two axes beside that of rows are tried along both, as places and as channels.
    """
    call = None if exam.info.translates else exam.few_rows
    call = None if call is None else call.without_loss()
    given = [] if call is None else [(n, x) for n, x in call.tensors.items() if x.layout == torch.strided and x.ndim]
    tokens = None if call is None else call.ids
    name, x = next(((n, x) for n, x in given if x is tokens or (tokens is None and x.ndim in (2, 3))), ("", None))
    if call is None or x is None or len(x) < 2 or x.is_complex():
        return ()
    if tokens is None and (not x.is_floating_point() or len([one for _, one in given if one.ndim > 1]) > 1):
        return ()
    if tokens is not None and exam.plain is not None and exam.plain.ndim > 2:  # of outputs with places `Reach` tells
        return ()
    base = outputs(exam, call, find_rows)
    if base is None or len(base) != len(x):
        return ()
    axes = (1, 2) if tokens is None and x.ndim == 3 else (1,)
    found = (_along(exam, call, name, x, axis, base, tokens is not None) for axis in axes)
    return tuple(one for one in found if one is not None)


def _along(exam: Exam, call: Call, name: str, x: Tensor, axis: int, base: Tensor, tokens: bool) -> Series | None:
    """Places of one axis, of outputs that have it too or none."""
    places = x.shape[axis]
    if places < (FEWEST if axis == 1 else 2) or (x.ndim == 2 and not tokens and places <= COLUMNS):
        return None
    of_outputs = None if tokens else _same_axis(x, axis, base)
    placed = of_outputs is not None
    tried = sorted({0, places // 2, places - 1} if placed else {0, places // 4, places // 2, places - 1})
    spans, sizes = [], []
    for place in tried:
        now = outputs(exam, with_other(call, x, _other(x, axis, place)), find_rows)
        if now is None or now.shape != base.shape:
            return None
        if of_outputs is None:
            sizes.append((place, float((now[0] - base[0]).norm() / base[0].norm().clamp(min=1e-30))))
        else:
            moved = (
                far(base, now)[0].movedim(of_outputs - 1, 0).flatten(1) if base.ndim > 2 else far(base, now)[0, :, None]
            )
            spans.append((place, tuple(moved.any(1).nonzero().flatten().tolist())))
    count = 0 if of_outputs is None else base.shape[of_outputs]
    return Series(name, places, tuple(spans), tuple(sizes), count, axis)


def _same_axis(x: Tensor, axis: int, base: Tensor) -> int | None:
    """The axis of the outputs that is the inputs' own; None where they have none."""
    if axis == 1 and base.ndim > 2:
        return 1
    if base.ndim == 2 and base.shape[1] == x.shape[axis]:
        return 1
    return axis if base.ndim == x.ndim else None


def _other(x: Tensor, axis: int, place: int) -> Tensor:
    """The same with another row's numbers at one place of the first, which differ from its own."""
    changed = x.clone()
    here = x.select(axis, place)
    differ = (here != here[:1]).reshape(len(x), -1).any(1).nonzero().flatten()
    if len(differ):
        changed.select(axis, place)[0] = here[int(differ[0])]
    return changed
