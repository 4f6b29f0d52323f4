"""The whole step once more from its tokens: drift of every quantity, the fast path beside the plain one, the update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from limpid.maths.chain import Chain
from limpid.maths.operation import Array
from limpid.maths.rounding import bound, unit_roundoff
from limpid.maths.update import Arrays, UpdateInput, UpdateRule, clip_scale, rule
from limpid.quantities import parameters
from limpid.schedule import learning_rate
from limpid.trace.compare import Agreement, agreement
from limpid.trace.record import Record

TIMES = 4
"""The fast path may err this many times as much as the plain one: same formats, other order of summing."""


@dataclass(frozen=True)
class EndToEnd:
    """The step redone end to end in float64."""

    loss: float
    drift: dict[
        str, float
    ]  # of each quantity and parameter's gradient: ‖engine - exact‖ / ‖exact‖ in u of the compute format
    fast: list[Agreement]  # loss and gradients that training really used


def redo(record: Record) -> EndToEnd:
    """Forward, loss and backward from the tokens, by the reference alone."""
    learned = [parameter.name for parameter in record.trained]
    weights = {one.name: record.exact(f"before/{one.name}") for one in parameters(record.config.model)}
    chain = Chain(weights | record.batch())
    with np.errstate(all="ignore"):
        loss = record.objective.chain(chain, record.config.model)
        gradients = chain.backward(loss)
    unit = unit_roundoff(record.compute_format)
    drift = {
        link.name: _distance(record.exact(f"plain/{link.name}"), chain.values[link.name]) / unit for link in chain.links
    }
    exact_loss = float(chain.values[loss])
    fast = [_fast_loss(record, exact_loss, unit)]
    for name in learned:
        exact = gradients[name]
        plain = record.exact(f"plain/grad({name})") - exact
        departure = record.exact(f"fast/grad({name})") - exact
        size = np.linalg.norm(exact)
        allowed = TIMES * (np.linalg.norm(plain) + unit * size) + np.finfo(np.float32).tiny
        drift[f"grad({name})"] = _ratio(np.linalg.norm(plain), size) / unit
        fast.append(_whole_array(name, departure, float(size), float(allowed)))
    return EndToEnd(exact_loss, drift, fast)


def _fast_loss(record: Record, exact: float, unit: float) -> Agreement:
    plain, fast = float(record.exact("plain/loss")), float(record.exact("fast/loss"))
    allowed = TIMES * (abs(plain - exact) + unit * abs(exact))
    return _judged("loss", "fast path", fast, exact, allowed, 1)


def _whole_array(name: str, departure: Array, size: float, allowed: float) -> Agreement:
    """A gradient judged by norms: one entry alone may round badly."""
    distance = float(np.linalg.norm(departure))
    worst = distance / allowed if math.isfinite(distance) else math.inf
    if not math.isfinite(size):
        worst = 0.0  # the mathematics itself is not finite: the local comparison names where
    return Agreement(f"grad({name})", "fast path", worst, (), distance, 0.0, allowed, departure.size)


def _judged(name: str, kind: str, engine: float, expected: float, allowed: float, entries: int) -> Agreement:
    gap = abs(engine - expected)
    worst = 0.0 if engine == expected or (math.isnan(engine) and math.isnan(expected)) else gap / allowed
    return Agreement(name, kind, math.inf if math.isnan(worst) else worst, (), engine, expected, allowed, entries)


def _distance(engine: Array, exact: Array) -> float:
    finite = np.isfinite(exact)
    return _ratio(np.linalg.norm((engine - exact)[finite]), np.linalg.norm(exact[finite]))


def _ratio(part: Any, whole: Any) -> float:
    return float(part / whole) if whole else float(part)


@dataclass(frozen=True)
class Update:
    """The update redone from the engine's own gradients."""

    rules: dict[str, UpdateRule]  # of each parameter
    number: int
    learning_rate: float
    grad_norm: float  # before clipping
    clip_scale: float
    agreements: list[Agreement]

    def by_rule(self) -> list[tuple[UpdateRule, list[str]]]:
        """Every rule that took part, and the parameters that it moved."""
        distinct = dict.fromkeys(self.rules.values())
        return [(how, [name for name, its in self.rules.items() if its == how]) for how in distinct]


def redo_update(record: Record) -> Update:
    """Clipping, learning rate, moments and parameters, each from the engine's own inputs."""
    config, meta = record.config, record.meta
    number = int(meta["update_number"])
    rate = learning_rate(int(meta["step"]), config.run.max_steps, config.update)
    learned = record.trained
    rules = {parameter.name: rule(config.update, parameter) for parameter in learned}
    norm, engine_norm = _global_norm(record), float(record.exact("fast/grad_norm"))
    longest = max(parameter.size for parameter in learned)
    unit = unit_roundoff(record.parameters_format)
    checks = [
        _judged("grad_norm", "update", engine_norm, norm, unit * (longest / 16 + 64) * norm, 1),
        _judged("learning_rate", "update", float(meta["learning_rate"]), rate, 1e-12 * abs(rate) + 1e-300, 1),
    ]
    scale = clip_scale(engine_norm, config.update.max_grad_norm)
    for parameter in learned:
        before = record.exact(f"before/{parameter.name}")
        if not meta["updated"]:
            checks.append(_compared(record, parameter.name, before, np.zeros(before.shape)))
            continue
        how = rules[parameter.name]
        with np.errstate(all="ignore"):
            gradient = scale * record.exact(f"fast/grad({parameter.name})")
            moments: Arrays = {kind: record.exact(f"before/{kind}/{parameter.name}") for kind in how.moments}
            given = UpdateInput(before, gradient, moments, rate, number, parameter.decayed)
            (after, memory), roundings = how.apply(given), how.rounding(given)
        for kind, moment in memory.items():
            checks.append(_compared(record, f"{kind}/{parameter.name}", moment, roundings[kind]))
        absolute = roundings.get("absolute", 0.0)
        checks.append(_compared(record, parameter.name, after, roundings["parameter"], absolute))
    return Update(rules, number, rate, norm, scale, checks)


def _compared(record: Record, name: str, expected: Array, rounding: Array, absolute: Array | float = 0.0) -> Agreement:
    engine = record.stored(f"after/{name}")
    limit = bound(expected, rounding, stored=engine.dtype, summed=record.parameters_format) + absolute
    kind, _, parameter = name.partition("/")
    shown = f"{kind}({parameter})" if parameter else name
    return agreement(shown, "update", engine, expected, limit)


def _global_norm(record: Record) -> float:
    total = 0.0
    for parameter in record.trained:
        gradient = record.exact(f"fast/grad({parameter.name})").ravel()
        total += float(gradient @ gradient)
    return math.sqrt(total)
