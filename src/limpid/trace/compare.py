"""Local comparison: each operation gets the engine's own inputs, so that a fault is pinned to the one that has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from limpid.maths.chain import Chain, Link
from limpid.maths.linear import Linear
from limpid.maths.operation import Array, Operation
from limpid.maths.rounding import bound, rounded, unit_roundoff
from limpid.trace.record import Record


@dataclass(frozen=True)
class Agreement:
    """How far the engine's numbers lie from the mathematics, in units of what rounding allows."""

    name: str
    kind: str  # forward, backward, fast path, update
    worst: float  # largest |engine - expected| / bound; above 1 is not rounding
    index: tuple[int, ...]  # of that entry
    engine: float
    expected: float
    bound: float
    entries: int

    @property
    def holds(self) -> bool:
        return self.worst <= 1.0


def agreement(name: str, kind: str, engine: Array, expected: Array, limit: Array) -> Agreement:
    """Compare entry by entry. Not a number agrees with not a number; infinity with what the format cannot hold."""
    engine_exact = engine.astype(np.float64)
    largest = float(np.finfo(np.float64).max) if engine.dtype == np.float64 else _largest(engine.dtype)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        ratio = np.abs(engine_exact - expected) / limit
        overflown = (
            np.isinf(engine_exact)
            & (np.abs(expected) + limit >= largest)
            & (np.sign(engine_exact) == np.sign(expected))
        )
    ratio = np.where((engine_exact == expected) | overflown | (np.isnan(engine_exact) & np.isnan(expected)), 0.0, ratio)
    ratio = np.where(np.isnan(ratio), np.inf, ratio)
    if ratio.size == 0:
        return Agreement(name, kind, 0.0, (), 0.0, 0.0, 0.0, 0)
    at = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    index = tuple(int(i) for i in at)
    limit = np.broadcast_to(limit, ratio.shape)
    there = float(np.broadcast_to(expected, ratio.shape)[at])
    return Agreement(name, kind, float(ratio[at]), index, float(engine_exact[at]), there, float(limit[at]), ratio.size)


def _largest(dtype: Any) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).max)


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

    def add(self, contribution: Array, rounding: Array, storage: Array, unit: float) -> None:
        first = self.count == 0
        self.expected = contribution if first else self.expected + contribution
        self.rounding = rounding if first else self.rounding + rounding
        self.storage = storage if first else self.storage + storage
        self.magnitude = unit * np.abs(contribution) if first else self.magnitude + unit * np.abs(contribution)
        self.count += 1

    def bound(self, summed: Any, stored: Any) -> Array:
        """Error of every contribution, and of adding them up in the stored format."""
        of_sum = (self.count - 1) * self.magnitude
        kept = np.zeros(np.shape(self.expected))  # each contribution brings its own storage error
        return (
            bound(kept, np.asarray(self.rounding), stored=stored, summed=summed, storage=kept) + self.storage + of_sum
        )


@dataclass
class Compared:
    """One operation: what it was, and how well the engine agrees on its result and on gradients completed by it."""

    link: Link
    value: Array  # the engine's, exact
    flops: int
    forward: Agreement
    backward: list[Agreement] = field(default_factory=list)


def compare(record: Record) -> Iterator[Compared]:
    """Every operation in turn, forward and backward; arrays are let go as soon as nothing needs them."""
    links = outline(record)
    uses: dict[str, int] = {}
    for link in links:
        for name in link.inputs:
            uses[name] = uses.get(name, 0) + 1
    sums: dict[str, Sum] = {}
    for link in links:
        yield _compare_one(record, link, uses, sums)


def _compare_one(record: Record, link: Link, uses: dict[str, int], sums: dict[str, Sum]) -> Compared:
    operation, summed = link.operation, record.summed_format
    inputs = [_input(record, operation, name) for name in link.inputs]
    with np.errstate(all="ignore"):
        expected, saved = operation.forward(*inputs)
        engine = record.stored(f"plain/{link.name}")
        limit = bound(expected, operation.rounding(*inputs), stored=engine.dtype, summed=summed,
                      storage=operation.storage(expected, *inputs))  # fmt: skip
        result = Compared(
            link,
            engine.astype(np.float64),
            operation.flops(*inputs),
            agreement(link.name, "forward", engine, expected, limit),
        )
        if f"plain/grad({link.name})" in record.names:
            _add_contributions(record, link, inputs, saved, sums)
        for name in dict.fromkeys(link.inputs):
            uses[name] -= link.inputs.count(name)
            if uses[name] == 0 and name in sums and f"plain/grad({name})" in record.names:
                gradient = record.stored(f"plain/grad({name})")
                total = sums.pop(name)
                limit = total.bound(summed, gradient.dtype)
                result.backward.append(agreement(name, "backward", gradient, np.asarray(total.expected), limit))
    return result


def _add_contributions(record: Record, link: Link, inputs: list[Array], saved: Any, sums: dict[str, Sum]) -> None:
    operation = link.operation
    y_bar = record.exact(f"plain/grad({link.name})")
    bars = operation.backward(y_bar, saved)
    roundings = operation.backward_rounding(y_bar, saved)
    storages = operation.backward_storage(bars, y_bar, saved)
    for position, name in enumerate(link.inputs):
        bar, rounding, storage = bars[position], roundings[position], storages[position]
        if bar is None or rounding is None or storage is None:
            continue
        learned = f"before/{name}" in record.names
        if learned and len(record.meta["micro_batches"]) > 1:
            storage = _of_micro_batches(record, link, inputs, y_bar, position)
        scale = record.loss_scale if learned else 1.0
        unit = unit_roundoff(_input_format(record, operation, name))
        sums.setdefault(name, Sum()).add(bar / scale, rounding / scale, unit * storage / scale, unit)


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
            return rounded(array, record.compute_format) if isinstance(operation, Linear) else array
    raise KeyError(name)


def _input_format(record: Record, operation: Operation, name: str) -> Any:
    """The format in which the engine handed a gradient back to this input."""
    if isinstance(operation, Linear):
        return record.compute_format
    place = "plain/" if f"plain/{name}" in record.names else "before/"
    return record.format(place + name)
