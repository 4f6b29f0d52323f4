"""Exponentials and logarithms."""

from __future__ import annotations

import math

import numpy as np

from limpid.primer.exercise import Exercise, Slip, shown
from limpid.primer.exercises.twists import sign


def _taken(b: float) -> str:
    return shown(b) if b >= 0 else f"({shown(b)})"


EXERCISES = (
    Exercise(
        name="exponentials",
        chapter="logarithms",
        first={"x": np.array([0, 1, -1])},
        draw=lambda rng: {"x": rng.permutation([0, *rng.choice(np.arange(1, 4), 1), -rng.choice(np.arange(1, 4))])},
        ask="What are the exponentials of {x}? Give a list.",
        right=lambda x: np.exp(x.astype(float)),
        solution=lambda x: ", ".join(f"e^{shown(one)} = {shown(math.exp(one))}" for one in x),
        slips=(
            Slip(
                "zero-gives-zero",
                lambda x: np.where(x == 0, 0.0, np.exp(x.astype(float))),
                "{given}: any number to the power of 0 is 1, not 0.",
            ),
            Slip(
                "negative-result",
                lambda x: np.sign(x + (x == 0)) * np.exp(np.abs(x.astype(float))),
                "{given}: an exponential is never negative; a negative power is one over the positive one.",
            ),
            Slip("times-e", lambda x: x * math.e, "{given} multiplies with e: it is the power that is asked for."),
            Slip("base-2", lambda x: 2.0 ** x.astype(float), "{given} are powers of 2; exp takes those of e = 2.718…."),
            Slip(
                "base-10", lambda x: 10.0 ** x.astype(float), "{given} are powers of 10; exp takes those of e = 2.718…."
            ),
        ),
        hints=("e^0 is the same for every base.", "e^1 is e itself.", "e^(−a) is 1 / e^a."),
    ),
    Exercise(
        name="undo-ln",
        chapter="logarithms",
        first={"y": 3},
        draw=lambda rng: {"y": round(float(rng.uniform(-3, 5)), 1)},
        ask="ln x = {y}. What is x?",
        right=lambda y: math.exp(y),
        solution=lambda y: f"exp undoes ln: x = e^{shown(y)} = {shown(math.exp(y))}",
        slips=(
            Slip("base-10", lambda y: 10.0**y, "{given} is 10 to this power: ln is to base e."),
            Slip("base-2", lambda y: 2.0**y, "{given} is 2 to this power: ln is to base e."),
            Slip(
                "ln-again",
                lambda y: math.log(abs(y)) if y not in (0, 1, -1) else None,
                "{given} takes the logarithm once more: what undoes it?",
            ),
            Slip("times-e", lambda y: y * math.e, "{given} multiplies with e: raise e to this power."),
        ),
        hints=("What undoes a logarithm?", "e to the power of both sides.", "e^(ln x) is x."),
    ),
    Exercise(
        name="logs-add",
        chapter="logarithms",
        first={"a": 5, "b": 3},
        draw=lambda rng: {"a": int(rng.integers(2, 12)), "b": int(rng.integers(2, 12))},
        ask="What is ln(e^{a}) + ln(e^{b})?",
        right=lambda a, b: math.fsum((a, b)),
        solution=lambda a, b: f"ln(e^{a}) = {a}; ln(e^{b}) = {b}; together {a} + {b} = {shown(math.fsum((a, b)))}",
        slips=(
            Slip("multiplied", lambda a, b: a * b, "{given} is the product: logarithms turn products into sums."),
            Slip(
                "log-of-sum", lambda a, b: math.log(a + b), "{given} takes a logarithm once more: ln undoes e^ at once."
            ),
            Slip("not-undone", lambda a, b: math.exp(a + b), "{given} is e to that: its logarithm is asked for."),
            Slip(
                "one-forgotten",
                lambda a, b: math.exp(a) + b if a > b else a + math.exp(b),
                "{given}: both logarithms undo their exponential.",
            ),
        ),
        hints=("ln undoes exp.", "The logarithm of a power of e is that power.", "Add both."),
        twists=(sign("ln undoes e^: no minus comes in."),),
    ),
    Exercise(
        name="log-laws",
        chapter="logarithms",
        first={"a": 3, "b": 2},
        draw=lambda rng: {"a": int(rng.integers(2, 13)), "b": int(rng.integers(2, 13))},
        ask="ln x = {a} and ln y = {b}. What is ln(x² / y)?",
        right=lambda a, b: math.fsum((2 * a, -b)),
        solution=lambda a, b: (
            f"ln x² = 2 ln x = {shown(2 * a)}; ln(x² / y) = ln x² − ln y = {shown(2 * a)} − {_taken(b)} = "
            f"{shown(2 * a - b)}"
        ),
        slips=(
            Slip("no-square", lambda a, b: a - b, "{given} is ln(x / y): what does the square of x do to ln x?"),
            Slip("squared", lambda a, b: a * a - b, "{given} squares ln x: a power becomes a factor, not a power."),
            Slip("added", lambda a, b: 2 * a + b, "{given} is ln(x² · y): dividing takes a logarithm away."),
            Slip("divided", lambda a, b: 2 * a / b, "{given} divides the logarithms: what stands for a division?"),
        ),
        hints=("Write x² as x · x.", "A product's logarithm is a sum.", "A quotient's logarithm is a difference."),
    ),
)
