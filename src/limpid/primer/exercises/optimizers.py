"""Optimizers: what momentum remembers, clipping, and AdamW's first step."""

from __future__ import annotations

import math

import numpy as np

from limpid.maths.foundations import momentum_window
from limpid.maths.operation import Array
from limpid.maths.update import AdamW, clip_scale, global_norm
from limpid.primer.exercise import Exercise, Numbers, Slip, shown
from limpid.primer.exercises.vectors import LENGTHS
from limpid.primer.updates import updates, written

BETAS = (0.5, 0.75, 0.8, 0.9, 0.95, 0.96, 0.975, 0.98, 0.99, 0.995, 0.998, 0.999)


def _window(beta: float) -> float:
    return round(momentum_window(beta), 6)


def _two_gradients(rng: np.random.Generator) -> Numbers:
    every = rng.permutation(LENGTHS[rng.integers(2, len(LENGTHS))]) * rng.choice([-1, 1], 3)
    return {"a": every[:2], "b": every[2:], "limit": float(rng.choice([0.25, 0.5, 1.0, 2.0]))}


def _factor(a: Array, b: Array, limit: float) -> float:
    return clip_scale(global_norm({"a": a.astype(float), "b": b.astype(float)}), limit)


def _one_weight(rng: np.random.Generator) -> Numbers:
    return {
        "theta": round(float(rng.choice([-1, 1]) * rng.integers(3, 31)) / 10, 1),
        "g": round(float(rng.choice([-1, 1]) * rng.choice([0.1, 0.2, 0.3, 0.4, 0.5, 2.0, 3.0, 4.0])), 1),
        "rate": float(rng.choice([0.05, 0.1, 0.2])),
        "decay": float(rng.choice([0.05, 0.1, 0.2])),
    }


def _adamw(theta: float, g: float, rate: float, decay: float) -> float:
    return float(updates(AdamW(decay), theta, [g], rate)[0]["parameter"])


def _decayed(theta: float, g: float, rate: float, decay: float) -> float:
    return float(updates(AdamW(decay), theta, [g], rate)[0]["theta"])


def _uncorrected(theta: float, g: float, rate: float, decay: float) -> float:
    terms = updates(AdamW(decay), theta, [g], rate)[0]
    return float(terms["theta"] - rate * terms["m"] / math.sqrt(terms["v"]))


EXERCISES = (
    Exercise(
        name="momentum-window",
        chapter="optimizers",
        first={"beta": 0.99},
        draw=lambda rng: {"beta": float(rng.choice(BETAS))},
        ask="A running mean of gradients keeps β = {beta} of itself in every step. Over how many steps does it "
        "remember?",
        right=_window,
        solution=lambda beta: f"1 / (1 − β) = 1 / {shown(round(1 - beta, 6))} = {shown(_window(beta))}",
        slips=(
            Slip("share", lambda beta: round(1 - beta, 6), "{given} is what the newest gradient counts: one over it."),
            Slip(
                "off-by-one",
                lambda beta: round(beta / (1 - beta), 6),
                "{given} is β / (1 − β); asked for is 1 / (1 − β).",
            ),
            Slip("inverse", lambda beta: 1 / beta, "{given} is one over β: what is kept, not what is replaced."),
            Slip(
                "half-life",
                lambda beta: math.log(0.5) / math.log(beta) if beta != 0.5 else None,
                "{given} is when a gradient counts half as much: the window is longer.",
            ),
        ),
        hints=("Which share of the mean is replaced in one step?", "It is 1 − β.", "One over that share."),
        unit="steps",
    ),
    Exercise(
        name="clip-factor",
        chapter="optimizers",
        first={"a": np.array([6, 2]), "b": np.array([3]), "limit": 1.0},
        draw=_two_gradients,
        ask="A model has two parameters. Their gradients are {a} and {b}; clipping holds the global norm at {limit}. "
        "By what is every gradient multiplied?",
        right=_factor,
        solution=lambda a, b, limit: (
            f"‖g‖ = √({' + '.join(f'{shown(abs(x))}²' for x in (*a, *b))}) = {shown(math.hypot(*a, *b))}; "
            f"{shown(limit)} / {shown(math.hypot(*a, *b))} = {shown(_factor(a, b, limit), 3)}"
        ),
        slips=(
            Slip(
                "first-alone",
                lambda a, b, limit: limit / math.hypot(*a),
                "{given} clips the first gradient by its own norm: one norm is taken over both.",
            ),
            Slip(
                "second-alone",
                lambda a, b, limit: limit / math.hypot(*b),
                "{given} clips the second gradient by its own norm: one norm is taken over both.",
            ),
            Slip(
                "no-root",
                lambda a, b, limit: limit / math.hypot(*a, *b) ** 2,
                "{given} divides by the sum of the squares: take its root.",
            ),
            Slip(
                "turned-round",
                lambda a, b, limit: math.hypot(*a, *b) / limit,
                "{given} would make the gradients longer: which of the two numbers is to come out?",
            ),
            Slip(
                "norms-added",
                lambda a, b, limit: limit / (math.hypot(*a) + math.hypot(*b)),
                "{given} adds two norms: add the squares of all entries, then take one root.",
            ),
        ),
        hints=(
            "Put all entries of both gradients into one list.",
            "How long is that list, as a vector?",
            "The limit divided by this length.",
        ),
    ),
    Exercise(
        name="adamw-first-step",
        chapter="optimizers",
        first={"theta": 0.5, "g": -0.2, "rate": 0.1, "decay": 0.1},
        draw=_one_weight,
        ask="A weight θ is {theta}, its gradient g is {g}. AdamW makes its first update, with learning rate η = {rate} "
        "and weight decay λ = {decay}. What is θ then?",
        right=_adamw,
        solution=lambda theta, g, rate, decay: "\n".join(written(AdamW(decay), theta, g, rate)),
        slips=(
            Slip(
                "gradient-itself",
                lambda theta, g, rate, decay: _decayed(theta, g, rate, decay) - rate * g,
                "{given} steps by η g: AdamW divides by the root of the mean square first.",
            ),
            Slip(
                "ascent",
                lambda theta, g, rate, decay: 2 * _decayed(theta, g, rate, decay) - _adamw(theta, g, rate, decay),
                "{given} goes up the slope: a step goes against the gradient.",
            ),
            Slip(
                "no-decay",
                lambda theta, g, rate, decay: _adamw(theta, g, rate, 0.0),
                "{given} leaves out weight decay: θ first shrinks by the share η λ.",
            ),
            Slip(
                "decay-without-rate",
                lambda theta, g, rate, decay: _adamw(theta, g, rate, decay) - theta * (1 - rate) * decay,
                "{given} shrinks θ by the share λ: the share is η λ.",
            ),
            Slip("decay-alone", _decayed, "{given} is θ once it has shrunk: the step of the gradient follows."),
            Slip("not-corrected", _uncorrected, "{given} takes m and v as they are: both began at 0, so correct them."),
            Slip(
                "no-root",
                lambda theta, g, rate, decay: _decayed(theta, g, rate, decay) - rate / g,
                "{given} divides by the mean square: take its root.",
            ),
        ),
        hints=(
            "Shrink θ by the share η λ.",
            "In the first update the corrected mean is g, and the corrected mean square is g².",
            "So the step is η times the sign of g.",
        ),
        decimals=3,
    ),
)
