"""The whole step once more from its tokens, by the mathematics alone: how far the engine has drifted from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from limpid.maths.chain import Chain
from limpid.maths.operation import Array
from limpid.maths.rounding import unit_roundoff
from limpid.maths.update import Arrays
from limpid.quantities import parameters
from limpid.trace.record import Record


@dataclass(frozen=True)
class EndToEnd:
    """The step redone end to end in float64."""

    loss: float
    gradients: Arrays  # of every parameter
    drift: dict[str, float]  # of quantities and parameters' gradients: ‖engine - exact‖ / ‖exact‖ in u


def redo(record: Record) -> EndToEnd:
    """Forward, loss and backward from the tokens; u is the unit round-off of the compute format."""
    learned = [parameter.name for parameter in record.trained]
    weights = {one.name: record.exact(f"before/{one.name}") for one in parameters(record.config.model)}
    chain = Chain(weights | record.batch())
    with np.errstate(all="ignore"):
        loss = record.objective.chain(chain, record.config.model)
        gradients = chain.backward(loss)
        unit = unit_roundoff(record.compute_format)
        drift = {
            link.name: _distance(record.exact(record.place(link.name)), chain.values[link.name]) / unit
            for link in chain.links
        }
        for name in learned:
            drift[f"grad({name})"] = _distance(record.exact(f"fast/grad({name})"), gradients[name]) / unit
    return EndToEnd(float(chain.values[loss]), {name: gradients[name] for name in learned}, drift)


def _distance(engine: Array, exact: Array) -> float:
    """‖engine - exact‖ / ‖exact‖ over the entries where both are finite."""
    departure = engine - exact
    norm = float(np.linalg.norm(departure))
    if np.isfinite(norm):
        return _ratio(norm, np.linalg.norm(exact))
    finite = np.isfinite(departure)
    return _ratio(np.linalg.norm(departure[finite]), np.linalg.norm(exact[finite]))


def _ratio(part: Any, whole: Any) -> float:
    return float(part / whole) if whole else float(part)
