"""One position of every row through the whole model in one compiled call: twin of `Transformer.forward`.

At one position the weights are read once for very few products, so time goes to memory and to calls; this leaves
only the first. Every operation is written in the order in which it is rounded, sums over many entries as vectors of a
fixed width: bits depend neither on the processor, nor on threads, nor on what the compiler makes of it.

All of it is one file because numba's cache of compiled code watches the file of a function, not those of what it calls.
"""

from __future__ import annotations

import ctypes.util
import math

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

PARALLEL = ctypes.util.find_library("gomp") is not None  # numba's other pools cost more than they save here
LANES, VECTORS = 16, 4
"""A sum runs in 4 vectors of 16 entries, so that no addition waits for the one before it."""
TOGETHER = 4
"""Rows whose sums run at once: each entry of the weights is read once for all of them."""
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2")

jit = njit(cache=True, error_model="numpy")
parallel_jit = njit(cache=True, error_model="numpy", parallel=PARALLEL)


def _as_float(builder, value, kind, wanted):
    """Entries of weights as floats: bfloat16 comes as the upper half of a float32, int8 as whole numbers."""
    vector = isinstance(value.type, ir.VectorType)

    def of(scalar):
        return ir.VectorType(scalar, value.type.count) if vector else scalar

    if kind == types.uint16:
        bits = builder.zext(value, of(ir.IntType(32)))
        places = ir.Constant(bits.type, [16] * value.type.count if vector else 16)
        return builder.bitcast(builder.shl(bits, places), of(ir.FloatType()))
    return builder.sitofp(value, of(wanted)) if kind == types.int8 else value


def _dot_products(context, builder, weights, rows, count):
    """Σ wᵢ xᵢ for each of some rows: entry i goes to sum i mod 64, these are added in pairs, the rest one by one.

    `weights` and each of `rows` are an address and a dtype. One after the other they would wait for their additions.
    """
    number, size = context.get_value_type(rows[0][1]), ir.IntType(64)
    vector = ir.VectorType(number, LANES)

    def read(row, place, lanes):
        start, kind = row
        address = builder.gep(start, [place])
        if lanes > 1:
            address = builder.bitcast(address, ir.VectorType(context.get_value_type(kind), lanes).as_pointer())
        return _as_float(builder, builder.load(address, align=kind.bitwidth // 8), kind, number)

    def added(start, stop, sums, lanes):
        stride = ir.Constant(size, len(sums[0]) * lanes)
        with cgutils.for_range_slice(builder, start, stop, stride, size) as (place, _):
            for i in range(len(sums[0])):
                at = builder.add(place, ir.Constant(size, i * lanes))
                weight = read(weights, at, lanes)
                for row, its_sums in zip(rows, sums, strict=True):
                    product = builder.fmul(weight, read(row, at, lanes))
                    builder.store(builder.fadd(builder.load(its_sums[i]), product), its_sums[i])

    zero = ir.Constant(vector, [0.0] * LANES)
    sums = [[cgutils.alloca_once_value(builder, zero) for _ in range(VECTORS)] for _ in rows]
    whole, single = (builder.and_(count, ir.Constant(size, -n)) for n in (LANES * VECTORS, LANES))
    added(ir.Constant(size, 0), whole, sums, LANES)
    added(whole, single, [its_sums[:1] for its_sums in sums], LANES)
    totals = [[cgutils.alloca_once_value(builder, _in_pairs(builder, its_sums))] for its_sums in sums]
    added(single, count, totals, 1)
    return [builder.load(total) for (total,) in totals]


def _in_pairs(builder, sums):
    """The entries of vectors added up: vectors in pairs, then halves of the last one."""
    parts = [builder.load(total) for total in sums]
    while len(parts) > 1:
        parts = [builder.fadd(*parts[i : i + 2]) for i in range(0, len(parts), 2)]
    for half in (LANES >> k for k in range(1, LANES.bit_length())):
        upper = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [(i + half) % LANES for i in range(LANES)])
        parts = [builder.fadd(parts[0], builder.shuffle_vector(parts[0], parts[0], upper))]
    return builder.extract_element(parts[0], ir.Constant(ir.IntType(32), 0))


@intrinsic
def dot(typing, weights, x):
    """Σ wᵢ xᵢ of two rows that lie without gaps, added up as `_dot_products` says."""

    def generate(context, builder, signature, arguments):
        rows = [
            context.make_array(kind)(context, builder, row) for kind, row in zip((weights, x), arguments, strict=True)
        ]
        count = builder.extract_value(rows[1].shape, 0)
        (total,) = _dot_products(context, builder, (rows[0].data, weights.dtype), [(rows[1].data, x.dtype)], count)
        return total

    if not weights.layout == x.layout == "C":
        raise TypingError("dot reads rows that lie without gaps")
    return x.dtype(weights, x), generate


@intrinsic
def dots(typing, weights, x, first):
    """The same of one row of weights with `TOGETHER` rows of x from `first` on, to the bit: their sums run at once."""

    def generate(context, builder, signature, arguments):
        row = context.make_array(weights)(context, builder, arguments[0])
        many = context.make_array(x)(context, builder, arguments[1])
        count = builder.extract_value(many.shape, 1)
        starts = [
            builder.gep(many.data, [builder.mul(count, builder.add(arguments[2], ir.Constant(ir.IntType(64), i)))])
            for i in range(TOGETHER)
        ]
        rows = [(start, x.dtype) for start in starts]
        totals = _dot_products(context, builder, (row.data, weights.dtype), rows, count)
        return context.make_tuple(builder, signature.return_type, totals)

    if not weights.layout == x.layout == "C":
        raise TypingError("dots reads rows that lie without gaps")
    return types.UniTuple(x.dtype, TOGETHER)(weights, x, types.int64), generate


@intrinsic
def prefetch(typing, array, offset):
    """Tell the processor that the cache line `offset` bytes behind the start of an array will be read."""

    def generate(context, builder, signature, arguments):
        byte, number32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        start = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        place = builder.gep(builder.bitcast(start, byte), [arguments[1]])
        kind = ir.FunctionType(ir.VoidType(), [byte, number32, number32, number32])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        for_reading, nearness, data = (ir.Constant(number32, value) for value in (0, 2, 1))
        builder.call(prefetch, [place, for_reading, nearness, data])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


PREFETCH_DISTANCE = 2048
"""Bytes between what is multiplied and what is prefetched: the processor prefetches too, but not across each 4096."""
CACHE_LINE = 64


SINGLE_THREAD_BELOW = 1 << 16
"""Multiplications below which a second core takes longer to wake than to help."""


@parallel_jit
def product(x, weight, scale, bias, y):
    """y = x Wᵀ + b: every row of W is read once, for all rows of x."""
    width = 8
    d_out = weight.shape[0]
    if x.shape[0] * weight.size < SINGLE_THREAD_BELOW:
        product_rows(x, weight, scale, bias, y, 0, d_out)
        return
    for chunk in prange((d_out + width - 1) // width):
        first = np.int64(chunk) * width  # prange counts without sign, which would compile everything below once more
        product_rows(x, weight, scale, bias, y, first, min(d_out, first + width))


@jit
def product_rows(x, weight, scale, bias, y, first, last):
    """The entries of y from `first` up to `last`."""
    for o in range(first, last):
        w = weight[o]
        for line in range(0, w.shape[0] * w.itemsize, CACHE_LINE):
            prefetch(w, PREFETCH_DISTANCE + line)
        together = x.shape[0] // TOGETHER * TOGETHER
        for row in range(0, together, TOGETHER):
            y[row, o], y[row + 1, o], y[row + 2, o], y[row + 3, o] = dots(w, x, row)
        for row in range(together, x.shape[0]):
            y[row, o] = dot(w, x[row])
        for row in range(x.shape[0]):
            total = y[row, o]
            if scale.size:
                total *= scale[o]
            y[row, o] = total + bias[o] if bias.size else total


LOG2_E = 1 / math.log(2)
LN_2, LN_2_REST = float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33")
"""ln 2, the first part so short that n times it is exact."""
DEGREE = 13


@jit
def exp(x):
    """eˣ in float64 to about one unit in the last place, x clamped to ±708: libraries differ in the last bit.

    Cody & Waite 1980, chapter 6: eˣ = 2ⁿ eʳ with |r| ≤ ln 2 / 2, by the series of eʳ until its terms vanish.
    """
    wide = np.float64(x)
    wide = 708.0 if wide > 708.0 else wide
    wide = -708.0 if wide < -708.0 else wide
    n = np.rint(wide * LOG2_E)
    r = (wide - n * LN_2) - n * LN_2_REST
    series = 1.0
    for k in range(DEGREE, 0, -1):
        series = 1.0 + series * r * (1.0 / k)
    return series * np.int64((np.int64(n) + 1023) << 52).view(np.float64)


@jit
def norm(x, weight, bias, eps, centred, y):
    """RMSNorm, or LayerNorm when centred, of one vector."""
    mean = 0.0
    if centred:
        for i in range(x.size):
            mean += x[i]
    for i in range(x.size):
        y[i] = x[i] - mean / x.size
    inverse = 1 / math.sqrt(dot(y, y) / x.size + eps)
    for i in range(x.size):
        value = y[i] * inverse * weight[i]
        y[i] = value + bias[i] if bias.size else value


@jit
def norm_rows(x, weight, bias, eps, centred, y):
    """`norm` of every row."""
    for row in range(x.shape[0]):
        norm(x[row], weight, bias, eps, centred, y[row])


@jit
def rotate(head, cos, sin, halves):
    """Rotate the pairs of one head in place."""
    pairs = cos.size
    for i in range(pairs):
        a, b = (i, i + pairs) if halves else (2 * i, 2 * i + 1)
        first, second = head[a], head[b]
        head[a] = first * cos[i] - second * sin[i]
        head[b] = first * sin[i] + second * cos[i]


@parallel_jit
def attend(heads, keys, values, padding, length, window, num_heads, mixed):
    """Each head's softmax-weighted sum of the values from its first visible position up to `length`."""
    count = heads.shape[0] * num_heads
    if 2 * count * (length + 1) * keys.shape[3] < SINGLE_THREAD_BELOW:
        for place in range(count):
            attend_head(place, heads, keys, values, padding, length, window, num_heads, mixed)
        return
    for place in prange(count):
        attend_head(np.int64(place), heads, keys, values, padding, length, window, num_heads, mixed)


@jit
def attend_head(place, heads, keys, values, padding, length, window, num_heads, mixed):
    """One row's and head's share of `attend`."""
    row, h = place // num_heads, place % num_heads
    group = num_heads // keys.shape[1]
    query, out = heads[row, h], mixed[row, h]
    first = max(padding[row], length + 1 - window)
    key, value = keys[row, h // group, first : length + 1], values[row, h // group, first : length + 1]
    score = np.empty(len(key), query.dtype)
    largest = -math.inf
    for t in range(score.size):
        score[t] = dot(query, key[t]) / math.sqrt(query.size)
        largest = max(largest, score[t])
    for t in range(score.size):
        score[t] = exp(score[t] - largest)
    mass = 0.0
    for t in range(score.size):
        mass += score[t]
    out[:] = 0
    for t in range(score.size):
        weight = score[t] / mass
        for i in range(out.size):
            out[i] += weight * value[t, i]


@jit
def activate(x, activation):
    """The MLP's nonlinearity."""
    if activation == 0:
        return x / (1 + exp(-x))
    if activation == 1:
        return x * (1 + math.erf(np.float64(x) / math.sqrt(2))) / 2
    if activation == 2:
        return x / (1 + exp(-math.sqrt(8 / math.pi) * (x + 0.044715 * x * x * x)))  # (1 + tanh a)/2 = σ(2a)
    if activation == 3:
        return max(x, 0.0)
    return max(x, 0.0) ** 2


@jit
def gated_hidden(gate_up, activation, gated, hidden):
    """f(gate) ⊙ up, or f(up)."""
    d_ff = hidden.shape[1]
    for row in range(hidden.shape[0]):
        for i in range(d_ff):
            value = activate(gate_up[row, i], activation)
            hidden[row, i] = value * gate_up[row, d_ff + i] if gated else value


@jit
def decode_position(x, weights, options, keys, values, padding, length, seen):
    """Logits of one more position: `x` (batch, d_model) becomes (batch, vocab); keys and values are stored.

    What each kernel makes goes into `seen` too, where it has room.
    """
    batch = x.shape[0]
    d_head, num_rotated = keys.shape[4], options.num_heads + options.num_kv_heads
    heads = np.empty((batch, num_rotated + options.num_kv_heads, d_head), x.dtype)
    mixed = np.empty((batch, options.num_heads, d_head), x.dtype)
    gate_up = np.empty((batch, weights.gate_up.entries.shape[1]), x.dtype)
    hidden = np.empty((batch, weights.mlp_output.entries.shape[2]), x.dtype)
    normed, written = np.empty_like(x), np.empty_like(x)
    no_bias = np.empty(0, x.dtype)
    for i in range(weights.query_key_value.entries.shape[0]):
        if options.pre_norm:
            norm_rows(x, weights.norm1[i], weights.norm1_bias[i], options.eps, options.layer_norm, normed)
            keep(seen.norm1, i, normed)
        entering, qkv = normed if options.pre_norm else x, weights.query_key_value
        product(entering, qkv.entries[i], qkv.scale[i], weights.query_key_value_bias[i], heads.reshape((batch, -1)))
        keep(seen.heads, i, heads)
        if weights.query_norm.size:
            for row in range(batch):
                for h in range(num_rotated):
                    gain = weights.query_norm[i] if h < options.num_heads else weights.key_norm[i]
                    norm(heads[row, h], gain, no_bias, options.eps, False, heads[row, h])
            keep(seen.heads_normed, i, heads)
        if weights.cos.size:
            for row in range(batch):
                position = max(length - padding[row], 0)
                for h in range(num_rotated):
                    rotate(heads[row, h], weights.cos[position], weights.sin[position], options.halves)
            keep(seen.heads_rotated, i, heads)
        for row in range(batch):
            for h in range(options.num_kv_heads):
                copy(heads[row, options.num_heads + h], keys[i, row, h, length])
                copy(heads[row, num_rotated + h], values[i, row, h, length])
        attend(heads, keys[i], values[i], padding, length, weights.window[i], options.num_heads, mixed)
        keep(seen.mixed, i, mixed)
        out = weights.attention_output
        product(mixed.reshape((batch, -1)), out.entries[i], out.scale[i], weights.attention_output_bias[i], written)
        keep(seen.attention_output, i, written)
        add(x, written)
        keep(seen.residual1, i, x)
        if options.pre_norm:
            norm_rows(x, weights.norm2[i], weights.norm2_bias[i], options.eps, options.layer_norm, normed)
            keep(seen.norm2, i, normed)
        else:
            norm_rows(x, weights.norm1[i], weights.norm1_bias[i], options.eps, options.layer_norm, x)
            keep(seen.norm1, i, x)
        entering, gate_up_in = normed if options.pre_norm else x, weights.gate_up
        product(entering, gate_up_in.entries[i], gate_up_in.scale[i], weights.gate_up_bias[i], gate_up)
        keep(seen.gate_up, i, gate_up)
        gated_hidden(gate_up, options.activation, options.gated, hidden)
        keep(seen.hidden, i, hidden)
        down = weights.mlp_output
        product(hidden, down.entries[i], down.scale[i], weights.mlp_output_bias[i], written)
        keep(seen.mlp_output, i, written)
        add(x, written)
        keep(seen.residual2, i, x)
        if not options.pre_norm:
            norm_rows(x, weights.norm2[i], weights.norm2_bias[i], options.eps, options.layer_norm, x)
            keep(seen.norm2, i, x)
    if options.pre_norm:
        norm_rows(x, weights.final_norm, weights.final_norm_bias, options.eps, options.layer_norm, x)
        keep(seen.final_norm, 0, x)
    logits = np.empty((batch, weights.output_matrix.entries.shape[1]), x.dtype)
    product(x, weights.output_matrix.entries[0], weights.output_matrix.scale[0], no_bias, logits)
    return logits


# Entry by entry: for whole arrays numba compiles the words of an error too, which took it a third of all its time.


@jit
def copy(made, place):
    """One vector to another place."""
    for i in range(made.size):
        place[i] = made[i]


@jit
def add(stream, written):
    """stream + written, in place."""
    for row in range(stream.shape[0]):
        for i in range(stream.shape[1]):
            stream[row, i] += written[row, i]


@jit
def keep(room, block, made):
    """Copy what a kernel made, where there is room for it."""
    if room.size:
        copy(made.reshape(-1), room[block].reshape(-1))


@jit
def relative_probabilities(logits):
    """Each token's probability over the likeliest one's."""
    relative, largest = np.empty_like(logits), logits.max()
    for i in range(logits.size):
        relative[i] = exp(logits[i] - largest)
    return relative
