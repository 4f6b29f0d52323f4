"""Entries of lengths and magnitudes, and of what is taken as a constant."""

from __future__ import annotations

import math

import numpy as np

from limpid.maths.dora import Magnitude, RowLength
from limpid.maths.operation import Array, Constant
from limpid.tracing.entries.backward import derive_gradient
from limpid.tracing.entries.entry import (
    ALL,
    GRADIENT,
    Entry,
    Index,
    Reader,
    Source,
    factor,
    number,
    sources,
    sum_of_products,
)
from limpid.tracing.entries.forward import derive_entry


@derive_entry.register
def _constant(operation: Constant, index: Index, reader: Reader) -> Entry:
    return derive_entry(operation.inside, index, reader)


@derive_entry.register
def _row_length(operation: RowLength, index: Index, reader: Reader) -> Entry:
    (i,) = index
    row = _changed(operation, reader, i)
    value = math.sqrt(float(row @ row))
    shares = np.square(row) / value if value else row
    spots = [(i, j) for j in range(len(row))]
    return Entry(value, f"n_{i} = √(Σ_j V_{i},j²)", f"√({sum_of_products(row, row)})", sources(0, spots, shares))


@derive_gradient.register
def _row_length_back(operation: RowLength, place: int, index: Index, reader: Reader) -> Entry:
    s, bars = operation.scale, reader(GRADIENT, ALL)
    changed = _changed(operation, reader)
    length = np.sqrt(np.square(changed).sum(-1))
    direction = np.divide(changed, length[:, None], out=np.zeros_like(changed), where=length[:, None] > 0)
    if place == 0:
        i, j = index
        value = float(bars[i] * direction[i, j])
        numbers = f"{factor(bars[i])}·{factor(direction[i, j])}"
        return Entry(value, f"W̄_{i},{j} = n̄_{i} V_{i},{j} / n_{i}", numbers, (Source(GRADIENT, (i,), value),))
    if place == 1:
        k, j = index
        terms = bars * s * reader(2, ALL, k) * direction[:, j]
        symbols = f"Ā_{k},{j} = s Σ_i B_i,{k} n̄_i V_i,{j} / n_i"
        numbers = sum_of_products(bars, s * reader(2, ALL, k) * direction[:, j])
        return Entry(float(terms.sum()), symbols, numbers, sources(GRADIENT, [(i,) for i in range(len(bars))], terms))
    i, k = index
    along = s * float(direction[i] @ reader(1, k, ALL))
    symbols, value = f"B̄_{i},{k} = s n̄_{i} Σ_j V_{i},j A_{k},j / n_{i}", float(bars[i]) * along
    return Entry(value, symbols, f"{factor(bars[i])}·{factor(along)}", (Source(GRADIENT, (i,), value),))


@derive_entry.register
def _magnitude(operation: Magnitude, index: Index, reader: Reader) -> Entry:
    i = _output(index, reader)
    z, m, n = reader.one(0, *index), reader.one(1, i), reader.one(2, i)
    bias = reader.one(3, i) if len(reader.shape(3)) else None
    product = m / n * z
    found = [Source(0, index, product), Source(1, (i,), product), Source(2, (i,), -product)]
    found += [] if bias is None else [Source(3, (i,), bias)]
    numbers = f"{factor(m)} / {factor(n)}·{factor(z)}" + ("" if bias is None else f" + {factor(bias)}")
    symbols = f"y_{i} = m_{i} / n_{i} z_{i}" + ("" if bias is None else f" + b_{i}")
    return Entry(product + (bias or 0.0), symbols, numbers, tuple(found))


@derive_gradient.register
def _magnitude_back(operation: Magnitude, place: int, index: Index, reader: Reader) -> Entry:
    i = _output(index, reader) if place == 0 else index[0]
    m, n = reader.one(1, i), reader.one(2, i)
    if place == 0:
        bar = reader.one(GRADIENT, *index)
        value = m / n * bar
        numbers = f"{factor(m)} / {factor(n)}·{factor(bar)}"
        return Entry(value, f"z̄_{i} = m_{i} / n_{i} ȳ_{i}", numbers, (Source(GRADIENT, index, value),))
    shape = reader.shape(0)
    heads = shape[-1] != reader.shape(1)[0]
    own = divmod(i, shape[-1]) if heads else (i,)
    spots = [(*at, *own) for at in np.ndindex(shape[: len(shape) - len(own)])]
    key = (*[ALL] * (len(shape) - len(own)), *own)
    bars, z = reader(GRADIENT, *key).ravel(), reader(0, *key).ravel()
    if place == 3:
        return Entry(float(bars.sum()), f"b̄_{i} = Σ ȳ_{i}", number(float(bars.sum())), sources(GRADIENT, spots, bars))
    scale = 1 / n if place == 1 else -m / n**2
    symbols = f"m̄_{i} = Σ ȳ_{i} z_{i} / n_{i}" if place == 1 else f"n̄_{i} = -m_{i} / n_{i}² Σ ȳ_{i} z_{i}"
    terms = scale * bars * z
    numbers = f"{factor(scale)}·({sum_of_products(bars, z)})"
    return Entry(float(terms.sum()), symbols, numbers, sources(GRADIENT, spots, terms))


def _changed(operation: RowLength, reader: Reader, *row: int) -> Array:
    """V, or one row of it."""
    key = row or (ALL,)
    changed: Array = reader(0, *key, ALL) + operation.scale * (reader(2, *key, ALL) @ reader(1, ALL, ALL))
    return changed


def _output(index: Index, reader: Reader) -> int:
    """Which output an entry is of: heads stand side by side."""
    shape = reader.shape(0)
    return index[-1] if shape[-1] == reader.shape(1)[0] else index[-2] * shape[-1] + index[-1]
