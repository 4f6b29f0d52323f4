"""The whole step once more from its tokens, by the mathematics alone: how far the engine has drifted from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from limpid.maths.chain import Chain
from limpid.maths.operation import Array
from limpid.maths.rounding import unit_roundoff
from limpid.quantities import parameters
from limpid.tracing.record import Record
from limpid.tracing.summary import norm


@dataclass(frozen=True)
class EndToEnd:
    """The step redone end to end in float64."""

    loss: float
    drift: dict[str, float]  # of quantities and parameters' gradients: ‖engine - exact‖ / ‖exact‖ in u


def redo(record: Record) -> EndToEnd:
    """Forward, loss and backward from the tokens; u is the unit round-off of the compute format."""
    weights = {one.name: record.exact(f"before/{one.name}") for one in parameters(record.config.model)}
    chain = Chain(weights | record.batch())
    with np.errstate(all="ignore"):
        end = record.objective.chain(chain, record.config.model)
        loss = float(chain.values[end])
        unit = unit_roundoff(record.compute_format)
        drift = {
            link.name: _distance(record.mapped(record.place(link.name)), chain.values[link.name]) / unit
            for link in chain.links
        }
        del weights
        learned = {parameter.name for parameter in record.trained}
        for name, gradient in _gradients(chain, end):
            if name in learned:
                drift[f"grad({name})"] = _distance(record.mapped(f"fast/grad({name})"), gradient) / unit
    return EndToEnd(loss, drift)


def _gradients(chain: Chain, loss: str) -> Iterator[tuple[str, Array]]:
    """Every gradient as soon as it is complete. The chain is used up: what backward has passed is let go of."""
    uses = Counter(name for link in chain.links for name in link.inputs)
    gradients = {loss: np.ones_like(chain.values[loss])}
    chain.values.clear()
    while chain.links:
        link = chain.links.pop()
        bar = gradients.pop(link.name, None)
        bars = [] if bar is None else link.operation.backward(bar, link.saved)
        for name, part in zip_longest(link.inputs, bars):
            if part is not None:
                gradients[name] = gradients[name] + part if name in gradients else part
            uses[name] -= 1
            if not uses[name] and name in gradients:
                yield name, gradients[name]


def _distance(engine: Array, exact: Array) -> float:
    """‖engine - exact‖ / ‖exact‖ over the entries where both are finite."""
    departure, size = norm(engine, exact), norm(exact)
    if not np.isfinite(departure):
        difference = engine.astype(np.float64) - exact
        finite = np.isfinite(difference)
        departure, size = norm(difference[finite]), norm(exact[finite])
    return departure / size if size else departure
