"""Local comparison: each kernel gets the engine's own inputs, so that a fault is pinned to the one that has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from limpid.maths.chain import Link
from limpid.maths.linear import Linear
from limpid.maths.operation import Array
from limpid.maths.rounding import unit_roundoff
from limpid.tracing.ball import Ball, nearest
from limpid.tracing.comparison import Expected, Range, compare, largest
from limpid.tracing.cores import in_order
from limpid.tracing.document import Statistics
from limpid.tracing.finite import all_finite, dependent
from limpid.tracing.kernels import Kernel, formats_of, kernel_of
from limpid.tracing.kernels.random_rounding import Sampled
from limpid.tracing.local_backward import Backward, Gradients, Part, add_up, names_not_finite
from limpid.tracing.mask import visible
from limpid.tracing.record import Place, Record
from limpid.tracing.rounding import added
from limpid.tracing.segments import Segment, cut, segments
from limpid.tracing.summary import statistics
from limpid.tracing.sums import Sum
from limpid.tracing.systematic import with_systematic
from limpid.tracing.verdict import Check


@dataclass
class Compared:
    """One quantity: what made it, and the checks of its value and of the gradients completed by its kernel."""

    link: Link
    path: Place
    arithmetic: str  # from which the limits follow
    shape: tuple[int, ...]
    statistics: Statistics  # of the engine's
    flops: int
    forward: Check
    error: float | None = None  # what its rounding adds to the loss, to first order
    backward: list[Check] = field(default_factory=list)


def compare_operations(record: Record) -> Iterator[Compared]:
    """Every quantity in turn, forward and backward, each on the path that trains if that forms it.

    Kernels are redone at once, as many as there are cores; what they add to gradients is added up in their order.
    """
    pieces, gradients = segments(record), Gradients(record, cut(record))
    uses = Counter((piece.path, name) for piece in pieces for name in piece.inputs)
    sums: dict[tuple[Place, str], Sum] = {}
    completed: list[Check] = []
    with np.errstate(all="ignore"):
        redone = in_order(lambda piece: compare_piece(record, piece, gradients), pieces, last_early=True)
        for piece, (compared, parts) in zip(pieces, redone, strict=True):
            add_up(parts, gradients, sums)
            for name in piece.inputs:
                uses[piece.path, name] -= 1
                if uses[piece.path, name] == 0 and (piece.path, name) in sums:
                    gradient = gradients.stored(piece.path, name)
                    completed.append(_compare_gradient(record, name, gradient, sums.pop((piece.path, name))))
            if compared is not None:
                compared.backward, completed = completed, []
                yield compared


def compare_piece(record: Record, piece: Segment, gradients: Gradients) -> tuple[Compared | None, list[Part]]:
    """The result of one kernel, None where the other path made it; and what it adds to gradients."""
    kernel, inputs = kernel_of(record, piece), [input_of(record, piece, name) for name in piece.inputs]
    compared, ball, saved = None, None, None
    if piece.makes:
        compared, ball, saved = _compare_result(record, piece, kernel, inputs)
    wanted = [name for name in piece.inputs if gradients.there(piece.path, name)]
    work = Backward(record, piece, kernel, formats_of(record, piece).gradients, gradients)
    y_bar = gradients.exact(piece.path, piece.name) if gradients.there(piece.path, piece.name) else None
    if wanted and y_bar is not None:
        if len(record.micro_batches()) > 1 and any(work.learned(name) for name in wanted):
            work.in_parts(inputs, y_bar)
        else:
            work.add(inputs, y_bar, kernel.forward(inputs)[1] if ball is None else saved)
    if compared is not None and ball is not None:
        compared.error = added(record, piece, y_bar, kernel.exact(ball, saved), inputs, work.parts)
    return compared, work.parts


def _compare_result(record: Record, piece: Segment, kernel: Kernel, inputs: list[Array]) -> tuple[Compared, Ball, Any]:
    """The result of one kernel compared, the result redone, and what its backward pass needs."""
    name = piece.name
    ball, saved = kernel.forward(inputs)
    engine = record.stored(f"{piece.path}/{name}")
    check = compare(name, "forward", engine, expected_result(record, piece, kernel, inputs, ball))
    if isinstance(ball, Sampled):
        check = with_systematic(check, engine.astype(np.float64), ball, record.axes(name))
    flops = _flops(record, piece.link)
    return (
        Compared(
            piece.link,
            piece.path,
            kernel.arithmetic + record.arithmetic,
            engine.shape,
            statistics(engine),
            flops,
            check,
        ),
        ball,
        saved,
    )


def expected_result(record: Record, piece: Segment, kernel: Kernel, inputs: list[Array], ball: Ball) -> Expected:
    """What the mathematics makes of a kernel's inputs, and how far its rounding may lead away from that."""
    engine = record.mapped(f"{piece.path}/{piece.name}")
    unknown = dependent(lambda arrays: [kernel.forward(arrays)[0].value], inputs)
    why = "" if unknown is None else _why(names_not_finite(piece.inputs, inputs))
    return Expected(
        _masked(record, piece.name, engine, ball.value), ball.reach, Range(engine.dtype), engine.dtype,
        lambda: _on_the_way(record, ball, engine.dtype), None if unknown is None else unknown[0],
        why, lambda: _too_large(record, piece, inputs),
    )  # fmt: skip


def _on_the_way(record: Record, ball: Ball, dtype: Any) -> Array:
    """How large intermediate results may be, against the largest number of `dtype`.

    What a kernel adds up lies in the summed format, what it stores in `dtype`: each overflows at its own largest.
    """
    summed = record.summed_format
    in_sums = ball.reach / unit_roundoff(summed) * (largest(dtype) / largest(summed))
    return np.maximum(in_sums, ball.reach / unit_roundoff(dtype))


def _flops(record: Record, link: Link) -> int:
    """Of one operation, from the shapes alone."""
    shapes = (record.mapped(record.place(name)).shape for name in link.inputs)
    return link.operation.flops(*(np.broadcast_to(0.0, shape) for shape in shapes))


def _masked(record: Record, name: str, engine: Array, expected: Array) -> Array:
    """Scores of hidden keys may be recorded as -inf, which is what the mask makes of them: that is no fault."""
    if not name.endswith("attention.scores") or all_finite(engine.astype(np.float32)):
        return expected
    seen = visible(record, name, engine.shape)
    assert seen is not None
    return np.where(~seen & (engine == -np.inf), -np.inf, expected)


def _compare_gradient(record: Record, name: str, gradient: Array, total: Sum) -> Check:
    """A gradient once every kernel that used the array has added its part."""
    expected, ball = expected_gradient(record, gradient, total)
    check = compare(name, "backward", gradient, expected)
    return (
        with_systematic(check, gradient.astype(np.float64), ball, record.axes(name))
        if isinstance(ball, Sampled)
        else check
    )


def expected_gradient(record: Record, gradient: Array, total: Sum) -> tuple[Expected, Ball]:
    """What every kernel that used an array adds to its gradient, and how far rounding may lead away from that."""
    scale = record.loss_scale if total.learned else 1.0
    narrowest = min((*total.formats, gradient.dtype), key=largest)
    allowed = Range(narrowest, scale, record.loss_scale, not record.meta["updated"])
    ball = total.total()
    if scale != 1.0:
        ball = replace(ball, value=ball.value / scale, reach=ball.reach / scale)
    expected = Expected(
        ball.value, ball.reach, allowed, gradient.dtype,
        lambda: np.maximum(_on_the_way(record, ball, narrowest), 0.0 if total.formed is None else total.formed),
        total.unknown, _why(total.why),
    )  # fmt: skip
    return expected, ball


def _why(names: list[str]) -> str:
    """Why entries were not checked."""
    if not names:
        return ""
    return f"input not finite: {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def input_of(record: Record, piece: Segment, name: str) -> Array:
    """A kernel's input as the engine had it: matrix products round theirs to the compute format."""
    array = record.exact(record.place(name, piece.path))
    alone = len(piece.links) == 1 and isinstance(piece.link.operation, Linear)
    return nearest(array, record.compute_format) if alone else array


def _too_large(record: Record, piece: Segment, inputs: list[Array]) -> str:
    """The first input of a matrix product with numbers that the compute format cannot hold."""
    into = {name for link in piece.links if isinstance(link.operation, Linear) for name in link.inputs}
    highest = largest(record.compute_format)
    pairs = zip(piece.inputs, inputs, strict=True)
    return next((name for name, array in pairs if name in into and (np.abs(array) > highest).any()), "")
