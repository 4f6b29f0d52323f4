"""How one entry of each operation's output was made."""

from __future__ import annotations

import math
from functools import singledispatch

import numpy as np

from limpid.maths.activation import GELU, Activation, GELUTanh, ReLU, Sigmoid, SiLU, SquaredReLU, Tanh
from limpid.maths.attention import CausalSoftmax, Mix, Scores
from limpid.maths.dropout import Dropout
from limpid.maths.embedding import Embedding, LearnedPositions, Rotary, SinusoidalPositions
from limpid.maths.linear import Add, AddScaled, Linear
from limpid.maths.loss import LogSoftmax, NegativeLogLikelihood
from limpid.maths.mlp import Gated
from limpid.maths.norm import BatchNorm, LayerNorm, RMSNorm
from limpid.maths.operation import Array, Operation
from limpid.tracing.entries.entry import (
    ALL,
    Entry,
    Index,
    Reader,
    Source,
    factor,
    merged,
    number,
    sources,
    strongest,
    sum_of,
    sum_of_products,
)
from limpid.tracing.entries.plain import plain_entry
from limpid.tracing.mask import mask_of


@singledispatch
def derive_entry(operation: Operation, index: Index, reader: Reader) -> Entry:
    """How the entry `index` of the output follows from entries of the inputs."""
    return plain_entry(operation, index, reader)


@derive_entry.register
def _embedding(operation: Embedding, index: Index, reader: Reader) -> Entry:
    *at, i = index
    token = int(reader.one(0, *at))
    value = reader.one(1, token, i)
    return Entry(value, "y_t = E[w_t]", f"E[{token}, {i}] = {number(value)}", (Source(1, (token, i), value),))


@derive_entry.register
def _learned_positions(operation: LearnedPositions, index: Index, reader: Reader) -> Entry:
    value = reader.one(0, *index)
    return Entry(value, "y_t = P[t]", f"P[{index[0]}, {index[1]}] = {number(value)}", (Source(0, index, value),))


@derive_entry.register
def _sinusoidal(operation: SinusoidalPositions, index: Index, reader: Reader) -> Entry:
    t, i = index
    angle = t * operation.base ** (-(i - i % 2) / operation.d_model)
    name, value = ("sin", math.sin(angle)) if i % 2 == 0 else ("cos", math.cos(angle))
    symbols = f"y = {name}(t · b^(-{i - i % 2}/d))"
    return Entry(value, symbols, f"{name}({t} · {operation.base:g}^(-{i - i % 2}/{operation.d_model}))", ())


@derive_entry.register
def _rotary(operation: Rotary, index: Index, reader: Reader) -> Entry:
    i, other, sign, cos, sin = turn(operation, index, reader.shape(0)[-1])
    x, y = reader.one(0, *index), reader.one(0, *index[:-1], other)
    value = x * cos + sign * y * sin
    symbols = f"y_{i} = x_{i} cos tθ {'-' if sign < 0 else '+'} x_{other} sin tθ"
    numbers = f"{factor(x)}·{factor(cos)} {'-' if sign < 0 else '+'} {factor(y)}·{factor(sin)}"
    found = merged((Source(0, index, x * cos),), (Source(0, (*index[:-1], other), sign * y * sin),))
    return Entry(value, symbols, numbers, found)


def turn(operation: Rotary, index: Index, d_head: int) -> tuple[int, int, int, float, float]:
    """This feature, its partner, the sign of the partner's sine, cosine and sine of the angle, scaled."""
    position, i = index[1], index[-1]
    if operation.layout == "half":
        pair, first = i % (d_head // 2), i < d_head // 2
        other = i + d_head // 2 if first else i - d_head // 2
    else:
        pair, first = i // 2, i % 2 == 0
        other = i + 1 if first else i - 1
    angle = position * float(operation.frequencies(d_head)[pair])
    scale = operation.scale()
    return i, other, -1 if first else 1, scale * math.cos(angle), scale * math.sin(angle)


@derive_entry.register
def _add(operation: Add, index: Index, reader: Reader) -> Entry:
    other = narrowed(index, reader.shape(1))
    mine = narrowed(index, reader.shape(0))
    x, y = reader.one(0, *mine), reader.one(1, *other)
    return Entry(
        x + y, "z = x + y", f"{factor(x)} + {factor(y)}", merged((Source(0, mine, x),), (Source(1, other, y),))
    )


@derive_entry.register
def _add_scaled(operation: AddScaled, index: Index, reader: Reader) -> Entry:
    x, y, s = reader.one(0, *index), reader.one(1, *index), operation.scale
    found = merged((Source(0, index, x),), (Source(1, index, s * y),))
    return Entry(x + s * y, "z = x + s y", f"{factor(x)} + {factor(s)}·{factor(y)}", found)


def narrowed(index: Index, shape: Index) -> Index:
    """The entry of a smaller array that stands at `index` of the one it was repeated to."""
    own = index[len(index) - len(shape) :]
    return tuple(0 if size == 1 else i for i, size in zip(own, shape, strict=True))


@derive_entry.register
def _linear(operation: Linear, index: Index, reader: Reader) -> Entry:
    row, at = row_of(operation, index, reader)
    x, w = inputs_of(operation, at, reader).ravel(), reader(1, row, ALL)
    bias = reader.one(2, row) if len(reader.shape(2)) else None
    value = float(w @ x) + (bias or 0.0)
    numbers = sum_of_products(w, x) + ("" if bias is None else f" + {factor(bias)}")
    terms = w * x
    found = tuple(
        source
        for j in strongest(terms)
        for source in (
            Source(0, (*at, *feature(operation, int(j), reader)), float(terms[j])),
            Source(1, (row, int(j)), float(terms[j])),
        )
    )
    return Entry(value, f"y_{row} = Σ_j W_{row},j x_j" + ("" if bias is None else f" + b_{row}"), numbers, found)


def row_of(operation: Linear, index: Index, reader: Reader) -> tuple[int, Index]:
    """The row of the weight that made an output entry, and the vector it was applied to."""
    if operation.heads_out is None:
        return index[-1], index[:-1]
    width = reader.shape(1)[0] // operation.heads_out
    return index[-2] * width + index[-1], index[:-2]


def inputs_of(operation: Linear, at: Index, reader: Reader) -> Array:
    return reader(0, *at, ALL) if operation.heads_in is None else reader(0, *at, ALL, ALL)


def feature(operation: Linear, j: int, reader: Reader) -> Index:
    """Where column j of the weight reads its input."""
    if operation.heads_in is None:
        return (j,)
    width = reader.shape(0)[-1]
    return (j // width, j % width)


@derive_entry.register
def _rms_norm(operation: RMSNorm, index: Index, reader: Reader) -> Entry:
    x, gain = reader(0, *index[:-1], ALL), reader.one(1, index[-1])
    r = math.sqrt(float(np.square(x).mean()) + operation.eps)
    own = float(x[index[-1]])
    value = gain * own / r
    numbers = f"{factor(gain)} · {factor(own)} / √({number(float(np.square(x).mean()))} + {operation.eps:g})"
    return Entry(
        value, "y_i = γ_i x_i / √(mean x² + ε)", numbers, (Source(0, index, value), Source(1, index[-1:], value))
    )


@derive_entry.register
def _layer_norm(operation: LayerNorm, index: Index, reader: Reader) -> Entry:
    x, gain, offset = reader(0, *index[:-1], ALL), reader.one(1, index[-1]), reader.one(2, index[-1])
    return _normalised(
        index, (float(x[index[-1]]), float(x.mean()), float(x.var()), operation.eps), gain, offset,
        "y_i = γ_i (x_i - μ) / √(σ² + ε) + β_i",
    )  # fmt: skip


@derive_entry.register
def _batch_norm(operation: BatchNorm, index: Index, reader: Reader) -> Entry:
    x, gain, offset = reader(0, ALL, index[-1]), reader.one(1, index[-1]), reader.one(2, index[-1])
    running = len(reader.shape(3)) > 0
    mean = reader.one(3, index[-1]) if running else float(x.mean())
    variance = reader.one(4, index[-1]) if running else float(x.var())
    return _normalised(
        index, (float(x[index[0]]), mean, variance, operation.eps), gain, offset,
        "y_ni = γ_i (x_ni - μ_i) / √(σ_i² + ε) + β_i",
    )  # fmt: skip


def _normalised(
    index: Index, numbers: tuple[float, float, float, float], gain: float, offset: float, symbols: str
) -> Entry:
    """γ (x - μ) / √(σ² + ε) + β from x, μ, σ² and ε."""
    own, mean, variance, eps = numbers
    scaled = gain * (own - mean) / math.sqrt(variance + eps)
    below = f"√({number(variance)} + {eps:g})"
    written = f"{factor(gain)} · ({number(own)} - {factor(mean)}) / {below} + {factor(offset)}"
    found = merged((Source(0, index, scaled), Source(1, index[-1:], scaled)), (Source(2, index[-1:], offset),))
    return Entry(scaled + offset, symbols, written, found)


@derive_entry.register
def _scores(operation: Scores, index: Index, reader: Reader) -> Entry:
    batch, head, i, j = index
    group = shared(head, reader)
    q, k = reader(0, batch, i, head, ALL), reader(1, batch, j, group, ALL)
    terms = operation.scale * q * k
    found = tuple(
        source
        for f in strongest(terms)
        for source in (
            Source(0, (batch, i, head, int(f)), float(terms[f])),
            Source(1, (batch, j, group, int(f)), float(terms[f])),
        )
    )
    numbers = f"{number(operation.scale)} · ({sum_of_products(q, k)})"
    return Entry(operation.scale * float(q @ k), f"s = (q_{i} · k_{j}) / √{len(q)}", numbers, found)


def shared(head: int, reader: Reader) -> int:
    """The key head that serves a query head."""
    return head * reader.shape(1)[2] // reader.shape(0)[2]


@derive_entry.register
def _softmax(operation: CausalSoftmax, index: Index, reader: Reader) -> Entry:
    *rows, i, j = index
    scores = reader(0, *rows, i, ALL)
    visible = mask_of(operation, *reader.shape(0)[-2:])[i]
    if not visible[j]:
        return Entry(0.0, "w_ij = 0", f"key {j} is hidden from query {i}", ())
    seen = scores[visible]
    top = float(seen.max())
    total = float(np.exp(seen - top).sum())
    own = float(scores[j])
    numbers = f"e^({number(own)} - {factor(top)}) / {number(total)}"
    symbols = f"w_{i},{j} = e^(s_{i},{j} - max) / Σ over {len(seen)} visible keys"
    value = math.exp(own - top) / total
    return Entry(value, symbols, numbers, (Source(0, index, value),))


@derive_entry.register
def _mix(operation: Mix, index: Index, reader: Reader) -> Entry:
    batch, i, head, f = index
    group = head * reader.shape(1)[2] // reader.shape(0)[1]
    w, v = reader(0, batch, head, i, ALL), reader(1, batch, ALL, group, f)
    terms = w * v
    found = tuple(
        source
        for j in strongest(terms)
        for source in (
            Source(1, (batch, int(j), group, f), float(terms[j])),
            Source(0, (batch, head, i, int(j)), float(terms[j])),
        )
    )
    return Entry(float(w @ v), f"o = Σ_j w_{i},j v_j", sum_of_products(w, v), found)


WRITTEN: dict[type[Activation], tuple[str, str]] = {
    ReLU: ("max(0, x)", "max(0, {x})"),
    SquaredReLU: ("max(0, x)²", "max(0, {x})²"),
    SiLU: ("x σ(x)", "{x} · σ({x})"),
    GELU: ("x Φ(x)", "{x} · Φ({x})"),
    GELUTanh: ("½ x (1 + tanh(√(2/π) (x + 0.044715 x³)))", "½ · {x} · (1 + tanh(0.797885 · ({x} + 0.044715 · {x}³)))"),
    Sigmoid: ("σ(x)", "σ({x})"),
    Tanh: ("tanh x", "tanh({x})"),
}


@derive_entry.register
def _activation(operation: Activation, index: Index, reader: Reader) -> Entry:
    x = reader.one(0, *index)
    value = float(operation.value(np.array(x)))
    symbols, numbers = WRITTEN[type(operation)]
    return Entry(value, f"y = {symbols}", numbers.format(x=factor(x)), (Source(0, index, value),))


@derive_entry.register
def _gated(operation: Gated, index: Index, reader: Reader) -> Entry:
    gate, up = reader.one(0, *index), reader.one(1, *index)
    f = float(operation.activation.value(np.array(gate)))
    symbols, numbers = WRITTEN[type(operation.activation)]
    written = f"[{numbers.format(x=factor(gate))} = {number(f)}] · {factor(up)}"
    shares = (Source(0, index, f * up), Source(1, index, f * up))
    return Entry(f * up, f"h = f(g) u, f(g) = {symbols.replace('x', 'g')}", written, shares)


@derive_entry.register
def _dropout(operation: Dropout, index: Index, reader: Reader) -> Entry:
    x, kept = reader.one(0, *index), reader.one(1, *index)
    value = x * kept / (1 - operation.probability)
    numbers = f"{factor(x)} · {kept:g} / (1 - {operation.probability:g})"
    return Entry(value, "y = x k / (1 - p)", numbers, (Source(0, index, value),))


@derive_entry.register
def _log_softmax(operation: LogSoftmax, index: Index, reader: Reader) -> Entry:
    z = reader(0, *index[:-1], ALL)
    top = float(z.max())
    total = float(np.exp(z - top).sum())
    own = float(z[index[-1]])
    value = (own - top) - math.log(total)
    numbers = f"{number(own)} - {factor(top)} - ln {number(total)}"
    rival = int(np.argmax(z))
    found = (
        (Source(0, index, own), Source(0, (*index[:-1], rival), top))
        if rival != index[-1]
        else (Source(0, index, own),)
    )
    return Entry(value, "ℓ_v = z_v - max - ln Σ e^(z - max)", numbers, found)


@derive_entry.register
def _negative_log_likelihood(operation: NegativeLogLikelihood, index: Index, reader: Reader) -> Entry:
    targets = reader(1, *[ALL] * len(reader.shape(1))).astype(np.int64)
    places = np.argwhere(targets != operation.ignore_index)
    if len(places) == 0:
        return Entry(0.0, "L = 0", "no position has a label", ())
    labels = [(*(int(p) for p in place), int(targets[tuple(place)])) for place in places]
    surprise = -np.array([reader.one(0, *place) for place in labels])
    numbers = f"({sum_of(surprise)}) / {len(labels):,}"
    return Entry(float(surprise.sum()) / len(labels), "L = -1/N Σ ℓ[w]", numbers, sources(0, labels, surprise))
