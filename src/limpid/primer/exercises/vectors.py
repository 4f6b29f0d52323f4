"""Vectors, and the dot product."""

from __future__ import annotations

import math

import numpy as np

from limpid.maths.foundations import cosine_similarity, dot, norm
from limpid.maths.operation import Array
from limpid.primer.exercise import Exercise, Numbers, Slip, shown

LENGTHS = ([3, 4], [6, 8], [2, 3, 6], [1, 2, 2], [2, 4, 4], [1, 4, 8], [4, 4, 7], [2, 6, 9], [6, 6, 7], [3, 4, 12],
           [2, 5, 14], [2, 10, 11], [1, 12, 12], [8, 9, 12], [1, 6, 18], [6, 6, 17],
           [6, 10, 15], [4, 5, 20], [4, 8, 19])  # fmt: skip
"""Whole numbers whose length is whole."""
PAIRS = ([3, 4], [4, 3], [5, 12], [12, 5], [8, 15], [15, 8], [7, 24], [24, 7], [20, 21], [21, 20])


def _signed(rng: np.random.Generator, of: Array) -> Array:
    return np.asarray(of) * rng.choice([-1, 1], len(of))


def _whole_length(rng: np.random.Generator) -> Numbers:
    return {"v": _signed(rng, rng.permutation(LENGTHS[rng.integers(len(LENGTHS))]))}


def _two(rng: np.random.Generator) -> Numbers:
    a, b = _signed(rng, rng.integers(1, 6, 3)), _signed(rng, rng.integers(1, 6, 3))
    (a if rng.random() < 0.5 else b)[rng.integers(3)] = 0
    return {"a": a, "b": b}


def _right_angle(rng: np.random.Generator) -> Numbers:
    x, y, k = rng.integers(1, 9, 3)
    a, b = np.array([x, y]), k * np.array([y, -x])
    return {"a": a, "b": b if rng.random() < 0.5 else -b}


def _two_lengths(rng: np.random.Generator) -> Numbers:
    one, other = rng.choice(len(PAIRS), 2, replace=False)
    return {"a": _signed(rng, np.array(PAIRS[one])), "b": np.array(PAIRS[other])}


def _with_signs(rng: np.random.Generator) -> Array:
    return _signed(rng, rng.integers(1, 10, 3))


def _sums(a: Array, b: Array) -> str:
    each = (f"{shown(x)} {'−' if y < 0 else '+'} {shown(abs(y))}" for x, y in zip(a, b, strict=True))
    return f"[{', '.join(each)}]"


def _multiples(k: float, v: Array) -> str:
    each = (shown(x) if x >= 0 else f"({shown(x)})" for x in v)
    return f"[{', '.join(f'{shown(k)} · {said}' for said in each)}]"


def _angle(a: Array, b: Array) -> float:
    """In radians."""
    return math.acos(cosine_similarity(a, b))


def _products(a: Array, b: Array) -> str:
    return " + ".join(f"({shown(x)} · {shown(y)})" for x, y in zip(a, b, strict=True))


EXERCISES = (
    Exercise(
        name="add-vectors",
        chapter="vectors",
        first={"a": np.array([2, -1, 3]), "b": np.array([4, 5, -2])},
        draw=lambda rng: {"a": _with_signs(rng), "b": _with_signs(rng)},
        ask="a = {a} and b = {b}. What is a + b? Give the list.",
        right=lambda a, b: a + b,
        solution=lambda a, b: f"a + b = {_sums(a, b)} = {shown(a + b)}",
        slips=(
            Slip("subtracted", lambda a, b: a - b, "{given} is a − b: add the entries of b."),
            Slip("turned-round", lambda a, b: b - a, "{given} is b − a: add the entries of a."),
            Slip("multiplied", lambda a, b: a * b, "{given} multiplies entry by entry: add them."),
            Slip("no-signs", lambda a, b: np.abs(a) + np.abs(b), "{given} forgets that some entries are negative."),
            Slip(
                "joined",
                lambda a, b: np.concatenate([a, b]),
                "{given} writes one behind the other: a sum has as many entries as each of them.",
            ),
            Slip(
                "one-number",
                lambda a, b: (a + b).sum(),
                "{given} adds up everything: the sum of two vectors is a vector.",
            ),
        ),
        hints=("Add the first entry of b to the first of a.", "Adding a negative number takes away.", "So each entry."),
    ),
    Exercise(
        name="scale-vector",
        chapter="vectors",
        first={"k": 3, "v": np.array([2, -1, 4])},
        draw=lambda rng: {"k": int(rng.choice([-5, -4, -3, -2, 2, 3, 4, 5])), "v": _with_signs(rng)},
        ask="v = {v}. What is {k} · v? Give the list.",
        right=lambda k, v: k * v,
        solution=lambda k, v: f"{shown(k)} · v = {_multiples(k, v)} = {shown(k * v)}",
        slips=(
            Slip("added", lambda k, v: k + v, "{given} adds the number to every entry: multiply by it."),
            Slip(
                "first-alone",
                lambda k, v: np.concatenate([k * v[:1], v[1:]]),
                "{given} multiplies the first entry alone: the number goes to each.",
            ),
            Slip("no-signs", lambda k, v: np.abs(k * v), "{given} forgets that some of these numbers are negative."),
            Slip("other-sign", lambda k, v: -k * v, "{given} has all signs the wrong way: minus times minus is plus."),
            Slip("one-number", lambda k, v: k * v.sum(), "{given} adds up the entries: they stay a list."),
        ),
        hints=("Multiply the first entry by the number.", "Then the others too.", "Mind the signs."),
    ),
    Exercise(
        name="length",
        chapter="vectors",
        first={"v": np.array([6, 2, 3])},
        draw=_whole_length,
        ask="How long is v = {v}? Give ‖v‖.",
        right=norm,
        solution=lambda v: (
            f"‖v‖ = √({' + '.join(f'{shown(abs(x))}²' for x in v)}) = √{shown(dot(v, v))} = {shown(norm(v))}"
        ),
        slips=(
            Slip("no-root", lambda v: dot(v, v), "{given} is the sum of the squares. Which number has this square?"),
            Slip("no-square", lambda v: np.abs(v).sum(), "{given} is the sum of the entries: square each one first."),
            Slip(
                "signed-sum",
                lambda v: v.sum() if (v < 0).any() else None,
                "{given} comes of the entries as they are: each has to be squared, then added.",
            ),
            Slip("negative", lambda v: -norm(v), "{given}: a length is never negative; of both roots it is the other."),
        ),
        hints=("Square every entry.", "Add the squares.", "The length is the square root of their sum."),
        unit="units",
    ),
    Exercise(
        name="dot",
        chapter="similarity",
        first={"a": np.array([1, 3, 5]), "b": np.array([2, 0, 4])},
        draw=_two,
        ask="a = {a} and b = {b}. What is a · b?",
        right=dot,
        solution=lambda a, b: f"a · b = {_products(a, b)} = {shown(dot(a, b))}",
        slips=(
            Slip("no-sum", lambda a, b: a * b, "{given} are the products; the dot product is one number."),
            Slip(
                "zero-is-one",
                lambda a, b: np.where((a == 0) | (b == 0), a + b, a * b).sum(),
                "{given} is what comes out when a product with 0 is taken as the other number: it is 0.",
            ),
            Slip(
                "sign",
                lambda a, b: -dot(a, b),
                "{given} has the other sign: a product is negative where one factor is, not both.",
            ),
            Slip("sum-of-all", lambda a, b: (a + b).sum(), "{given} adds all entries: multiply entry by entry first."),
            Slip(
                "no-signs",
                lambda a, b: np.abs(a * b).sum() if (a * b < 0).any() else None,
                "{given} forgets that a product of a positive and a negative number is negative.",
            ),
        ),
        hints=(
            "Multiply the first entries, the second, the third.",
            "Mind the signs, and what 0 does to a product.",
            "Add the three products.",
        ),
    ),
    Exercise(
        name="right-angle",
        chapter="similarity",
        first={"a": np.array([1, 2]), "b": np.array([2, -1])},
        draw=_right_angle,
        ask="What is the cosine of the angle between a = {a} and b = {b}?",
        right=cosine_similarity,
        solution=lambda a, b: f"a · b = {_products(a, b)} = 0, so the cosine is 0: they stand at right angles",
        slips=(
            Slip("no-signs", lambda a, b: np.abs(a * b).sum(), "{given} adds products without their signs."),
            Slip(
                "no-signs-divided",
                lambda a, b: np.abs(a * b).sum() / (norm(a) * norm(b)),
                "{given} is what comes out when a minus is lost among the products.",
            ),
            Slip("angle", lambda a, b: 90.0, "{given} is the angle, in degrees: its cosine is asked for."),
            Slip("angle-in-radians", lambda a, b: math.pi / 2, "{given} is the angle itself: its cosine is asked for."),
            Slip("same-direction", lambda a, b: 1.0, "{given} is the cosine of two vectors that point the same way."),
        ),
        hints=("Form the dot product, with its signs.", "Divide it by both lengths.", "What is 0 divided by anything?"),
        decimals=2,
    ),
    Exercise(
        name="cosine",
        chapter="similarity",
        first={"a": np.array([3, 4]), "b": np.array([4, 3])},
        draw=_two_lengths,
        ask="What is the cosine of the angle between a = {a} and b = {b}?",
        right=cosine_similarity,
        solution=lambda a, b: (
            f"a · b = {_products(a, b)} = {shown(dot(a, b))}, ‖a‖ = {shown(norm(a))}, ‖b‖ = {shown(norm(b))}; "
            f"{shown(dot(a, b))} / ({shown(norm(a))} · {shown(norm(b))}) = {shown(cosine_similarity(a, b))}"
        ),
        slips=(
            Slip("not-normalised", dot, "{given} is the dot product; the cosine is that divided by both lengths."),
            Slip(
                "no-root",
                lambda a, b: dot(a, b) / (dot(a, a) * dot(b, b)),
                "{given} divides by the squares of the lengths: take their roots.",
            ),
            Slip("angle", lambda a, b: math.degrees(_angle(a, b)), "{given} is the angle: its cosine is asked for."),
            Slip("angle-in-radians", _angle, "{given} is the angle, in radians: its cosine is asked for."),
            Slip(
                "lengths-added",
                lambda a, b: dot(a, b) / (norm(a) + norm(b)),
                "{given} divides by the sum of the lengths: it is their product.",
            ),
        ),
        hints=("Form the dot product.", "Form both lengths.", "Divide the first by the product of the others."),
    ),
)
