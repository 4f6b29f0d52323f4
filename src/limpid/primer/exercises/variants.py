"""Attention's variants: the sum that is carried along, and the scores of a window."""

from __future__ import annotations

import math

import numpy as np

from limpid.maths.attention import CausalSoftmax
from limpid.maths.foundations import log_sum_exp
from limpid.primer.exercise import Exercise, Numbers, Slip, shown


def _running(rng: np.random.Generator) -> Numbers:
    m = int(rng.integers(-3, 6))
    return {"m": m, "total": round(1 + int(rng.integers(1, 90)) / 20, 2), "s": m + int(rng.integers(1, 5))}


def _carried(m: int, total: float, s: int) -> float:
    """The sum of exponentials below the new largest score."""
    return float(np.exp(log_sum_exp(np.array([m + math.log(total), s])) - s))


def _window(rng: np.random.Generator) -> Numbers:
    return {"tokens": int(rng.integers(5, 41)) * 10, "window": int(rng.integers(3, 31))}


def _seen(tokens: int, window: int | None) -> int:
    return int(CausalSoftmax(window).visible(tokens, tokens).sum())


def _cell(rng: np.random.Generator) -> Numbers:
    c, g = int(rng.integers(2, 10)) * int(rng.choice([-1, 1])), int(rng.integers(1, 10)) * int(rng.choice([-1, 1])) / 10
    f, i = (round(float(share), 2) for share in rng.choice(np.arange(1, 20), 2, replace=False) / 20)
    return {"c": c, "f": f, "i": i, "g": g}


def _written(c: int, f: float, i: float, g: float) -> float:
    """The cell after a token."""
    return f * c + i * g


EXERCISES = (
    Exercise(
        name="online-sum",
        chapter="attention-variants",
        first={"m": 3, "total": 1.5, "s": 5},
        draw=_running,
        ask="The largest score so far is m = {m}, and the sum of exponentials ℓ = {total}. Now the score {s} comes. "
        "What does ℓ become?",
        right=_carried,
        solution=lambda m, total, s: (
            f"the largest is now {shown(s)}: e^({shown(m)} − {shown(s)}) · {shown(total)} + e^0 = "
            f"{shown(math.exp(m - s), 4)} · {shown(total)} + 1 = {shown(_carried(m, total, s))}"
        ),
        slips=(
            Slip(
                "not-shrunk",
                lambda m, total, s: total + 1,
                "{given} leaves the old sum as it was: it was counted from a smaller largest score.",
            ),
            Slip(
                "old-largest",
                lambda m, total, s: total + math.exp(s - m),
                "{given} counts from the old largest score: there is a larger one now.",
            ),
            Slip(
                "grown",
                lambda m, total, s: total * math.exp(s - m) + 1,
                "{given} makes the old sum larger: beside a larger score it becomes smaller.",
            ),
            Slip(
                "new-forgotten",
                lambda m, total, s: total * math.exp(m - s),
                "{given} is the old sum, shrunk: what does the new score itself add?",
            ),
        ),
        hints=(
            "Which score is the largest now?",
            "Multiply the old sum by e to the old largest minus the new one.",
            "Add e to the new score minus the largest.",
        ),
    ),
    Exercise(
        name="window-scores",
        chapter="attention-variants",
        first={"tokens": 100, "window": 10},
        draw=_window,
        ask="{tokens} tokens, each sees the last {window}, itself included. How many scores has one head?",
        right=_seen,
        solution=lambda tokens, window: (
            f"the first {window} see 1 + 2 + … + {window} = {shown(window * (window + 1) // 2)}, the other "
            f"{tokens - window} see {window} each: {shown(_seen(tokens, window))}"
        ),
        slips=(
            Slip(
                "all-full",
                lambda tokens, window: tokens * window,
                "{given} gives each token a full window: the first ones have fewer before them.",
            ),
            Slip("no-window", lambda tokens, window: _seen(tokens, None), "{given} is without the window."),
            Slip(
                "besides-itself",
                lambda tokens, window: _seen(tokens, window + 1),
                "{given} counts each token besides its window: it is in it.",
            ),
            Slip(
                "first-forgotten",
                lambda tokens, window: (tokens - window) * window,
                "{given} leaves out the first tokens, whose windows are not full.",
            ),
        ),
        hints=("How many does the first token see, and the second?", "From which token on is the window full?", "Add."),
        unit="scores",
    ),
    Exercise(
        name="cell-step",
        chapter="attention-variants",
        first={"c": 4, "f": 0.75, "i": 0.5, "g": -0.8},
        draw=_cell,
        ask="One entry of an LSTM's cell is {c}. Of it {f} is kept; of {g}, which there is to write, {i} is "
        "written. What is the entry now?",
        right=_written,
        solution=lambda c, f, i, g: (
            f"{shown(f)} · {shown(c)} + {shown(i)} · {shown(g)} = {shown(f * c)} + {shown(i * g)} = "
            f"{shown(_written(c, f, i, g))}"
        ),
        slips=(
            Slip(
                "gates-exchanged",
                lambda c, f, i, g: i * c + f * g,
                "{given} gives each gate to the other: what is kept is of the cell, what is written of the new.",
            ),
            Slip("all-written", lambda c, f, i, g: f * c + g, "{given} writes all of it: it has a gate, too."),
            Slip("all-kept", lambda c, f, i, g: c + i * g, "{given} keeps the whole cell: it has a gate, too."),
            Slip(
                "forgotten-share",
                lambda c, f, i, g: (1 - f) * c + i * g,
                "{given} takes away what is to be kept: this gate says how much stays.",
            ),
            Slip(
                "one-gate",
                lambda c, f, i, g: f * c + (1 - f) * g,
                "{given} writes what the first gate leaves free: an LSTM has a second gate for writing.",
            ),
            Slip("old-lost", lambda c, f, i, g: i * g, "{given} is what is written: where is what was kept?"),
        ),
        hints=("How much of the old entry is left?", "How much is written?", "Add the two."),
    ),
)
