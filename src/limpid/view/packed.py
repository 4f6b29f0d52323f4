"""Every entry of a small step explained, packed for one file: what arrays hold already is referred to.

A number of a derivation is most often an entry of an array, or the product of two. Such a number is kept as a place,
and the page reads it from the array: the same float64 numbers give the same products there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from limpid.maths.operation import Array
from limpid.maths.step import rule
from limpid.maths.update import AdamW
from limpid.quantities import trained_parameters
from limpid.tracing import Trace, equations
from limpid.tracing.entries import Entry, derive_entry, derive_gradient
from limpid.tracing.entries.entry import Index
from limpid.tracing.explain import reader
from limpid.tracing.recorded import Recorded

LARGEST = 20_000
"""Entries of a step that is packed whole; what is larger has the ways of its strongest entries only."""
LITERAL = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?")
HOLE = 0xE000
"""Letters from here stand for numbers of a derivation: the value of source i, and its factor, in turns."""


def fits(trace: Trace) -> bool:
    """Whether a step is small, and exact enough that the page can redo its products and its update."""
    record = trace.record
    exact = record.compute_format == np.float64 and record.loss_scale == 1 and record.config.tune is None
    moved = all(type(rule(record.config.update, one)) is AdamW for one in trained_parameters(record.config))
    sizes = sum(int(np.prod(trace.record.shape(trace.tensor(name)[1]))) for name in trace.names())
    first = record.meta["update_number"] == 1  # nothing is remembered of earlier gradients
    return (
        exact
        and first
        and moved
        and not record.config.update.ema_decay
        and sizes <= LARGEST
        and trace.step.verdict.agrees
    )


@dataclass
class Column:
    """The derivations of every entry of one array by one operation."""

    shapes: Sequence[Index]  # of the sources' arrays, by place; the gradient's is the last
    symbols: list[str] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # place, then flat index, of each source
    shares: list[int] = field(default_factory=list)  # what each source's factor is: see Factors
    apart: list[float] = field(default_factory=list)  # shares that are no product of two entries

    def add(self, entry: Entry, read: Any, factors: Factors) -> None:
        """Append one entry."""
        holes: dict[str, str] = {}
        for number, source in enumerate(entry.sources):
            value = read.one(source.place, *source.index)
            self.places += [source.place, int(np.ravel_multi_index(source.index, self.shapes[source.place]))]
            found = factors.find(value, source.share)
            self.shares.append(-1 if found is None else found)
            if found is None:
                self.apart.append(source.share)
            holes.setdefault(f"{value:.6g}", chr(HOLE + 2 * number))
            if value:
                holes.setdefault(f"{source.share / value:.6g}", chr(HOLE + 2 * number + 1))
        self.counts.append(len(entry.sources))
        self.symbols.append(entry.symbols)
        self.numbers.append(LITERAL.sub(lambda found: holes.get(found[0], found[0]), entry.numbers))
        self.values.append(entry.value)

    def document(self) -> dict[str, Any]:
        """The text of it."""
        return {"symbols": self.symbols, "numbers": self.numbers}

    def tensors(self, name: str) -> Iterator[tuple[str, Array]]:
        """The numbers of it."""
        yield f"{name}/value", np.array(self.values, np.float64)
        yield f"{name}/count", np.array(self.counts, np.uint8)
        yield f"{name}/place", np.array(self.places, np.int32)
        yield f"{name}/share", np.array(self.shares, np.int32)
        yield f"{name}/apart", np.array(self.apart, np.float64)


class Factors:
    """Which number times an entry gives a share: 1, or an entry of any array, or its negative."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.pool = np.concatenate([np.ones(1), *(array.ravel() for array in arrays)])
        both = np.concatenate([self.pool, -self.pool])
        self.order = np.argsort(both, kind="stable")
        self.sorted = both[self.order]

    def find(self, value: float, share: float) -> int | None:
        """Twice the place in the pool, plus 1 for its negative; None where no product is the share to the last bit."""
        if not value:
            return None
        at = int(np.searchsorted(self.sorted, share / value))
        for near in range(max(0, at - 2), min(len(self.sorted), at + 3)):
            if self.sorted[near] * value == share:
                place = int(self.order[near])
                size = len(self.pool)
                return 2 * (place % size) + (place >= size)
        return None


def packed(
    trace: Trace, values: dict[str, Array], gradients: dict[str, Array]
) -> tuple[dict[str, Any], dict[str, Array]]:
    """How every entry was made and what was passed back to it: as text, and as numbers.

    `values` and `gradients` are the arrays that the page has, in the order of the pool.
    """
    step = trace.entries
    factors = Factors([*values.values(), *gradients.values()])
    texts: dict[str, Any] = {}
    tensors: dict[str, Array] = {}
    for name, array in values.items():
        if array.dtype.kind == "i":
            continue
        columns = dict(_columns(step, name, array, gradients, factors))
        texts[name] = {where: column.document() for where, column in columns.items()}
        for where, column in columns.items():
            tensors |= dict(column.tensors(f"{where}/{name}"))
    return texts, tensors


def _columns(
    step: Recorded, name: str, array: Array, gradients: dict[str, Array], factors: Factors
) -> Iterator[tuple[str, Column]]:
    """How the entries of an array were made, and what each operation that used it passed back."""
    every = list(np.ndindex(*array.shape))
    for number, link in enumerate(step.links):
        shapes = [step.value(used).shape for used in link.inputs]
        read = reader(step, link)
        if link.name == name:
            column = Column(shapes)
            for index in every:
                column.add(derive_entry(link.operation, index, read), read, factors)
            yield "made", column
        for place, used in enumerate(link.inputs):
            if used == name and name in gradients and link.name in gradients:
                column = Column([*shapes, step.value(link.name).shape])
                for index in every:
                    column.add(derive_gradient(link.operation, place, index, read), read, factors)
                yield f"passed {number} {place}", column


def links(trace: Trace) -> list[dict[str, Any]]:
    """Every operation: what it made of what, its equation, and those of what it passes back."""
    step = trace.entries
    found = []
    for link in step.links:
        shapes = [step.value(name).shape for name in link.inputs]
        found.append(
            {
                "name": link.name,
                "operation": link.operation.name,
                "inputs": list(link.inputs),
                "equation": equations.forward(link.operation, link.inputs, shapes),
                "adjoint": list(equations.backward(link.operation, link.inputs, shapes)),
            }
        )
    return found


def update(trace: Trace) -> dict[str, Any]:
    """AdamW's hyperparameters and lines, with the slots that the page fills."""
    how = next(rule(trace.record.config.update, one) for one in trained_parameters(trace.record.config))
    assert isinstance(how, AdamW)
    return {
        "lines": list(how.lines), "beta1": how.beta1, "beta2": how.beta2, "eps": how.eps,
        "weight_decay": how.weight_decay, "rate": trace.record.meta["learning_rate"],
        "t": trace.record.meta["update_number"], "norm": float(trace.record.exact("fast/grad_norm")),
        "max_grad_norm": trace.record.config.update.max_grad_norm,
    }  # fmt: skip
