"""The entry of an operation that has no derivation of its own: which numbers went in, and which came out."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np

from limpid.maths.formula import FormulaOperation
from limpid.maths.operation import Array, Operation
from limpid.tracing.entries.entry import GRADIENT, Entry, Index, Reader, Source, merged, number, sources

TRACED, TRACED_ROW = 64, 1024
"""Of so many entries at most, of all or of one row, each is asked for its share, which takes a backward pass each."""


def plain_entry(operation: Operation, index: Index, reader: Reader) -> Entry:
    """The value, and the entries of the inputs that it moves with most: ∂y/∂x · x each.

    Of inputs in the output's shape it is always the entry at the same place, be it without a gradient.
    """
    inputs = _inputs(operation, reader)
    y, saved = operation.forward(*inputs)
    one = np.zeros(np.shape(y))
    one[index] = 1.0
    bars = operation.backward(one, saved)
    groups, names = [], _names(operation, len(inputs))
    for place, (x, bar) in enumerate(zip(inputs, bars, strict=True)):
        beside = x.shape == np.shape(y)
        shares = np.zeros(x.shape) if bar is None else bar * x
        group = sources(place, list(np.ndindex(x.shape)), shares.ravel()) if bar is not None and bar.any() else ()
        group = tuple(source for source in group if source.share and not (beside and source.index == index))
        groups.append((*([Source(place, index, float(shares[index]))] if beside else []), *group))
    strongest = merged(*groups)
    said = (f"{names[source.place]} {number(float(inputs[source.place][source.index]))}" for source in strongest)
    numbers = f"from {', '.join(said)}" if strongest else "no entry of its inputs counts here"
    return Entry(float(y[index]), f"y = {operation.name}({', '.join(names)})", numbers, strongest)


def plain_gradient(operation: Operation, place: int, index: Index, reader: Reader) -> Entry:
    """The gradient, and what each entry of the output's gradient contributed to it."""
    inputs = _inputs(operation, reader)
    y, saved = operation.forward(*inputs)
    y_bar = np.asarray(reader(GRADIENT))
    value = _entry(operation.backward(y_bar, saved), place, index)

    def share(at: Index) -> float:
        one = np.zeros(np.shape(y))
        one[at] = y_bar[at]
        return _entry(operation.backward(one, saved), place, index)

    beside = inputs[place].shape == y_bar.shape
    indices, shares = ([index], [share(index)]) if beside else ([], [])
    if not beside or shares != [value]:
        indices = _candidates(y_bar.shape, inputs[place].shape, index)
        shares = [share(at) for at in indices]
    given = tuple(one for one in sources(GRADIENT, indices, np.array(shares)) if one.share) if shares else ()
    alone = not given or [one.share for one in given] == [value]
    written = f"{value:.8g}" if alone else f"from shares {', '.join(number(one.share) for one in given)}, …"
    return Entry(value, f"x̄ = {operation.name}'(…) ȳ", written, given)


def _candidates(shape: Index, of_input: Index, index: Index) -> list[Index]:
    """Entries of an output that are asked for their share: all of a few, else those of the same row."""
    if math.prod(shape) <= TRACED:
        return list(np.ndindex(shape))
    row, alike = shape[1:], shape[:1] == of_input[:1]
    return [(index[0], *rest) for rest in np.ndindex(row)] if alike and math.prod(row) <= TRACED_ROW else []


def _names(operation: Operation, count: int) -> list[str]:
    """What the inputs of an operation are called."""
    function = operation.formula.function if isinstance(operation, FormulaOperation) else operation.forward
    named = [name for name, one in inspect.signature(function).parameters.items() if one.kind is not one.VAR_POSITIONAL]
    return [*named, *(f"x{place}" for place in range(len(named), count))][:count]


def _inputs(operation: Operation, reader: Reader) -> list[Array]:
    """Every input whole; what the signature calls ids, as integers."""
    annotations = [str(parameter.annotation) for parameter in inspect.signature(operation.forward).parameters.values()]
    count = len(operation.adjoint) if reader.inputs is None else reader.inputs
    arrays = [np.asarray(reader(place)) for place in range(count)]
    ids = [place < len(annotations) and annotations[place].startswith("Int[") for place in range(len(arrays))]
    return [x.astype(np.int64) if whole else x for x, whole in zip(arrays, ids, strict=True)]


def _entry(bars: tuple[Any, ...], place: int, index: Index) -> float:
    return 0.0 if bars[place] is None else float(bars[place][index])
