"""What the rounding of one kernel added to the loss, to first order, and the account of a whole step."""

from __future__ import annotations

import numpy as np

from limpid.maths.account import Account, Part, account_of
from limpid.maths.operation import Array
from limpid.tracing.document import StepDocument
from limpid.tracing.local_backward import Gradients
from limpid.tracing.record import Record
from limpid.tracing.segments import Segment


def added(record: Record, piece: Segment, gradients: Gradients) -> float | None:
    """⟨ḡ, δ⟩: the engine's result less the mathematics of the same inputs, weighed with the loss's gradient there.

    None on the path that does not train, and where no gradient was recorded. Numbers that are none count for nothing.
    """
    if piece.path != ("fast" if record.recorded_fast else "plain"):
        return None
    if gradients.there(piece.path, piece.name):
        bar = gradients.exact(piece.path, piece.name) / record.loss_scale
    elif piece.name == "loss":
        bar = np.ones(())
    else:
        return None
    off = (record.exact(f"{piece.path}/{piece.name}") - _exact(record, piece)) * bar
    return float(off[np.isfinite(off)].sum())


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
