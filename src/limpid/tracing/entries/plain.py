"""The entry of an operation that has no derivation of its own: which numbers went in, and which came out."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from limpid.maths.operation import Array, Operation
from limpid.tracing.entries.entry import GRADIENT, Entry, Index, Reader, factor, merged, number, sources

TRACED = 64
"""Of so many entries at most each is asked for its share, which takes a backward pass each."""


def plain_entry(operation: Operation, index: Index, reader: Reader) -> Entry:
    """The value, and the entries of the inputs that it moves with most: ∂y/∂x · x each."""
    inputs = _inputs(operation, reader)
    y, saved = operation.forward(*inputs)
    one = np.zeros(np.shape(y))
    one[index] = 1.0
    bars = operation.backward(one, saved)
    groups = [
        sources(place, list(np.ndindex(x.shape)), (bar * x).ravel())
        for place, (x, bar) in enumerate(zip(inputs, bars, strict=True))
        if bar is not None and bar.any()
    ]
    strongest = tuple(source for source in merged(*groups) if source.share)
    given = ", ".join(factor(float(inputs[source.place][source.index])) for source in strongest)
    return Entry(float(y[index]), f"y = {operation.name}(…)", f"from {given}, …", strongest)


def plain_gradient(operation: Operation, place: int, index: Index, reader: Reader) -> Entry:
    """The gradient, and what each entry of the output's gradient contributed to it."""
    inputs = _inputs(operation, reader)
    y, saved = operation.forward(*inputs)
    y_bar = np.asarray(reader(GRADIENT))
    shares, indices = [], list(np.ndindex(y_bar.shape))
    for at in indices if len(indices) <= TRACED else []:
        one = np.zeros(np.shape(y))
        one[at] = y_bar[at]
        shares.append(_entry(operation.backward(one, saved), place, index))
    value = _entry(operation.backward(y_bar, saved), place, index)
    given = sources(GRADIENT, indices, np.array(shares)) if shares else ()
    written = ", ".join(f"{number(source.share)}" for source in given)
    return Entry(value, f"x̄ = {operation.name}'(…) ȳ", f"from shares {written}, …", given)


def _inputs(operation: Operation, reader: Reader) -> list[Array]:
    """Every input whole; what the signature calls ids, as integers."""
    annotations = [str(parameter.annotation) for parameter in inspect.signature(operation.forward).parameters.values()]
    count = len(operation.adjoint) if reader.inputs is None else reader.inputs
    arrays = [np.asarray(reader(place)) for place in range(count)]
    ids = [place < len(annotations) and annotations[place].startswith("Int[") for place in range(len(arrays))]
    return [x.astype(np.int64) if whole else x for x, whole in zip(arrays, ids, strict=True)]


def _entry(bars: tuple[Any, ...], place: int, index: Index) -> float:
    return 0.0 if bars[place] is None else float(bars[place][index])
