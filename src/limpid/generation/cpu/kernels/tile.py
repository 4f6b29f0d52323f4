"""Dot products of some rows of weights with some rows of x at once, and sums of rows with weights of their own.

Entry i goes to sum i mod 16; what is left over is added one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

from limpid.generation.cpu.kernels import vectors
from limpid.generation.cpu.kernels.compiled import CACHE_LINE, GROUP, LANES, REGISTER_BYTES, ROWS_TOGETHER
from limpid.generation.cpu.kernels.vectors import SIZE, constant

PREFETCH_DISTANCE = 16384
"""Bytes between what is multiplied and what is prefetched: the processor prefetches too, but not across each 4096."""


@dataclass(frozen=True)
class Plain:
    """Rows of an array as it is, each from an address on."""

    kind: Any
    starts: list[Any]
    in_pairs = False

    @property
    def count(self):
        return len(self.starts)

    def vector(self, builder, row, place, first, scalar, lanes):
        """Entries from `place` + `first` on."""
        place = builder.add(place, constant(first))
        return vectors.load(builder, builder.gep(self.starts[row], [place]), scalar, lanes)

    def single(self, builder, row, place):
        """One entry."""
        return builder.load(builder.gep(self.starts[row], [place]))

    def ask_ahead(self, builder, place, step):
        """Keys lie in caches, or are too short for it to matter."""


@dataclass(frozen=True)
class Packed:
    """A group of rows that are read in one run (`packing.py`): of each in turn 16 entries, or 32 of bfloat16."""

    kind: Any
    start: Any
    count = GROUP

    @property
    def in_pairs(self):
        return self.kind == types.uint16

    def _behind(self, builder, place):
        """The address of a step, which is as far behind the start as all rows' entries before it."""
        return builder.gep(self.start, [builder.mul(place, constant(GROUP))])

    def vector(self, builder, row, place, first, scalar, lanes):
        """Entries from `place` + `first` on, of which `place` begins a step of 16."""
        address = builder.gep(self._behind(builder, place), [constant(row * LANES + first)])
        return vectors.load(builder, address, scalar, lanes)

    def single(self, builder, row, place):
        """One of the entries that fill no step."""
        return builder.load(builder.gep(self._behind(builder, place), [constant(row)]))

    def pair(self, builder, row, place, first, lanes):
        """Entries from `place` + `first` on, and those 16 further."""
        words = builder.bitcast(self._behind(builder, place), ir.IntType(32).as_pointer())
        address = builder.gep(words, [constant(row * LANES + first)])
        return vectors.halves_as_floats(builder, vectors.load(builder, address, ir.IntType(32), lanes))

    def ask_ahead(self, builder, place, step):
        """Prefetch as many bytes as one step reads."""
        start = builder.bitcast(self._behind(builder, place), ir.IntType(8).as_pointer())
        for line in range(0, GROUP * step * self.kind.bitwidth // 8, CACHE_LINE):
            vectors.prefetch(builder, builder.gep(start, [constant(PREFETCH_DISTANCE + line)]))


def _dot_products(context, builder, weights, rows, count):
    """The address of Σ wᵢ xᵢ of every row of weights with every row of x. One after the other they would wait."""
    number, scalar = context.get_value_type(rows.kind), context.get_value_type(weights.kind)
    pairs = [(w, x) for w in range(weights.count) for x in range(rows.count)]
    width = LANES if len(pairs) < LANES // 2 else min(LANES, 8 * REGISTER_BYTES // rows.kind.bitwidth)
    zero = ir.Constant(ir.VectorType(number, width), [0.0] * width)
    whole = builder.and_(count, constant(-LANES))
    paired = builder.and_(count, constant(-2 * LANES)) if weights.in_pairs else constant(0)

    def all_x(place, first):
        return [rows.vector(builder, x, place, first, number, width) for x in range(rows.count)]

    def add(totals, w, values, x):
        for j in range(rows.count):
            total = totals[w * rows.count + j]
            builder.store(vectors.fused(builder, values, x[j], builder.load(total)), total)

    def sums_from(first):
        totals = [cgutils.alloca_once_value(builder, zero) for _ in pairs]
        with cgutils.for_range_slice(builder, constant(0), paired, constant(2 * LANES), SIZE) as (place, _):
            x = all_x(place, first), all_x(place, first + LANES)
            for w in range(weights.count if weights.in_pairs else 0):
                for values, of_x in zip(weights.pair(builder, w, place, first, width), x, strict=True):
                    add(totals, w, values, of_x)
            if first == 0:
                weights.ask_ahead(builder, place, 2 * LANES)
        with cgutils.for_range_slice(builder, paired, whole, constant(LANES), SIZE) as (place, _):
            x = all_x(place, first)
            for w in range(weights.count):
                stored = weights.vector(builder, w, place, first, scalar, width)
                add(totals, w, vectors.as_float(builder, stored, weights.kind, number), x)
            if first == 0:
                weights.ask_ahead(builder, place, LANES)
        return [builder.load(total) for total in totals]

    parts = [sums_from(first) for first in range(0, LANES, width)]
    added = vectors.added_in_halves(builder, [vectors.joined(builder, part) for part in zip(*parts, strict=True)])
    place_of_sums = builder.bitcast(cgutils.alloca_once_value(builder, added), number.as_pointer())
    with cgutils.for_range_slice(builder, whole, count, constant(1), SIZE) as (place, _):
        x = [rows.single(builder, x, place) for x in range(rows.count)]
        for i, (w, j) in enumerate(pairs):
            total = builder.gep(place_of_sums, [constant(i)])
            value = vectors.as_float(builder, weights.single(builder, w, place), weights.kind, number)
            builder.store(vectors.fused(builder, value, x[j], builder.load(total)), total)
    return place_of_sums


def _plain(context, builder, kind, array, first, count):
    """So many rows of an array from the first on, and how long they are."""
    made = context.make_array(kind)(context, builder, array)
    width = builder.extract_value(made.shape, 1)
    places = [builder.add(first, ir.Constant(first.type, i)) for i in range(count)]
    return Plain(kind.dtype, [builder.gep(made.data, [builder.mul(width, place)]) for place in places]), width


def _of_rows(num_weights):
    """The compiled function of the products of so many rows of weights, from `o` on, with one row of x."""

    @intrinsic
    def tile(typing, weights, o, x, row):
        def generate(context, builder, signature, arguments):
            w, _ = _plain(context, builder, weights, arguments[0], arguments[1], num_weights)
            these, width = _plain(context, builder, x, arguments[2], arguments[3], 1)
            sums = _dot_products(context, builder, w, these, width)
            made = [builder.load(builder.gep(sums, [constant(i)])) for i in range(num_weights)]
            return context.make_tuple(builder, signature.return_type, made)

        if not weights.layout == x.layout == "C":
            raise TypingError("tile reads rows that lie without gaps")
        return types.UniTuple(x.dtype, num_weights)(weights, types.int64, x, types.int64), generate

    return tile


def _of_group(num_rows):
    """The compiled function of a group's entries of y = x Wᵀ · scale + b, from `o` up to `limit`, for so many rows."""

    @intrinsic
    def tile(typing, weights, group, x, row, scale, bias, y, o, limit):
        def generate(context, builder, signature, arguments):
            w, at, inputs, first, scales, biases, out, start, stop = arguments
            number = context.get_value_type(x.dtype)
            packed = context.make_array(weights)(context, builder, w)
            run = builder.gep(packed.data, [builder.mul(builder.extract_value(packed.shape, 1), at)])
            these, width = _plain(context, builder, x, inputs, first, num_rows)
            made = _dot_products(context, builder, Packed(weights.dtype, run), these, width)
            sums = vectors.load(builder, made, number, GROUP * num_rows)
            rows, _ = _plain(context, builder, y, out, first, num_rows)
            lanes = vectors.first_lanes(builder, builder.sub(stop, start), GROUP)
            for j, place in enumerate(rows.starts):
                total = vectors.every_other(builder, sums, j, num_rows)
                for kind, entries, combine in ((scale, scales, builder.fmul), (bias, biases, builder.fadd)):
                    array = context.make_array(kind)(context, builder, entries)
                    total = _with(builder, array, combine, total, start, lanes)
                vectors.store_some(builder, total, builder.gep(place, [start]), lanes)
            return context.get_dummy_value()

        if not weights.layout == x.layout == y.layout == scale.layout == bias.layout == "C":
            raise TypingError("tile reads rows that lie without gaps")
        if not x.dtype == y.dtype == scale.dtype == bias.dtype:
            raise TypingError("tile reads numbers of one format besides the weights")
        place = types.int64
        return types.void(weights, place, x, place, scale, bias, y, place, place), generate

    return tile


def _with(builder, array, combine, total, start, lanes):
    """A vector combined with the entries of an array from `start` on, where it has any."""
    before = builder.block
    with builder.if_then(builder.icmp_signed(">", array.nitems, constant(0))):
        entries = vectors.load_some(builder, builder.gep(array.data, [start]), lanes, total.type.element)
        combined = combine(total, entries)
        inside = builder.block
    made = builder.phi(total.type)
    made.add_incoming(total, before)
    made.add_incoming(combined, inside)
    return made


ROWS = 4
"""Plain rows that are multiplied at once."""
products_of_rows, product_of_row = _of_rows(ROWS), _of_rows(1)
group_with_rows, group_with_row = _of_group(ROWS_TOGETHER), _of_group(1)


@intrinsic
def prefetch_run(typing, weights, group):
    """Ask for the beginning of a run of groups, as far as `group_with_row` would have asked for it."""

    def generate(context, builder, signature, arguments):
        packed = context.make_array(weights)(context, builder, arguments[0])
        run = builder.gep(packed.data, [builder.mul(builder.extract_value(packed.shape, 1), arguments[1])])
        start = builder.bitcast(run, ir.IntType(8).as_pointer())
        end, line = constant(PREFETCH_DISTANCE), constant(CACHE_LINE)
        with cgutils.for_range_slice(builder, constant(0), end, line, SIZE) as (place, _):
            vectors.prefetch(builder, builder.gep(start, [place]))
        return context.get_dummy_value()

    return types.void(weights, types.int64), generate


COLUMNS = 4
"""Vectors of columns that are added up at once: each sum waits for the one before it, and the others do not."""


@intrinsic
def weighted_sum(typing, weights, rows, out):
    """out = Σ wₜ rowₜ, each entry added up in the order of t."""

    def generate(context, builder, signature, arguments):
        w, x, y = (
            context.make_array(k)(context, builder, a) for k, a in zip((weights, rows, out), arguments, strict=True)
        )
        number = context.get_value_type(out.dtype)
        count, width = builder.extract_value(w.shape, 0), builder.extract_value(y.shape, 0)

        def summed(start, stop, lanes, vectors_at_once):
            kind = ir.VectorType(number, lanes) if lanes > 1 else number
            zero = ir.Constant(kind, [0.0] * lanes if lanes > 1 else 0.0)
            step = constant(lanes * vectors_at_once)
            with cgutils.for_range_slice(builder, start, stop, step, SIZE) as (place, _):
                totals = [cgutils.alloca_once(builder, kind) for _ in range(vectors_at_once)]
                for total in totals:
                    builder.store(zero, total)
                with cgutils.for_range(builder, count, intp=SIZE) as loop:
                    weight = builder.load(builder.gep(w.data, [loop.index]))
                    weight = vectors.everywhere(builder, weight, lanes) if lanes > 1 else weight
                    row = builder.gep(x.data, [builder.add(builder.mul(loop.index, width), place)])
                    for i, total in enumerate(totals):
                        entries = vectors.load(builder, builder.gep(row, [constant(i * lanes)]), number, lanes)
                        builder.store(vectors.fused(builder, weight, entries, builder.load(total)), total)
                for i, total in enumerate(totals):
                    written = builder.gep(y.data, [builder.add(place, constant(i * lanes))])
                    written = builder.bitcast(written, kind.as_pointer())
                    builder.store(builder.load(total), written, align=out.dtype.bitwidth // 8)

        several, whole = (builder.and_(width, constant(-lanes)) for lanes in (COLUMNS * LANES, LANES))
        summed(constant(0), several, LANES, COLUMNS)
        summed(several, whole, LANES, 1)
        summed(whole, width, 1, 1)
        return context.get_dummy_value()

    if not weights.layout == rows.layout == out.layout == "C":
        raise TypingError("weighted_sum reads rows that lie without gaps")
    return types.void(weights, rows, out), generate
