"""The update redone from the engine's own gradients: norm, clipping, learning rate, moments, parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from limpid.maths.muon import Muon
from limpid.maths.operation import Array
from limpid.maths.rounding import bound, unit_roundoff
from limpid.maths.schedule import learning_rate, learning_rate_rounding
from limpid.maths.step import rule
from limpid.maths.update import Arrays, UpdateInput, UpdateRule, clip_scale, global_norm
from limpid.quantities import Parameter
from limpid.trace.comparison import Expected, Range, compare, compare_number
from limpid.trace.finite import all_finite, dependent
from limpid.trace.kernels import newton_schulz
from limpid.trace.record import Record
from limpid.trace.verdict import Check

REGISTER = 32
"""Bytes that PyTorch adds up side by side on a processor: eight float32 sums, each of an eighth of the squares."""


@dataclass(frozen=True)
class Update:
    """The update redone, and its checks."""

    rules: dict[str, UpdateRule]  # of each parameter
    number: int
    learning_rate: float
    grad_norm: float  # before clipping
    clip_scale: float
    checks: list[Check]

    def by_rule(self) -> list[tuple[UpdateRule, list[str]]]:
        """Every rule that took part, and the parameters that it moved."""
        distinct = dict.fromkeys(self.rules.values())
        return [(how, [name for name, its in self.rules.items() if its == how]) for how in distinct]


def redo_update(record: Record) -> Update:
    """Clipping, learning rate, moments and parameters, each from the engine's own inputs."""
    config, meta = record.config, record.meta
    learned = record.trained
    rules = {parameter.name: rule(config.update, parameter) for parameter in learned}
    rate = learning_rate(int(meta["step"]), config.run.max_steps, config.update)
    engine_norm = float(record.exact("fast/grad_norm"))
    with np.errstate(all="ignore"):
        norm, check_of_norm = _norm(record, learned, engine_norm)
        scale = math.nan if math.isnan(engine_norm) else clip_scale(engine_norm, config.update.max_grad_norm)
        checks = [
            check_of_norm,
            _rate(record, rate),
            _skipped(record, engine_norm),
        ]
        for parameter in learned:
            how = rules[parameter.name]
            if isinstance(how, Muon) and newton_schulz.is_recorded(record, parameter.name):
                gradient = scale * record.exact(f"fast/grad({parameter.name})")
                checks += newton_schulz.check_products(record, parameter.name, how, gradient)
                how = newton_schulz.along_recorded(record, parameter.name, how)
            checks += _parameter(record, parameter, how, rate, scale)
    return Update(rules, int(meta["update_number"]), rate, norm, scale, checks)


def _norm(record: Record, learned: Sequence[Parameter], engine: float) -> tuple[float, Check]:
    """The global norm. PyTorch takes the norm of every gradient, then the norm of those norms.

    n squares in `lanes` running sums: n / lanes additions in each, as many again as there are lanes to join them, and
    one rounding of each square. A root halves the relative error of what is under it and rounds once.
    """
    norms: Arrays = {}
    for one in learned:  # one at a time in memory
        norms[one.name] = np.asarray(global_norm({one.name: record.exact(f"fast/grad({one.name})")}))
    norm = global_norm(norms)
    lanes = REGISTER // np.dtype(record.parameters_format).itemsize
    longest = max(parameter.size for parameter in learned)
    of_one = (longest / lanes + lanes + 1) / 2 + 1
    of_all = (len(learned) + 1) / 2 + 1
    limit = unit_roundoff(record.parameters_format) * (of_one + of_all) * norm
    bad = [name for name, of_gradient in norms.items() if not np.isfinite(of_gradient)]
    expected = Expected(
        np.asarray(norm), np.asarray(limit), Range(record.parameters_format), np.asarray(norm * norm),
        np.asarray(True) if bad else None, f"input not finite: grad({bad[0]})" if bad else "",
    )  # fmt: skip
    return norm, compare("grad_norm", "update", np.asarray(engine), expected)


def _rate(record: Record, exact: float) -> Check:
    """The learning rate, from the step's number and the configuration alone."""
    limit = learning_rate_rounding(int(record.meta["step"]), record.config.run.max_steps, record.config.update)
    engine = float(record.meta["learning_rate"])
    return compare_number("learning_rate", "update", engine, exact, limit, Range(np.float64))


def _skipped(record: Record, engine_norm: float) -> Check:
    """Whether the step was taken: it must be skipped when a gradient is not finite, and only then."""
    taken, expected = float(bool(record.meta["updated"])), float(np.isfinite(engine_norm))
    return compare_number("updated", "update", taken, expected, unit_roundoff(np.float64), Range(np.float64))


def _parameter(record: Record, parameter: Parameter, how: UpdateRule, rate: float, scale: float) -> list[Check]:
    """Moments and value of one parameter after the update."""
    before = record.exact(f"before/{parameter.name}")
    moments: Arrays = {kind: record.exact(f"before/{kind}/{parameter.name}") for kind in how.moments}
    if not record.meta["updated"]:
        return _unmoved(record, parameter.name, before, moments)
    number = int(record.meta["update_number"])
    gradient = scale * record.exact(f"fast/grad({parameter.name})")
    inputs = [before, gradient, *moments.values()]

    def run(arrays: Sequence[Array]) -> list[Array]:
        own: Arrays = dict(zip(how.moments, arrays[2:], strict=True))
        after, memory = how.apply(UpdateInput(arrays[0], arrays[1], own, rate, number, parameter.decayed))
        return [*(memory[kind] for kind in how.moments), after]

    unknown = dependent(run, inputs)
    names = [parameter.name, f"grad({parameter.name})", *(f"{kind}({parameter.name})" for kind in how.moments)]
    bad = [name for name, array in zip(names, inputs, strict=True) if not all_finite(array)]
    bad = bad if np.isfinite(scale) else ["grad_norm"]
    *memory, after = run(inputs)
    roundings = how.rounding(UpdateInput(before, gradient, moments, rate, number, parameter.decayed))
    checks = []
    for place, (kind, moment) in enumerate(zip(how.moments, memory, strict=True)):
        doubt = None if unknown is None else unknown[place]
        checks.append(_compare(record, f"{kind}/{parameter.name}", moment, roundings[kind], bad, doubt))
    absolute, doubt = roundings.get("absolute", 0.0), None if unknown is None else unknown[-1]
    checks.append(_compare(record, parameter.name, after, roundings["parameter"], bad, doubt, absolute))
    return checks


def _unmoved(record: Record, name: str, before: Array, moments: Arrays) -> list[Check]:
    """After a step that was skipped everything is as it was, also what is not finite."""
    arrays = {f"{kind}/{name}": moment for kind, moment in moments.items()} | {name: before}
    return [
        _compare(
            record, which, array, np.zeros(array.shape), [which], None if all_finite(array) else ~np.isfinite(array)
        )
        for which, array in arrays.items()
    ]


def _compare(
    record: Record, name: str, expected: Array, rounding: Array, bad: list[str], unknown: Array | None = None,
    absolute: Array | float = 0.0,
) -> Check:  # fmt: skip
    engine = record.stored(f"after/{name}")
    limit = bound(expected, rounding, stored=engine.dtype, summed=record.parameters_format) + absolute
    kind, _, parameter = name.partition("/")
    shown = f"{kind}({parameter})" if parameter else name
    why = f"input not finite: {bad[0]}" if bad else ""
    return compare(shown, "update", engine, Expected(expected, limit, Range(engine.dtype), None, unknown, why))
