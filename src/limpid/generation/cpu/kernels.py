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
from llvmlite.binding import get_host_cpu_features
from numba import njit, prange, types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

PARALLEL = ctypes.util.find_library("gomp") is not None  # numba's other pools cost more than they save here
LANES = 16
"""A sum runs in 16 parts, which are one vector."""
REGISTER_BYTES = 64 if get_host_cpu_features().get("avx512f") else 32
"""Of one vector register: 32 of 64 bytes with AVX-512, else 16 of 32 or less. It changes speed, never bits."""
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


def _fused(builder, a, b, c):
    """a b + c, rounded once."""
    lanes, number = (f"v{a.type.count}", a.type.element) if isinstance(a.type, ir.VectorType) else ("", a.type)
    signature = ir.FunctionType(a.type, [a.type] * 3)
    name = f"llvm.fma.{lanes}{number.intrinsic_name}"
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), [a, b, c])


def _dot_products(context, builder, weights, rows, count):
    """Σ wᵢ xᵢ of every row of weights with every row of x: entry i goes to sum i mod 16, what is left over one by one.

    `weights` and `rows` are addresses and dtypes. One sum after the other they would wait for their additions.
    """
    number, size = context.get_value_type(rows[0][1]), ir.IntType(64)
    pairs = [(w, x) for w in range(len(weights)) for x in range(len(rows))]
    width = LANES if len(pairs) < LANES // 2 else min(LANES, 8 * REGISTER_BYTES // rows[0][1].bitwidth)

    def read(row, place, lanes):
        start, kind = row
        address = builder.gep(start, [place])
        if lanes > 1:
            address = builder.bitcast(address, ir.VectorType(context.get_value_type(kind), lanes).as_pointer())
        return _as_float(builder, builder.load(address, align=kind.bitwidth // 8), kind, number)

    def added(start, stop, sums, lanes):
        step = LANES if lanes > 1 else 1
        with cgutils.for_range_slice(builder, start, stop, ir.Constant(size, step), size) as (place, _):
            w, x = ([read(row, place, lanes) for row in given] for given in (weights, rows))
            for (i, j), total in zip(pairs, sums, strict=True):
                builder.store(_fused(builder, w[i], x[j], builder.load(total)), total)

    zero = ir.Constant(ir.VectorType(number, width), [0.0] * width)
    whole = builder.and_(count, ir.Constant(size, -LANES))
    parts = []
    for first in range(0, LANES, width):
        sums = [cgutils.alloca_once_value(builder, zero) for _ in pairs]
        added(ir.Constant(size, first), whole, sums, width)
        parts.append([builder.load(total) for total in sums])
    halved = _in_halves(builder, [_joined(builder, part) for part in zip(*parts, strict=True)])
    places = [ir.Constant(ir.IntType(32), i) for i in range(len(sums))]
    totals = [cgutils.alloca_once_value(builder, builder.extract_element(halved, place)) for place in places]
    added(whole, count, totals, 1)
    return [builder.load(total) for total in totals]


def _joined(builder, parts):
    """The parts of one vector, in their order, as that vector."""
    while len(parts) > 1:
        count = 2 * parts[0].type.count
        places = ir.Constant(ir.VectorType(ir.IntType(32), count), list(range(count)))
        parts = [builder.shuffle_vector(*pair, places) for pair in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _in_halves(builder, vectors):
    """The entries of each of 1, 4, 8 or 16 vectors added up, the upper half to the lower: two vectors become one."""
    half = LANES // 2
    while half:
        lower = [start + i for start in range(0, LANES, 2 * half) for i in range(half)]
        lower += [LANES + i for i in lower]
        halves = [ir.Constant(ir.VectorType(ir.IntType(32), LANES), [i + at for i in lower]) for at in (0, half)]
        pairs = zip(vectors[::2], vectors[1::2], strict=True) if len(vectors) > 1 else [vectors * 2]
        vectors = [builder.fadd(*(builder.shuffle_vector(*pair, half) for half in halves)) for pair in pairs]
        half //= 2
    return vectors[0]


def _tile(num_weights, num_rows):
    """The compiled function of the products of so many rows of weights with so many of x, from `o` and `row` on."""

    @intrinsic
    def tile(typing, weights, o, x, row):
        def generate(context, builder, signature, arguments):
            def rows(kind, array, first, count):
                made = context.make_array(kind)(context, builder, array)
                width = builder.extract_value(made.shape, 1)
                places = [builder.add(first, ir.Constant(first.type, i)) for i in range(count)]
                return [(builder.gep(made.data, [builder.mul(width, place)]), kind.dtype) for place in places], width

            w, _ = rows(weights, arguments[0], arguments[1], num_weights)
            these, width = rows(x, arguments[2], arguments[3], num_rows)
            return context.make_tuple(builder, signature.return_type, _dot_products(context, builder, w, these, width))

        if not weights.layout == x.layout == "C":
            raise TypingError("tile reads rows that lie without gaps")
        return types.UniTuple(x.dtype, num_weights * num_rows)(weights, types.int64, x, types.int64), generate

    return tile


@intrinsic
def weighted_sum(typing, weights, rows, out):
    """out = Σ wₜ rowₜ, added up in the order of t; the sums of 16 entries of `out` stay at hand."""

    def generate(context, builder, signature, arguments):
        w, x, y = (
            context.make_array(k)(context, builder, a) for k, a in zip((weights, rows, out), arguments, strict=True)
        )
        size, number = ir.IntType(64), context.get_value_type(out.dtype)
        count, width = builder.extract_value(w.shape, 0), builder.extract_value(y.shape, 0)

        def summed(start, stop, lanes):
            kind = ir.VectorType(number, lanes) if lanes > 1 else number
            zero = ir.Constant(kind, [0.0] * lanes if lanes > 1 else 0.0)

            def at(data, place):
                found = builder.gep(data, [place])
                return builder.bitcast(found, kind.as_pointer()) if lanes > 1 else found

            with cgutils.for_range_slice(builder, start, stop, ir.Constant(size, lanes), size) as (place, _):
                total = cgutils.alloca_once(builder, kind)
                builder.store(zero, total)
                with cgutils.for_range(builder, count, intp=size) as loop:
                    weight = builder.load(builder.gep(w.data, [loop.index]))
                    entries = at(x.data, builder.add(builder.mul(loop.index, width), place))
                    entries = builder.load(entries, align=out.dtype.bitwidth // 8)
                    if lanes > 1:
                        first = builder.insert_element(ir.Constant(kind, ir.Undefined), weight, ir.IntType(32)(0))
                        same = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
                        weight = builder.shuffle_vector(first, first, same)
                    builder.store(_fused(builder, weight, entries, builder.load(total)), total)
                builder.store(builder.load(total), at(y.data, place), align=out.dtype.bitwidth // 8)

        whole = builder.and_(width, ir.Constant(size, -LANES))
        summed(ir.Constant(size, 0), whole, LANES)
        summed(whole, width, 1)
        return context.get_dummy_value()

    if not weights.layout == rows.layout == out.layout == "C":
        raise TypingError("weighted_sum reads rows that lie without gaps")
    return types.void(weights, rows, out), generate


TOGETHER = 4
"""Rows of weights that are multiplied at once: what one of them reads, the others have at hand."""
ROWS_TOGETHER = 4 if REGISTER_BYTES == 64 else 2
"""Rows of x that they are multiplied with: as many as there are registers for all the sums."""
tile_of_rows, tile_of_row, single_product = _tile(TOGETHER, ROWS_TOGETHER), _tile(TOGETHER, 1), _tile(1, 1)


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
    d_in = weight.shape[1]
    many, together = first + (last - first) // TOGETHER * TOGETHER, x.shape[0] // ROWS_TOGETHER * ROWS_TOGETHER
    for o in range(first, many, TOGETHER):
        for line in range(0, TOGETHER * d_in * weight.itemsize, CACHE_LINE):
            prefetch(weight[o], PREFETCH_DISTANCE + line)
        for row in range(0, together, ROWS_TOGETHER):
            made = tile_of_rows(weight, o, x, row)
            for i in range(TOGETHER):
                for j in range(ROWS_TOGETHER):
                    y[row + j, o + i] = made[ROWS_TOGETHER * i + j]
        for row in range(together, x.shape[0]):
            y[row, o], y[row, o + 1], y[row, o + 2], y[row, o + 3] = tile_of_row(weight, o, x, row)
    for o in range(many, last):
        for row in range(x.shape[0]):
            y[row, o] = single_product(weight, o, x, row)[0]
    for row in range(x.shape[0]):
        for o in range(first, last):
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
    row = y.reshape((1, y.size))
    inverse = 1 / math.sqrt(single_product(row, 0, row, 0)[0] / x.size + eps)
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
    queries, out = heads[row], mixed[row, h]
    first = max(padding[row], length + 1 - window)
    key, value = keys[row, h // group, first : length + 1], values[row, h // group, first : length + 1]
    score = np.empty(len(key), out.dtype)
    largest = -math.inf
    together = score.size // TOGETHER * TOGETHER
    for t in range(0, together, TOGETHER):
        score[t], score[t + 1], score[t + 2], score[t + 3] = tile_of_row(key, t, queries, h)
    for t in range(together, score.size):
        score[t] = single_product(key, t, queries, h)[0]
    for t in range(score.size):
        score[t] /= math.sqrt(out.size)
        largest = max(largest, score[t])
    for t in range(score.size):
        score[t] = exp(score[t] - largest)
    mass = 0.0
    for t in range(score.size):
        mass += score[t]
    for t in range(score.size):
        score[t] /= mass
    weighted_sum(score, value, out)


@jit
def silu(x):
    return x / (1 + exp(-x))


@jit
def gelu(x):
    return x * (1 + math.erf(np.float64(x) / math.sqrt(2))) / 2


@jit
def gelu_tanh(x):
    return x / (1 + exp(-math.sqrt(8 / math.pi) * (x + 0.044715 * x * x * x)))  # (1 + tanh a)/2 = σ(2a)


@jit
def activate(x, activation, y):
    """The MLP's nonlinearity of one vector; a loop of its own for each, which is compiled to vectors."""
    if activation == 0:
        for i in range(y.size):
            y[i] = silu(x[i])
    elif activation == 1:
        for i in range(y.size):
            y[i] = gelu(x[i])
    elif activation == 2:
        for i in range(y.size):
            y[i] = gelu_tanh(x[i])
    else:
        for i in range(y.size):
            y[i] = max(x[i], 0.0)
            y[i] = y[i] if activation == 3 else y[i] ** 2


@jit
def gated_hidden(gate_up, activation, gated, hidden):
    """f(gate) ⊙ up, or f(up)."""
    d_ff = hidden.shape[1]
    for row in range(hidden.shape[0]):
        activate(gate_up[row], activation, hidden[row])
        if gated:
            for i in range(d_ff):
                hidden[row, i] *= gate_up[row, d_ff + i]


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
