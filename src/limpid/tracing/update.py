"""The update redone from the engine's own gradients: norm, clipping, learning rate, moments, parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from limpid.maths.average import average_rounding, weight_average
from limpid.maths.muon import Muon
from limpid.maths.operation import Array
from limpid.maths.rounding import bound, smallest_normal, unit_roundoff
from limpid.maths.schedule import learning_rate, learning_rate_rounding
from limpid.maths.step import rule
from limpid.maths.update import Arrays, EntryByEntry, UpdateInput, UpdateRule, clip_scale, global_norm, norm_rounding
from limpid.quantities import Parameter
from limpid.tracing.comparison import Expected, Range, Worst, checked, compare, compare_number, worst_entry
from limpid.tracing.finite import all_finite, dependent
from limpid.tracing.kernels import newton_schulz
from limpid.tracing.parts import flat, parts
from limpid.tracing.record import Record
from limpid.tracing.verdict import Check, array_name


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
            checks += Moved(record, parameter, how, rate, scale).checks()
            checks += [_averaged(record, parameter.name)] if config.update.ema_decay else []
    return Update(rules, int(meta["update_number"]), rate, norm, scale, checks)


def _norm(record: Record, learned: Sequence[Parameter], engine: float) -> tuple[float, Check]:
    """The global norm of the engine's gradients, and its check."""
    norms: Arrays = {}
    for one in learned:  # one at a time in memory
        norms[one.name] = np.asarray(global_norm({one.name: record.exact(f"fast/grad({one.name})")}))
    norm = global_norm(norms)
    rounding = norm_rounding([one.size for one in learned], np.dtype(record.parameters_format).itemsize)
    limit = unit_roundoff(record.parameters_format) * rounding * norm
    bad = [name for name, of_gradient in norms.items() if not np.isfinite(of_gradient)]
    expected = Expected(
        np.asarray(norm), np.asarray(limit), Range(record.parameters_format), None, lambda: np.asarray(norm * norm),
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


@dataclass(frozen=True)
class Moved:
    """One parameter and its moments, moved by its rule once more and compared."""

    record: Record
    parameter: Parameter
    how: UpdateRule
    rate: float
    scale: float  # of clipping

    @property
    def results(self) -> tuple[str, ...]:
        """What the rule makes, as the record names it."""
        name = self.parameter.name
        return (*(f"{kind}/{name}" for kind in self.how.moments), name)

    def checks(self) -> list[Check]:
        """The moments, then the parameter."""
        if not self.record.meta["updated"]:
            return [_unmoved(self.record, name) for name in self.results]
        return self._in_parts() or self._whole()

    def expected(self) -> dict[str, Expected]:
        """The moments and the parameter after the update, by the name that the record has for each."""
        x = self._input([array.astype(np.float64) for array in self._mapped()])
        return dict(zip(self.results, self._expected(x), strict=True))

    def _in_parts(self) -> list[Check] | None:
        """A rule that moves each entry by itself is redone part by part; None when a number is not finite."""
        if not isinstance(self.how, EntryByEntry):
            return None
        arrays = [flat(array) for array in self._mapped()]
        engines = [flat(self.record.mapped(f"after/{name}")) for name in self.results]
        worst: list[Worst | None] = [None] * len(engines)
        for part in parts(self.parameter.size):
            expected = self._expected(self._input([array[part].astype(np.float64) for array in arrays]))
            for place, (engine, one) in enumerate(zip(engines, expected, strict=True)):
                worst[place] = worst_entry(engine[part], one, worst[place], part.start)
                if worst[place] is None:
                    return None
        shape = self.parameter.shape
        return [
            checked(array_name(name), "update", shape, one)
            for name, one in zip(self.results, worst, strict=True)
            if one
        ]

    def _whole(self) -> list[Check]:
        """A rule of whole matrices, or numbers that are not finite."""
        x = self._input([array.astype(np.float64) for array in self._mapped()])
        inputs = [x.parameter, x.gradient, *x.moments.values()]
        unknown = dependent(lambda arrays: self._moved(self._input(arrays, clipped=True)), inputs)
        doubts = [None] * len(self.results) if unknown is None else unknown
        name = self.parameter.name
        names = [name, f"grad({name})", *(f"{kind}({name})" for kind in self.how.moments)]
        bad = [name for name, array in zip(names, inputs, strict=True) if not all_finite(array)]
        bad = bad if np.isfinite(self.scale) else ["grad_norm"]
        why = f"input not finite: {bad[0]}" if bad else ""
        return [
            compare(
                array_name(name), "update", self.record.stored(f"after/{name}"), replace(one, unknown=doubt, why=why)
            )
            for name, one, doubt in zip(self.results, self._expected(x), doubts, strict=True)
        ]

    def _mapped(self) -> list[Array]:
        """The parameter, its gradient and its moments before the step."""
        name = self.parameter.name
        places = [f"before/{name}", f"fast/grad({name})", *(f"before/{kind}/{name}" for kind in self.how.moments)]
        return [self.record.mapped(place) for place in places]

    def _input(self, arrays: Sequence[Array], *, clipped: bool = False) -> UpdateInput:
        before, gradient, *memory = arrays
        moments: Arrays = dict(zip(self.how.moments, memory, strict=True))
        gradient = gradient if clipped else self.scale * gradient
        number = int(self.record.meta["update_number"])
        smallest = smallest_normal(self.record.parameters_format)
        return UpdateInput(before, gradient, moments, self.rate, number, self.parameter.decayed, smallest)

    def _moved(self, x: UpdateInput) -> list[Array]:
        after, memory = self.how.apply(x)
        return [*(memory[kind] for kind in self.how.moments), after]

    def _expected(self, x: UpdateInput) -> list[Expected]:
        """The moments and the parameter after the update, each with its bound."""
        roundings, found = self.how.rounding(x), []
        for name, key, value in zip(self.results, (*self.how.moments, "parameter"), self._moved(x), strict=True):
            stored = self.record.format(f"after/{name}")
            reach = bound(value, roundings[key], stored=stored, summed=self.record.parameters_format)
            if key == "parameter":
                reach = reach + roundings.get("absolute", 0.0)
            found.append(Expected(value, reach, Range(stored)))
        return found


def _averaged(record: Record, name: str) -> Check:
    """The moving average of a parameter, from the engine's own average before and its own parameter after."""
    if not record.meta["updated"]:
        return _unmoved(record, f"ema/{name}")
    decay, number = record.config.update.ema_decay, int(record.meta["update_number"])
    before, after = record.exact(f"before/ema/{name}"), record.exact(f"after/{name}")
    engine = record.stored(f"after/ema/{name}")
    value = weight_average.function(before, after, decay, number)
    reach = bound(value, average_rounding(before, after, decay, number), stored=engine.dtype, summed=engine.dtype)
    unknown = None if all_finite(value) else ~np.isfinite(value)
    why = "" if unknown is None else f"input not finite: {name}"
    expected = Expected(value, reach, Range(engine.dtype), unknown=unknown, why=why)
    return compare(array_name(f"ema/{name}"), "update", engine, expected)


def _unmoved(record: Record, name: str) -> Check:
    """After a step that was skipped everything is as it was, also what is not finite."""
    before, after = record.exact(f"before/{name}"), record.stored(f"after/{name}")
    reach = bound(before, np.zeros(before.shape), stored=after.dtype, summed=record.parameters_format)
    unknown = None if all_finite(before) else ~np.isfinite(before)
    expected = Expected(before, reach, Range(after.dtype), unknown=unknown, why=f"input not finite: {name}")
    return compare(array_name(name), "update", after, expected)
