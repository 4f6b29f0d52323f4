"""Derivatives, gradients, and a step against them."""

from __future__ import annotations

import numpy as np

from limpid.maths.foundations import gradient, gradient_step
from limpid.maths.operation import Array
from limpid.primer.exercise import Exercise, Numbers, Slip, shown
from limpid.primer.sizes import in_words


def _polynomial(rng: np.random.Generator) -> Numbers:
    return {"n": int(rng.integers(2, 6)), "x": int(rng.choice([-3, -2, 2, 3, 4, 5]))}


def _power(n: int, x: float) -> float:
    return float(gradient(lambda at: at[0] ** n, np.array([float(x)]))[0])


def _surface(rng: np.random.Generator) -> Numbers:
    a, b, c = rng.choice([-4, -3, -2, -1, 1, 2, 3, 4], 3)
    x, y = rng.choice([-3, -2, -1, 1, 2, 3, 4], 2)
    return {"a": int(a), "b": int(b), "c": int(c), "x": int(x), "y": int(y)}


def _slope(a: float, b: float, c: float, x: float, y: float) -> Array:
    return gradient(lambda at: a * at[0] ** 2 + b * at[1] ** 2 + c * at[0] * at[1], np.array([float(x), float(y)]))


def _formula(*terms: tuple[float, str]) -> str:
    """A sum of terms as one writes it: none of 0, no factor of 1, and a minus instead of plus a negative number."""
    said = ""
    for factor, of in (term for term in terms if term[0]):
        sign = ("−" if factor < 0 else "") if not said else (" − " if factor < 0 else " + ")
        said += f"{sign}{'' if abs(factor) == 1 else shown(abs(factor)) + ' '}{of}"
    return said


def _descent(rng: np.random.Generator) -> Numbers:
    return {
        "w": round(float(rng.integers(-60, 61)) / 10, 1),
        "rate": float(rng.choice([0.01, 0.02, 0.05, 0.1, 0.2, 0.5])),
        "g": round(float(rng.integers(-50, 51)) / 10, 1),
    }


def _stepped(w: float, rate: float, g: float) -> float:
    return round(float(gradient_step(np.array(w), np.array(g), rate)), 10)


EXERCISES = (
    Exercise(
        name="power-rule",
        chapter="derivatives",
        first={"n": 3, "x": 2},
        draw=_polynomial,
        ask="f(x) = x^{n}. What is f′({x})?",
        right=_power,
        solution=lambda n, x: f"f′(x) = {n} x^{n - 1}; at {shown(x)} it is {shown(_power(n, x))}",
        slips=(
            Slip(
                "value", lambda n, x: float(x) ** n, "{given} is f itself at this place: how fast does it grow there?"
            ),
            Slip(
                "no-factor",
                lambda n, x: float(x) ** (n - 1),
                "{given} lacks the factor that the power leaves in front.",
            ),
            Slip("power-kept", lambda n, x: n * float(x) ** n, "{given} keeps the power: it falls by one."),
            Slip(
                "factor-times-x",
                lambda n, x: float(n * x) if n != 2 else float(x + n),
                "{given} lost the power: only one of its x is taken away.",
            ),
        ),
        hints=("The power comes down as a factor.", "What stays has a power that is one less.", "Put in the number."),
    ),
    Exercise(
        name="gradient",
        chapter="derivatives",
        first={"a": 2, "b": -1, "c": 1, "x": 1, "y": 3},
        draw=_surface,
        ask=lambda a, b, c, x, y: (
            f"f(x, y) = {_formula((a, 'x²'), (b, 'y²'), (c, 'x y'))}. What is its gradient at "
            f"({shown(x)}, {shown(y)})? Give [∂f/∂x, ∂f/∂y]."
        ),
        right=_slope,
        solution=lambda a, b, c, x, y: (
            f"∂f/∂x = {_formula((2 * a, 'x'), (c, 'y'))}, ∂f/∂y = {_formula((2 * b, 'y'), (c, 'x'))}; "
            f"at ({shown(x)}, {shown(y)}): {shown(_slope(a, b, c, x, y))}"
        ),
        slips=(
            Slip(
                "cross-term-lost",
                lambda a, b, c, x, y: [2 * a * x, 2 * b * y],
                "{given} leaves out x y, which both feel.",
            ),
            Slip(
                "sign",
                lambda a, b, c, x, y: [2 * a * x + c * y, -2 * b * y + c * x],
                "{given}: look at the sign of what y² gives.",
            ),
            Slip(
                "swapped", lambda a, b, c, x, y: _slope(a, b, c, x, y)[::-1], "{given} has the two in the other order."
            ),
            Slip(
                "cross-term-kept",
                lambda a, b, c, x, y: [2 * a * x + c * x, 2 * b * y + c * y],
                "{given}: the derivative of x y along x is y.",
            ),
            Slip("value", lambda a, b, c, x, y: a * x**2 + b * y**2 + c * x * y, "{given} is f itself, one number."),
        ),
        hints=(
            "For ∂f/∂x, y is a number like any other.",
            "x y gives y along x, and x along y.",
            "Put in both numbers.",
        ),
    ),
    Exercise(
        name="gradient-step",
        chapter="gradient-descent",
        first={"w": 5.0, "rate": 0.05, "g": -2.0},
        draw=_descent,
        ask="A weight is {w}, its gradient {g}, the learning rate {rate}. What is it after a step of gradient descent?",
        right=_stepped,
        solution=lambda w, rate, g: (
            f"w − η g = {shown(w)} − {shown(rate)} · ({shown(g)}) = {shown(_stepped(w, rate, g))}"
        ),
        slips=(
            Slip("ascent", lambda w, rate, g: w + rate * g, "{given} goes up: a step goes against the gradient."),
            Slip("no-rate", lambda w, rate, g: w - g, "{given} takes the whole gradient: multiply it by the rate."),
            Slip("step-only", lambda w, rate, g: -rate * g, "{given} is the step: where does the weight come to?"),
            Slip(
                "gradient-of-weight",
                lambda w, rate, g: w - rate * w,
                "{given} shrinks the weight by its own size: that is weight decay.",
            ),
        ),
        hints=(
            "A step is the rate times the gradient.",
            "It goes against the gradient: minus.",
            "Mind both signs: minus a negative is plus.",
        ),
        decimals=3,
    ),
    Exercise(
        name="size-of-a-gradient",
        chapter="gradient-descent",
        first={"billions": 7, "layers": 32},
        draw=lambda rng: {"billions": int(rng.integers(1, 400)), "layers": int(rng.integers(12, 130))},
        ask=lambda billions, layers: (
            f"A model has {in_words(billions)} parameters in {shown(layers)} layers. How many numbers has its loss's "
            "gradient?"
        ),
        right=lambda billions, layers: float(round(billions * 1e9)),
        solution=lambda billions, layers: f"one for each parameter: {in_words(billions)}",
        slips=(
            Slip(
                "scalar",
                lambda billions, layers: 1,
                "{given}: the loss is one number; its gradient has one per parameter.",
            ),
            Slip(
                "layers",
                lambda billions, layers: layers,
                "{given} counts layers: every parameter has a slope of its own.",
            ),
            Slip("without-billions", lambda billions, layers: billions, "{given}: do not lose the billion."),
            Slip(
                "squared",
                lambda billions, layers: (billions * 1e9) ** 2,
                "{given} is the size of the Hessian: how each slope changes with each parameter.",
            ),
        ),
        hints=("The gradient says how the loss changes with each parameter.", "One number for each."),
        unit="numbers",
    ),
)
