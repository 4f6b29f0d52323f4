"""Vectors in LLVM's words: how narrow numbers become floats, fused products, and sums in a written order."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils

from limpid.generation.cpu.kernels.compiled import LANES

SIZE, INT32 = ir.IntType(64), ir.IntType(32)


def constant(value: int):
    """A place or a count."""
    return ir.Constant(SIZE, value)


def load(builder, address, scalar, lanes):
    """So many numbers from an address on, as one vector, or one alone."""
    kind = ir.VectorType(scalar, lanes) if lanes > 1 else scalar
    size = {"half": 2, "float": 4, "double": 8}.get(str(scalar)) or scalar.width // 8
    return builder.load(builder.bitcast(address, kind.as_pointer()), align=size)


def load_some(builder, address, lanes, scalar):
    """A vector from an address on, of which only the lanes of a mask are read; the others are zero."""
    kind = ir.VectorType(scalar, lanes.type.count)
    place = builder.bitcast(address, kind.as_pointer())
    signature = ir.FunctionType(kind, [place.type, INT32, lanes.type, kind])
    function = _of_some(builder, "load", kind, signature)
    return builder.call(function, [place, _alignment(scalar), lanes, ir.Constant(kind, [0.0] * kind.count)])


def store_some(builder, vector, address, lanes):
    """The lanes of a mask, from an address on."""
    place = builder.bitcast(address, vector.type.as_pointer())
    signature = ir.FunctionType(ir.VoidType(), [vector.type, place.type, INT32, lanes.type])
    function = _of_some(builder, "store", vector.type, signature)
    builder.call(function, [vector, place, _alignment(vector.type.element), lanes])


def _of_some(builder, what, kind, signature):
    name = f"llvm.masked.{what}.v{kind.count}{kind.element.intrinsic_name}.p0"
    return cgutils.get_or_insert_function(builder.module, signature, name)


def _alignment(scalar):
    return INT32({"float": 4, "double": 8}[str(scalar)])


def first_lanes(builder, count, lanes):
    """The mask of so many lanes."""
    places = ir.Constant(ir.VectorType(SIZE, lanes), list(range(lanes)))
    return builder.icmp_signed("<", places, everywhere(builder, count, lanes))


def as_float(builder, value, kind, wanted):
    """Entries of weights as floats: bfloat16 comes as the upper half of a float32, int8 as whole numbers."""
    vector = isinstance(value.type, ir.VectorType)

    def of(scalar):
        return ir.VectorType(scalar, value.type.count) if vector else scalar

    if kind == types.uint16:
        bits = builder.zext(value, of(INT32))
        places = ir.Constant(bits.type, [16] * value.type.count if vector else 16)
        return builder.bitcast(builder.shl(bits, places), of(ir.FloatType()))
    return builder.sitofp(value, of(wanted)) if kind == types.int8 else value


def halves_as_floats(builder, words):
    """Two vectors of bfloat16 from one of 32 bits each: those in the lower halves, and those in the upper ones."""
    count, floats = words.type.count, ir.VectorType(ir.FloatType(), words.type.count)
    lower = builder.shl(words, ir.Constant(words.type, [16] * count))
    upper = builder.and_(words, ir.Constant(words.type, [-(1 << 16)] * count))
    return builder.bitcast(lower, floats), builder.bitcast(upper, floats)


def fused(builder, a, b, c):
    """a b + c, rounded once."""
    lanes, number = (f"v{a.type.count}", a.type.element) if isinstance(a.type, ir.VectorType) else ("", a.type)
    signature = ir.FunctionType(a.type, [a.type] * 3)
    name = f"llvm.fma.{lanes}{number.intrinsic_name}"
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), [a, b, c])


def everywhere(builder, value, lanes):
    """A vector of one value."""
    kind = ir.VectorType(value.type, lanes)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), value, INT32(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(INT32, lanes), [0] * lanes))


def every_other(builder, vector, first, step):
    """The entries from the first on, so many apart."""
    places = list(range(first, vector.type.count, step))
    return builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(INT32, len(places)), places))


def joined(builder, parts):
    """The parts of one vector, in their order, as that vector."""
    while len(parts) > 1:
        count = 2 * parts[0].type.count
        places = ir.Constant(ir.VectorType(INT32, count), list(range(count)))
        parts = [builder.shuffle_vector(*pair, places) for pair in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def added_in_halves(builder, vectors):
    """The entries of each of 1, 4, 8 or 16 vectors added up, the upper half to the lower: two vectors become one."""
    half = LANES // 2
    while half:
        lower = [start + i for start in range(0, LANES, 2 * half) for i in range(half)]
        lower += [LANES + i for i in lower]
        halves = [ir.Constant(ir.VectorType(INT32, LANES), [i + at for i in lower]) for at in (0, half)]
        pairs = zip(vectors[::2], vectors[1::2], strict=True) if len(vectors) > 1 else [vectors * 2]
        vectors = [builder.fadd(*(builder.shuffle_vector(*pair, half) for half in halves)) for pair in pairs]
        half //= 2
    return vectors[0]


def prefetch(builder, address):
    """Ask for the cache line at an address, a pointer to bytes, to be brought into the nearest cache."""
    kind = ir.FunctionType(ir.VoidType(), [address.type, INT32, INT32, INT32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    for_reading, nearness, data = INT32(0), INT32(3), INT32(1)
    builder.call(function, [address, for_reading, nearness, data])
