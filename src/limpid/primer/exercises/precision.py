"""Precision: the bias of an exponent, the largest number of a format, the gap between neighbours."""

from __future__ import annotations

import numpy as np

from limpid.primer.exercise import Exercise, Numbers, Slip, shown
from limpid.primer.stored import bias, gap, largest, stored

BFLOAT16 = "bfloat16"


def _whole_format(rng: np.random.Generator) -> Numbers:
    return {"exponent": int(rng.integers(3, 7)), "fraction": int(rng.integers(2, 11))}


def _exact(rng: np.random.Generator) -> Numbers:
    return {"x": float(2.0 ** int(rng.integers(-3, 13)) * (1 + int(rng.integers(1, 8)) / 8))}


def _power_below(x: float) -> float:
    """The largest power of two that is at most x."""
    return gap(x, BFLOAT16) / gap(1.0, BFLOAT16)


EXERCISES = (
    Exercise(
        name="exponent-bias",
        chapter="precision",
        first={"bits": 8},
        draw=lambda rng: {"bits": int(rng.integers(3, 16))},
        ask="A format stores the exponent in {bits} bits. What is its bias?",
        right=bias,
        solution=lambda bits: (
            f"half of the 2^{bits} values lie below: 2^({bits} − 1) − 1 = {shown(2 ** (bits - 1))} − 1 = "
            f"{shown(bias(bits))}"
        ),
        slips=(
            Slip("off-by-one", lambda bits: 2 ** (bits - 1), "{given} is half of all values: the bias is one less."),
            Slip("all-ones", lambda bits: 2**bits - 1, "{given} is the largest value that these bits can store."),
            Slip("power", lambda bits: 2**bits, "{given} is how many values there are: the bias lies in their middle."),
        ),
        hints=(
            "How many values can the bits take?",
            "Half of them are to stand for powers below 1.",
            "Half of the values, less one.",
        ),
    ),
    Exercise(
        name="largest-number",
        chapter="precision",
        first={"exponent": 5, "fraction": 10},
        draw=_whole_format,
        ask="A format has {exponent} exponent bits and {fraction} fraction bits; an exponent of all ones stands for "
        "infinity. What is its largest number?",
        right=largest,
        solution=lambda exponent, fraction: (
            f"the largest power left is 2^{bias(exponent)} = {shown(2.0 ** bias(exponent))}, and the largest factor "
            f"2 − 2^(−{fraction}) = {shown(2 - 2.0**-fraction, 8)}: together {shown(largest(exponent, fraction), 12)}"
        ),
        slips=(
            Slip(
                "infinity-used",
                lambda exponent, fraction: 2 * largest(exponent, fraction),
                "{given} uses the exponent of all ones: that one is taken.",
            ),
            Slip(
                "no-fraction",
                lambda exponent, fraction: 2.0 ** bias(exponent),
                "{given} is the largest power of two: the fraction adds to it.",
            ),
            Slip(
                "fraction-full",
                lambda exponent, fraction: 2.0 ** (bias(exponent) + 1),
                "{given} takes the factor to be 2: it stays below, by the last bit.",
            ),
        ),
        hints=(
            "What is the bias, and which is the largest exponent that is not all ones?",
            "The factor is 1 plus the fraction, all of whose bits are ones.",
            "That factor lies below 2 by one unit of its last bit.",
        ),
    ),
    Exercise(
        name="bfloat16-gap",
        chapter="precision",
        first={"x": 100.0},
        draw=_exact,
        ask="bfloat16 has 7 fraction bits. How far apart are its numbers around {x}?",
        right=lambda x: gap(stored(x, BFLOAT16), BFLOAT16),
        solution=lambda x: (
            f"{shown(x)} lies between {shown(_power_below(x))} and {shown(2 * _power_below(x))}, where there are 2^7 = "
            f"{2**7} numbers: {shown(_power_below(x))} / {2**7} = {shown(gap(x, BFLOAT16))}"
        ),
        slips=(
            Slip(
                "epsilon",
                lambda x: gap(1.0, BFLOAT16),
                "{given} is the gap above 1: it doubles at every power of two.",
            ),
            Slip(
                "share-of-x",
                lambda x: x * gap(1.0, BFLOAT16),
                "{given} is a share of the number: the gap is the same all the way from one power of two to the next.",
            ),
            Slip("half", lambda x: gap(x, BFLOAT16) / 2, "{given} is how far rounding can move a number, half a gap."),
            Slip(
                "power-above",
                lambda x: 2 * gap(x, BFLOAT16),
                "{given} is the gap beyond the next power of two: take the power below.",
            ),
        ),
        hints=(
            "Between which two powers of two does it lie?",
            "The bits of the fraction divide the way between them into equal steps.",
            "The power below, divided by the number of steps.",
        ),
    ),
)
