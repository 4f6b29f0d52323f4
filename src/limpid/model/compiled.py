"""One position of every row through the whole model in one compiled call: twin of `Transformer.forward`.

At one position the weights are read once for very few products, so time goes to memory and to calls; this leaves
only the first. Sums may be taken in any order, nothing else about the arithmetic is loosened.
"""

from __future__ import annotations

import ctypes.util
import math
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

Array = NDArray[np.floating]

ANY_ORDER = {"reassoc", "contract", "nsz"}
PARALLEL = ctypes.util.find_library("gomp") is not None  # numba's other pools cost more than they save here


class Matrix(NamedTuple):
    """(block, out, in) in the format in which it is read: as x is, bfloat16's bits as uint16, or int8."""

    numbers: NDArray[Any]
    scale: Array  # (block, out), what an int8 row is multiplied by; empty for other formats


class Weights(NamedTuple):
    """Of all blocks, stacked by kind, matrices as (block, out, in). What the model lacks is empty."""

    norm1: Array
    norm1_bias: Array
    attend: Matrix  # queries, keys and values
    attend_bias: Array
    query_norm: Array
    key_norm: Array
    attention_output: Matrix
    attention_output_bias: Array
    norm2: Array
    norm2_bias: Array
    widen: Matrix  # gate, if there is one, and up
    widen_bias: Array
    mlp_output: Matrix
    mlp_output_bias: Array
    final_norm: Array
    final_norm_bias: Array
    head: Matrix
    cos: Array  # (position, pair)
    sin: Array
    window: NDArray[np.int64]  # (block)


class Form(NamedTuple):
    """What the weights' shapes do not tell."""

    num_heads: int
    num_kv_heads: int
    activation: int
    gated: bool
    layer_norm: bool
    norm_first: bool
    halves: bool  # which features rotate together
    eps: float


ACTIVATION_NUMBERS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3, "relu2": 4}

compiled = njit(fastmath=ANY_ORDER, cache=True)
on_all_cores = njit(fastmath=ANY_ORDER, cache=True, parallel=PARALLEL)


def number(row, i):  # type: ignore[no-untyped-def]
    """Entry i of a row of weights, as a float; compiled by the row's format."""


@overload(number, inline="always")
def _number(row, i):  # type: ignore[no-untyped-def]
    if row.dtype == types.uint16:  # the upper half of a float32
        return lambda row, i: np.uint32(np.uint32(row[i]) << np.uint32(16)).view(np.float32)
    if row.dtype == types.int8:
        return lambda row, i: np.float32(row[i])
    return lambda row, i: row[i]


@intrinsic
def ask_for(typing, array, offset):  # type: ignore[no-untyped-def]
    """Tell the processor that the cache line `offset` bytes behind the start of an array will be read."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        byte, number32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        start = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        place = builder.gep(builder.bitcast(start, byte), [arguments[1]])
        kind = ir.FunctionType(ir.VoidType(), [byte, number32, number32, number32])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        for_reading, nearness, data = (ir.Constant(number32, value) for value in (0, 2, 1))
        builder.call(prefetch, [place, for_reading, nearness, data])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


AHEAD = 8192
"""Bytes between what is multiplied and what is asked for: the memory's own guesses stop at each 4096."""
LINE = 64


@on_all_cores
def product(x, weight, scale, bias, y):  # type: ignore[no-untyped-def]
    """y = x Wᵀ + b: every row of W is read once, for all rows of x."""
    width = 8
    d_out = weight.shape[0]
    for chunk in prange((d_out + width - 1) // width):
        for o in range(chunk * width, min(d_out, (chunk + 1) * width)):
            w = weight[o]
            for line in range(0, w.shape[0] * w.itemsize, LINE):
                ask_for(w, AHEAD + line)  # type: ignore[call-arg]
            for row in range(x.shape[0]):
                total = x.dtype.type(0)
                u = x[row]
                for i in range(w.shape[0]):
                    total += number(w, i) * u[i]
                if scale.size:
                    total *= scale[o]
                y[row, o] = total + bias[o] if bias.size else total


@compiled
def norm(x, weight, bias, eps, centred, y):  # type: ignore[no-untyped-def]
    """RMSNorm, or LayerNorm when centred, of one vector."""
    mean = x.sum() / x.size if centred else 0.0
    square = 0.0
    for i in range(x.size):
        square += (x[i] - mean) ** 2
    inverse = 1 / math.sqrt(square / x.size + eps)
    for i in range(x.size):
        value = (x[i] - mean) * inverse * weight[i]
        y[i] = value + bias[i] if bias.size else value


@compiled
def norm_rows(x, weight, bias, eps, centred, y):  # type: ignore[no-untyped-def]
    for row in range(x.shape[0]):
        norm(x[row], weight, bias, eps, centred, y[row])


@compiled
def turn(head, cos, sin, halves):  # type: ignore[no-untyped-def]
    """Rotate the pairs of one head in place."""
    pairs = cos.size
    for i in range(pairs):
        a, b = (i, i + pairs) if halves else (2 * i, 2 * i + 1)
        first, second = head[a], head[b]
        head[a] = first * cos[i] - second * sin[i]
        head[b] = first * sin[i] + second * cos[i]


@on_all_cores
def attend(heads, keys, values, padding, length, window, num_heads, mixed):  # type: ignore[no-untyped-def]
    """Each head's softmax-weighted sum of the values from its first visible position up to `length`."""
    d_head = keys.shape[3]
    group = num_heads // keys.shape[1]
    for place in prange(heads.shape[0] * num_heads):
        row, h = place // num_heads, place % num_heads
        query, out = heads[row, h], mixed[row, h]
        key, value = keys[row, h // group], values[row, h // group]
        first = max(padding[row], length + 1 - window)
        score = np.empty(length + 1 - first, heads.dtype)
        largest = -math.inf
        for t in range(score.size):
            total = heads.dtype.type(0)
            for i in range(d_head):
                total += query[i] * key[first + t, i]
            score[t] = total / math.sqrt(d_head)
            largest = max(largest, score[t])
        mass = 0.0
        for t in range(score.size):
            score[t] = math.exp(score[t] - largest)
            mass += score[t]
        out[:] = 0
        for t in range(score.size):
            weight = score[t] / mass
            for i in range(d_head):
                out[i] += weight * value[first + t, i]


@compiled
def bend(x, activation):  # type: ignore[no-untyped-def]
    """The MLP's nonlinearity."""
    if activation == 0:
        return x / (1 + math.exp(-x))
    if activation == 1:
        return x * (1 + math.erf(x / math.sqrt(2))) / 2
    if activation == 2:
        return x / (1 + math.exp(-math.sqrt(8 / math.pi) * (x + 0.044715 * x * x * x)))  # (1 + tanh a)/2 = σ(2a)
    if activation == 3:
        return max(x, 0.0)
    return max(x, 0.0) ** 2


@compiled
def hide(wide, activation, gated, hidden):  # type: ignore[no-untyped-def]
    """f(gate) ⊙ up, or f(up)."""
    d_ff = hidden.shape[1]
    for row in range(hidden.shape[0]):
        for i in range(d_ff):
            value = bend(wide[row, i], activation)
            hidden[row, i] = value * wide[row, d_ff + i] if gated else value


@compiled
def step(x, weights, form, keys, values, padding, length):  # type: ignore[no-untyped-def]
    """Logits of one more position: `x` (batch, d_model) becomes (batch, vocab); keys and values are stored."""
    batch = x.shape[0]
    d_head, turned = keys.shape[4], form.num_heads + form.num_kv_heads
    heads = np.empty((batch, turned + form.num_kv_heads, d_head), x.dtype)
    mixed = np.empty((batch, form.num_heads, d_head), x.dtype)
    wide = np.empty((batch, weights.widen.numbers.shape[1]), x.dtype)
    hidden = np.empty((batch, weights.mlp_output.numbers.shape[2]), x.dtype)
    normed, written = np.empty_like(x), np.empty_like(x)
    no_bias = np.empty(0, x.dtype)
    for i in range(weights.attend.numbers.shape[0]):
        if form.norm_first:
            norm_rows(x, weights.norm1[i], weights.norm1_bias[i], form.eps, form.layer_norm, normed)
        entering, attend_in = normed if form.norm_first else x, weights.attend
        product(entering, attend_in.numbers[i], attend_in.scale[i], weights.attend_bias[i], heads.reshape((batch, -1)))
        for row in range(batch):
            position = max(length - padding[row], 0)
            for h in range(turned):
                if weights.query_norm.size:
                    gain = weights.query_norm[i] if h < form.num_heads else weights.key_norm[i]
                    norm(heads[row, h], gain, no_bias, form.eps, False, heads[row, h])
                if weights.cos.size:
                    turn(heads[row, h], weights.cos[position], weights.sin[position], form.halves)
            for h in range(form.num_kv_heads):
                keys[i, row, h, length] = heads[row, form.num_heads + h]
                values[i, row, h, length] = heads[row, turned + h]
        attend(heads, keys[i], values[i], padding, length, weights.window[i], form.num_heads, mixed)
        out = weights.attention_output
        product(mixed.reshape((batch, -1)), out.numbers[i], out.scale[i], weights.attention_output_bias[i], written)
        x += written
        if form.norm_first:
            norm_rows(x, weights.norm2[i], weights.norm2_bias[i], form.eps, form.layer_norm, normed)
        else:
            norm_rows(x, weights.norm1[i], weights.norm1_bias[i], form.eps, form.layer_norm, x)
        entering, widen = normed if form.norm_first else x, weights.widen
        product(entering, widen.numbers[i], widen.scale[i], weights.widen_bias[i], wide)
        hide(wide, form.activation, form.gated, hidden)
        down = weights.mlp_output
        product(hidden, down.numbers[i], down.scale[i], weights.mlp_output_bias[i], written)
        x += written
        if not form.norm_first:
            norm_rows(x, weights.norm2[i], weights.norm2_bias[i], form.eps, form.layer_norm, x)
    if form.norm_first:
        norm_rows(x, weights.final_norm, weights.final_norm_bias, form.eps, form.layer_norm, x)
    logits = np.empty((batch, weights.head.numbers.shape[1]), x.dtype)
    product(x, weights.head.numbers[0], weights.head.scale[0], no_bias, logits)
    return logits
