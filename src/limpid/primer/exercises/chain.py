"""The chain rule, and back-propagation."""

from __future__ import annotations

import numpy as np

from limpid.maths.foundations import chain_rule, gradient
from limpid.maths.operation import Array
from limpid.primer.cases.network import Passed, passed
from limpid.primer.exercise import Exercise, Numbers, Slip, shown
from limpid.primer.exercises.twists import sign


def _inside(rng: np.random.Generator) -> Numbers:
    return {
        "a": int(rng.choice([-4, -3, -2, 2, 3, 4, 5])),
        "b": int(rng.choice([-3, -2, -1, 1, 2, 3, 4])),
        "n": int(rng.integers(2, 5)),
        "x": int(rng.choice([-2, -1, 1, 2, 3])),
    }


def _whole(a: int, b: int, n: int, x: int) -> float:
    return float(gradient(lambda at: (a * at[0] + b) ** n, np.array([float(x)]))[0])


def _line(a: int, b: int) -> str:
    return shown(a) + " x" + (f" {'−' if b < 0 else '+'} {abs(b)}" if b else "")


def _unit(rng: np.random.Generator) -> Numbers:
    x, w = rng.integers(1, 5, 2), rng.integers(1, 4, 2)
    return {"x": x, "w": w, "v": int(rng.choice([2, 3, 4])), "t": int(rng.integers(1, 30))}


def _pass(x: Array, w: Array, v: float, t: float) -> Passed:
    return passed(list(x), np.atleast_2d(w), [v], t)


def _slopes(rng: np.random.Generator) -> Numbers:
    return {"s": float(rng.choice([0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.5])), "k": int(rng.integers(5, 31))}


def _product(s: float, k: int) -> float:
    return float(chain_rule(*[np.array([[s]])] * k).item())


EXERCISES = (
    Exercise(
        name="chain-of-two",
        chapter="chain-rule",
        first={"a": 3, "b": 1, "n": 2, "x": 1},
        draw=_inside,
        ask=lambda a, b, n, x: f"u = {_line(a, b)} and y = u^{n}. What is dy/dx at x = {shown(x)}?",
        right=_whole,
        solution=lambda a, b, n, x: (
            f"u = {shown(a * x + b)}, dy/du = {n} u^{n - 1} = {shown(n * (a * x + b) ** (n - 1))}, du/dx = {shown(a)}; "
            f"their product is {shown(_whole(a, b, n, x))}"
        ),
        slips=(
            Slip(
                "outer-only",
                lambda a, b, n, x: n * (a * x + b) ** (n - 1),
                "{given} is dy/du: u itself changes with x, at a rate of its own.",
            ),
            Slip("inner-only", lambda a, b, n, x: a, "{given} is du/dx: how does y change with u?"),
            Slip(
                "slope-at-x",
                lambda a, b, n, x: n * x ** (n - 1) * a,
                "{given} takes the outer slope at x: it belongs at u.",
            ),
            Slip(
                "added",
                lambda a, b, n, x: n * (a * x + b) ** (n - 1) + a,
                "{given} adds the two rates: rates one after another are multiplied.",
            ),
            Slip("value", lambda a, b, n, x: (a * x + b) ** n, "{given} is y itself: how fast does it change?"),
        ),
        hints=("First find u.", "How does y change with u, there?", "How does u change with x? Multiply both."),
    ),
    Exercise(
        name="backward-weight",
        chapter="chain-rule",
        first={"x": np.array([1, 2]), "w": np.array([2, 1]), "v": 3, "t": 10},
        draw=_unit,
        ask="z = w · x with x = {x} and w = {w}, h = relu(z), y = {v} h, and the loss is ½ (y − {t})². What is the "
        "gradient of the loss with respect to w? Give the list.",
        right=lambda x, w, v, t: _pass(x, w, v, t).w_bar[0],
        solution=lambda x, w, v, t: (
            f"forwards: z = h = {shown(_pass(x, w, v, t).z[0])}, y = {shown(_pass(x, w, v, t).y)}; backwards: "
            f"at y {shown(_pass(x, w, v, t).y_bar)}, at h and z {shown(_pass(x, w, v, t).z_bar[0])}, "
            f"at w that times x: {shown(_pass(x, w, v, t).w_bar[0])}"
        ),
        slips=(
            Slip(
                "layer-skipped",
                lambda x, w, v, t: _pass(x, w, v, t).y_bar * x,
                "{given} goes from y to z at once: the factor between h and y is missing.",
            ),
            Slip("no-error", lambda x, w, v, t: v * x, "{given} is how y changes with w: how does the loss with y?"),
            Slip(
                "value-for-error",
                lambda x, w, v, t: _pass(x, w, v, t).y * v * x,
                "{given} starts with y: the loss's derivative at y is what y misses.",
            ),
            Slip(
                "weight-for-input",
                lambda x, w, v, t: _pass(x, w, v, t).z_bar[0] * w,
                "{given} ends with w: how does z change with w?",
            ),
            Slip(
                "of-the-second-layer",
                lambda x, w, v, t: _pass(x, w, v, t).v_bar[0],
                "{given} is the derivative for the factor between h and y: w lies before it.",
            ),
        ),
        hints=(
            "Go forwards first: z, h, y.",
            "The derivative of the loss at y is y less its target.",
            "Backwards: times the factor before y; relu lets it pass where z is positive; times x.",
        ),
        twists=(sign("The derivative of the loss at y is y less its target, not the other way round."),),
    ),
    Exercise(
        name="product-of-slopes",
        chapter="chain-rule",
        first={"s": 0.8, "k": 20},
        draw=_slopes,
        ask="Each of {k} layers multiplies a gradient by {s}. By how much have all of them together?",
        right=_product,
        solution=lambda s, k: f"{shown(s)}^{k} = {shown(_product(s, k))}",
        slips=(
            Slip("added", lambda s, k: s * k, "{given} adds the layers: each multiplies what came before."),
            Slip("one-layer", lambda s, k: s, "{given} is what one layer does."),
            Slip("one-too-few", lambda s, k: s ** (k - 1), "{given} has one layer too few."),
            Slip(
                "losses-added",
                lambda s, k: 1 + k * (s - 1),
                "{given} adds what each layer takes away or puts on: it does so to what is left.",
            ),
        ),
        hints=("Two layers multiply by the square.", "So many layers: a power.", "Which power?"),
    ),
)
