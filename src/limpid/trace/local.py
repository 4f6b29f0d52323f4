"""Local comparison: each operation gets the engine's own inputs, so that a fault is pinned to the one that has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from limpid.maths.attention import CausalSoftmax
from limpid.maths.chain import Chain, Link
from limpid.maths.linear import Linear
from limpid.maths.operation import Array, Operation
from limpid.maths.rounding import FORMATS, bound, rounded, unit_roundoff
from limpid.trace.comparison import Expected, Range, compare, largest
from limpid.trace.finite import all_finite, dependent
from limpid.trace.record import Record
from limpid.trace.verdict import Check


class Outline(Chain):
    """A chain that only notes which operation makes what from what."""

    def apply(self, name: str, operation: Operation, *inputs: str) -> str:
        self.values[name] = np.empty(0)
        self.links.append(Link(name, operation, inputs, None))
        return name


def outline(record: Record) -> list[Link]:
    """Every operation of the recorded step, in order, without its numbers."""
    known = {name.removeprefix("before/"): np.empty(0) for name in record.names if name.startswith("before/")}
    chain = Outline({**known, **record.batch()})
    record.objective.chain(chain, record.config.model)
    return chain.links


@dataclass
class Sum:
    """The gradient of one array while its contributions come in, one per operation that used it."""

    expected: Array | float = 0.0
    rounding: Array | float = 0.0  # in u of the sums
    storage: Array | float = 0.0  # in absolute units: each contribution has a format of its own
    magnitude: Array | float = 0.0  # Σ u |contribution|, each in the format in which it is added
    count: int = 0
    unknown: Array | None = None  # entries that follow from numbers that are not finite
    why: list[str] = field(default_factory=list)  # which
    format: Any = FORMATS["fp64"]  # that of the smallest range among the contributions

    def add(self, contribution: Array, rounding: Array, storage: Array, stored: Any) -> None:
        first, unit = self.count == 0, unit_roundoff(stored)
        storage = unit * storage
        self.expected = contribution if first else self.expected + contribution
        self.rounding = rounding if first else self.rounding + rounding
        self.storage = storage if first else self.storage + storage
        self.magnitude = unit * np.abs(contribution) if first else self.magnitude + unit * np.abs(contribution)
        self.format = min(self.format, stored, key=largest)
        self.count += 1

    def doubt(self, unknown: Array | None, why: list[str]) -> None:
        """Note which entries of a contribution follow from numbers that are not finite."""
        if unknown is not None and unknown.any():
            self.unknown = unknown if self.unknown is None else self.unknown | unknown
            self.why += [name for name in why if name not in self.why]

    def bound(self, summed: Any, stored: Any) -> Array:
        """Error of every contribution, and of adding them up in the stored format."""
        of_sum = (self.count - 1) * self.magnitude
        kept = np.zeros(np.shape(self.expected))  # each contribution brings its own storage error
        return (
            bound(kept, np.asarray(self.rounding), stored=stored, summed=summed, storage=kept) + self.storage + of_sum
        )


@dataclass
class Compared:
    """One operation: what it was, and the checks of its result and of the gradients completed by it."""

    link: Link
    value: Array  # the engine's, exact
    flops: int
    forward: Check
    backward: list[Check] = field(default_factory=list)


def compare_operations(record: Record) -> Iterator[Compared]:
    """Every operation in turn, forward and backward; arrays are let go as soon as nothing needs them."""
    links = outline(record)
    uses: dict[str, int] = {}
    for link in links:
        for name in link.inputs:
            uses[name] = uses.get(name, 0) + 1
    sums: dict[str, Sum] = {}
    with np.errstate(all="ignore"):
        for link in links:
            inputs = [_input(record, link.operation, name) for name in link.inputs]
            result, saved = _compare_result(record, link, inputs)
            if f"plain/grad({link.name})" in record.names:
                _add_contributions(record, link, inputs, saved, sums)
            for name in dict.fromkeys(link.inputs):
                uses[name] -= link.inputs.count(name)
                if uses[name] == 0 and name in sums and f"plain/grad({name})" in record.names:
                    result.backward.append(_compare_gradient(record, name, sums.pop(name)))
            del inputs, saved
            yield result


def _compare_result(record: Record, link: Link, inputs: list[Array]) -> tuple[Compared, Any]:
    """The result of one operation, and what its backward pass needs."""
    operation = link.operation
    expected, saved = operation.forward(*inputs)
    engine = record.stored(f"plain/{link.name}")
    rounding = operation.rounding(*inputs)
    limit = bound(
        expected, rounding, stored=engine.dtype, summed=record.summed_format,
        storage=operation.storage(expected, *inputs),
    )  # fmt: skip
    unknown = dependent(lambda arrays: [operation.forward(*arrays)[0]], inputs)
    value = engine.astype(np.float64)
    check = compare(
        link.name, "forward", value,
        Expected(
            _masked(record, link.name, value, expected), limit, Range(engine.dtype), rounding,
            None if unknown is None else unknown[0], _why(_names_not_finite(link.inputs, inputs)),
            "" if all_finite(value) else _too_large(record, link, inputs),
        ),
    )  # fmt: skip
    return Compared(link, value, operation.flops(*inputs), check), saved


def _masked(record: Record, name: str, engine: Array, expected: Array) -> Array:
    """Scores of hidden keys may be recorded as -inf, which is what the mask makes of them: that is no fault."""
    if not name.endswith("attention.scores") or all_finite(engine):
        return expected
    block = int(name.split(".")[1])
    visible = CausalSoftmax(record.config.model.window(block)).visible(*engine.shape[-2:])
    return np.where(~visible & (engine == -np.inf), -np.inf, expected)


def _compare_gradient(record: Record, name: str, total: Sum) -> Check:
    """A gradient once every operation that used the array has added its part."""
    gradient = record.stored(f"plain/grad({name})")
    learned = f"before/{name}" in record.names
    allowed = Range(
        min(total.format, gradient.dtype, key=largest), record.loss_scale if learned else 1.0, record.loss_scale,
        not record.meta["updated"],
    )  # fmt: skip
    limit = total.bound(record.summed_format, gradient.dtype)
    unknown = total.unknown
    expected = Expected(
        np.asarray(total.expected), limit, allowed, np.asarray(total.rounding), unknown, _why(total.why)
    )
    return compare(name, "backward", gradient, expected)


def _add_contributions(record: Record, link: Link, inputs: list[Array], saved: Any, sums: dict[str, Sum]) -> None:
    operation = link.operation
    y_bar = record.exact(f"plain/grad({link.name})")
    bars = operation.backward(y_bar, saved)
    roundings = operation.backward_rounding(y_bar, saved)
    storages = operation.backward_storage(bars, y_bar, saved)
    unknown = dependent(lambda a: operation.backward(a[-1], operation.forward(*a[:-1])[1]), [*inputs, y_bar])
    why = _names_not_finite((*link.inputs, f"grad({link.name})"), [*inputs, y_bar])
    for position, name in enumerate(link.inputs):
        bar, rounding, storage = bars[position], roundings[position], storages[position]
        if bar is None or rounding is None or storage is None:
            continue
        learned = f"before/{name}" in record.names
        if learned and len(record.meta["micro_batches"]) > 1:
            storage = _of_micro_batches(record, link, inputs, y_bar, position)
        scale = record.loss_scale if learned else 1.0
        total = sums.setdefault(name, Sum())
        total.add(bar / scale, rounding / scale, storage / scale, _input_format(record, operation, name))
        total.doubt(None if unknown is None else unknown[position], why)


def _names_not_finite(names: Sequence[str], arrays: Sequence[Array]) -> list[str]:
    return [name for name, array in zip(names, arrays, strict=True) if not all_finite(array)]


def _why(names: list[str]) -> str:
    """Why entries were not checked."""
    if not names:
        return ""
    return f"input not finite: {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _of_micro_batches(record: Record, link: Link, inputs: list[Array], y_bar: Array, position: int) -> Array:
    """What is stored of a parameter's gradient: one part per micro-batch, added up."""
    operation, parts = link.operation, record.micro_batches()
    apart = len(y_bar) == parts[-1].stop  # position vectors are the same for every row
    total: Array = np.zeros(inputs[position].shape)
    for part in parts:
        own = [
            array[part] if apart and f"before/{name}" not in record.names else array
            for name, array in zip(link.inputs, inputs, strict=True)
        ]
        own_bar = y_bar[part] if apart else y_bar
        saved = operation.forward(*own)[1]
        bars = operation.backward(own_bar, saved)
        bar, stored = bars[position], operation.backward_storage(bars, own_bar, saved)[position]
        if bar is not None and stored is not None:
            total += stored + np.abs(bar)
    return total


def _input(record: Record, operation: Operation, name: str) -> Array:
    """An operation's input as the engine's had it: matrix products round theirs to the compute format."""
    for place in ("plain/", "before/", "batch/"):
        if place + name in record.names:
            array = record.exact(place + name)
            return _cast(array, record.compute_format) if isinstance(operation, Linear) else array
    raise KeyError(name)


def _cast(array: Array, dtype: Any) -> Array:
    """Rounded to a format; numbers too large for it stay as they are, and are named when a result is judged."""
    stored = rounded(array, dtype)
    return stored if all_finite(stored) else np.where(np.isfinite(stored), stored, array)


def _too_large(record: Record, link: Link, inputs: list[Array]) -> str:
    """The first input of a matrix product with numbers that the compute format cannot hold."""
    if not isinstance(link.operation, Linear):
        return ""
    limit = largest(record.compute_format)
    names = (name for name, array in zip(link.inputs, inputs, strict=True) if (np.abs(array) > limit).any())
    return next(names, "")


def _input_format(record: Record, operation: Operation, name: str) -> Any:
    """The format in which the engine handed a gradient back to this input."""
    if isinstance(operation, Linear):
        return record.compute_format
    place = "plain/" if f"plain/{name}" in record.names else "before/"
    return record.format(place + name)
