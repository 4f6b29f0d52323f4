"""Where descent ends when many places fit, and how a step on one example moves another."""

from __future__ import annotations

import numpy as np

from limpid.maths.foundations import dot, least_norm, norm, tangent_kernel
from limpid.maths.operation import Array
from limpid.primer.exercise import Exercise, Numbers, Slip, shown


def _equation(rng: np.random.Generator) -> Numbers:
    a = rng.permutation([int(rng.integers(1, 6)), int(rng.integers(1, 6))])
    return {"a": a, "b": int(rng.integers(1, 6)) * int(dot(a, a)) // int(rng.choice([1, 2]))}


def _shortest(a: Array, b: float) -> Array:
    return least_norm(a[None], [b])


def _gradients(rng: np.random.Generator) -> Numbers:
    first, second = rng.integers(-4, 5, (2, 2))
    return {"first": first, "second": second, "r": int(rng.integers(1, 6)), "rate": int(rng.integers(1, 6)) / 10}


def _change(first: Array, second: Array, r: float, rate: float) -> float:
    """Of the first output, in a step on the second example alone."""
    return -rate * float(tangent_kernel([first, second])[0, 1]) * r


EXERCISES = (
    Exercise(
        name="least-norm",
        chapter="gradient-descent",
        first={"a": np.array([3, 4]), "b": 50},
        draw=_equation,
        ask="Two weights w are to have the dot product {b} with {a}. Gradient descent on half the squared error "
        "starts at [0, 0], with a small rate. Where does it end?",
        right=_shortest,
        solution=lambda a, b: (
            f"every step is a multiple of {shown(a)}, so the end is c · {shown(a)}; its dot product with {shown(a)} is "
            f"c · {shown(dot(a, a))} = {shown(b)}, so c = {shown(b / dot(a, a))} and w = {shown(_shortest(a, b))}"
        ),
        slips=(
            Slip(
                "length-not-squared",
                lambda a, b: a * b / norm(a),
                "{given} divides by the length: the dot product of a vector with itself is the length squared.",
            ),
            Slip("not-divided", lambda a, b: a * b, "{given} points the right way: does it fit the example?"),
            Slip(
                "first-alone",
                lambda a, b: np.array([b / a[0], 0.0]),
                "{given} fits, but descent never moves one weight alone here: the gradient has both.",
            ),
            Slip(
                "equal-weights",
                lambda a, b: np.full(2, b / a.sum()),
                "{given} fits, with equal weights: the gradient moves them in another proportion.",
            ),
            Slip("unmoved", lambda a, b: np.zeros(2), "{given} is the start: what is the gradient there?"),
        ),
        hints=("In which direction does every step go?", "So w is some number times a.", "Which number fits?"),
    ),
    Exercise(
        name="kernel-change",
        chapter="width",
        first={"first": np.array([1, 2]), "second": np.array([3, 1]), "r": 2, "rate": 0.1},
        draw=_gradients,
        ask="A network has two weights. The gradient of its output for example A is {first}, for example B {second}. "
        "On B it is too high by {r}. By how much does a step on B alone change the output for A, to first order? The "
        "loss is half the squared error, the rate {rate}.",
        right=_change,
        solution=lambda first, second, r, rate: (
            f"{shown(first)} · {shown(second)} = {shown(dot(first, second))}; −{shown(rate)} · "
            f"{shown(dot(first, second))} · {shown(r)} = {shown(_change(first, second, r, rate))}"
        ),
        slips=(
            Slip("uphill", lambda *given: -_change(*given), "{given} has the wrong sign: the output is too high."),
            Slip(
                "of-itself",
                lambda first, second, r, rate: -rate * dot(second, second) * r,
                "{given} is how B's own output changes: A's is asked for.",
            ),
            Slip(
                "other-way",
                lambda first, second, r, rate: -rate * dot(first, first) * r,
                "{given} moves the weights along A's gradient: the step is on B.",
            ),
            Slip("no-rate", lambda first, second, r, rate: -dot(first, second) * r, "{given} leaves out the rate."),
            Slip(
                "no-error",
                lambda first, second, r, rate: -rate * dot(first, second),
                "{given} leaves out how far B's output is off.",
            ),
        ),
        hints=(
            "How do the weights change?",
            "The output for A changes by its gradient times that.",
            "Minus rate · dot product of the gradients · error.",
        ),
    ),
)
