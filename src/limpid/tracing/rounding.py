"""What the rounding of one kernel added to the loss, to first order, and the account of a whole step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from limpid.maths.account import Account, Part, account_of
from limpid.maths.linear import Linear
from limpid.maths.operation import Array
from limpid.tracing.document import StepDocument
from limpid.tracing.local_backward import Part as Addend
from limpid.tracing.record import Record
from limpid.tracing.segments import Segment


def added(
    record: Record,
    piece: Segment,
    bar: Array | None,
    exact: Array | None,
    inputs: Sequence[Array],
    parts: Sequence[Addend],
) -> float | None:
    """⟨ḡ, δ⟩: the engine's result less the mathematics of the same inputs, weighed with the loss's gradient there.

    None on the path that does not train, and where no gradient was recorded. Numbers that are none count for nothing.

    bar     ḡ times the loss scale, as recorded; None where there is none
    exact   the mathematics of `inputs`, None where it was not formed
    inputs  as the kernel reads them
    parts   what it adds to their gradients
    """
    if piece.path != ("fast" if record.recorded_fast else "plain"):
        return None
    scale = record.loss_scale
    if bar is None:
        if piece.name != "loss":
            return None
        bar, scale = np.ones(()), 1.0
    engine = record.exact(f"{piece.path}/{piece.name}")
    by_inputs = None if exact is None else _by_rounded_inputs(record, piece, inputs, parts)
    if exact is not None and by_inputs is not None:
        total = (float(np.vdot(engine - exact, bar)) - by_inputs) / scale
        if math.isfinite(total):
            return total
    off = (engine - _exact(record, piece)) * (bar / scale)
    return float(off[np.isfinite(off)].sum())


def _by_rounded_inputs(
    record: Record, piece: Segment, inputs: Sequence[Array], parts: Sequence[Addend]
) -> float | None:
    """⟨ḡ, f(x) - f(x̂)⟩, where a kernel reads x̂ of recorded inputs x; None where only f(x) itself tells.

    A map is linear in weight and bias: there it is the sum of their gradient times what rounding took off them.
    """
    if not isinstance(piece.link.operation, Linear):
        return 0.0
    total = 0.0
    for place, (name, read) in enumerate(zip(piece.inputs, inputs, strict=True)):
        tensor = record.place(name, piece.path)
        if record.format(tensor) == record.compute_format:
            continue
        off = record.exact(tensor) - read
        bars = [part.ball.value for part in parts if part.name == name and part.ball is not None]
        if place == 0 or not bars:
            if off.any():
                return None
        else:
            total += sum(float(np.vdot(bar, off)) for bar in bars)
    return total


def _exact(record: Record, piece: Segment) -> Array:
    """Of inputs as they are recorded: that a product rounds them to fewer bits is among its own errors."""
    values = {name: record.exact(record.place(name, piece.path)) for name in piece.inputs}
    for link in piece.links:
        values[link.name] = link.operation.forward(*(values[name] for name in link.inputs))[0]
    return values[piece.name]


def account(step: StepDocument) -> Account:
    """Who made the rounding error of the loss, by station and by operation."""
    titles = {name: station.title for station in step.stations for name in station.quantities
              if station.station not in ("backward", "update")}  # fmt: skip
    parts = [Part(titles.get(one.name, one.station), f"{one.operation} {one.format}", one.error or 0.0)
             for one in step.quantities]  # fmt: skip
    unknown = sum(one.path == "fast" and one.error is None for one in step.quantities)
    return account_of("loss", parts, unknown=unknown, engine=step.loss.value, exact=step.loss.exact)
