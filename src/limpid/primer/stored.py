"""How numbers are stored: their bits, their gaps, and sums that round after every addition."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from limpid.maths.rounding import FORMATS, bound, rounded, smallest_normal, unit_roundoff

DTYPES: dict[str, np.dtype[Any]] = {
    "float64": FORMATS["fp64"],
    "float32": FORMATS["fp32"],
    "bfloat16": FORMATS["bf16"],
    "float16": FORMATS["fp16"],
    "float8 e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8 e5m2": np.dtype(ml_dtypes.float8_e5m2),
}


class Bits(NamedTuple):
    """A stored number, bit by bit."""

    sign: str
    exponent: str
    fraction: str
    value: float


class Format(NamedTuple):
    """What a format can hold."""

    name: str
    bits: int
    exponent: int
    fraction: int
    largest: float
    smallest: float
    """Of full precision."""
    epsilon: float
    """From 1 to the next number."""


def stored(value: float, name: str) -> float:
    """The nearest number that the format has."""
    return float(rounded(np.asarray(value, dtype=np.float64), DTYPES[name]))


def bits(value: float, name: str) -> Bits:
    """The bits of the nearest number that the format has."""
    info = ml_dtypes.finfo(DTYPES[name])
    with np.errstate(over="ignore"):  # what is too large becomes infinite
        kept = np.asarray(value, dtype=np.float64).astype(DTYPES[name])
    pattern = f"{int(kept.view(f'u{info.bits // 8}')):0{info.bits}b}"
    return Bits(pattern[0], pattern[1 : 1 + info.nexp], pattern[1 + info.nexp :], float(kept))


def fields(value: float, name: str) -> dict[str, float]:
    """The sign bit, the exponent as a whole number, the bias, and the fraction."""
    one = bits(value, name)
    return {
        "sign": int(one.sign),
        "exponent": int(one.exponent, 2),
        "bias": bias(len(one.exponent)),
        "fraction": int(one.fraction, 2) / 2 ** len(one.fraction),
    }


def bias(exponent_bits: int) -> int:
    """What is taken from a stored exponent, so that it can be negative."""
    return int(2 ** (exponent_bits - 1) - 1)


def largest(exponent_bits: int, fraction_bits: int) -> float:
    """The largest number of a format whose highest exponent stands for infinity."""
    return float((2 - 2.0**-fraction_bits) * 2.0 ** bias(exponent_bits))


def gap(value: float, name: str) -> float:
    """From a number to the next larger one in size."""
    return float(2.0 ** (math.frexp(abs(value))[1] - 1) * 2 * unit_roundoff(DTYPES[name]))


def numbers(name: str, start: float, stop: float) -> list[float]:
    """Every number of a small format from one that it has to another."""
    found = [start]
    while found[-1] < stop:
        found.append(found[-1] + gap(found[-1], name))
    return found


def formats() -> list[Format]:
    """Every format with what it can hold."""
    table = []
    for name, dtype in DTYPES.items():
        info = ml_dtypes.finfo(dtype)
        table.append(
            Format(name, info.bits, info.nexp, info.nmant, float(info.max), smallest_normal(dtype),
                   2 * unit_roundoff(dtype))
        )  # fmt: skip
    return table


def added(start: float, term: float, times: int, name: str) -> float:
    """A sum that is rounded after every addition."""
    total, one = stored(start, name), stored(term, name)
    for _ in range(times):
        total = stored(total + one, name)
    return total


def sum_bound(terms: list[float], name: str) -> float:
    """How far a sum of so many terms in this format may lie from the true one, each addition being rounded."""
    roundings = (len(terms) - 1) * sum(map(abs, terms))
    return float(bound(np.asarray(sum(terms)), np.asarray(roundings), stored=np.float64, summed=DTYPES[name]))


NAMES: dict[str, Any] = {
    "stored": stored, "bits": bits, "fields": fields, "bias": bias, "gap": gap, "numbers": numbers, "formats": formats,
    "added": added, "largest": largest, "sum_bound": sum_bound,
}  # fmt: skip
"""What a chapter may compute with."""
