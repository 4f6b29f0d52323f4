"""Parts of a transformer: one output of attention, norms and slopes of the residual stream, positions that turn."""

from __future__ import annotations

import math

import numpy as np

from limpid.maths.embedding import Rotary
from limpid.maths.foundations import chain_rule, dot, softmax
from limpid.maths.norm import layer_norm, rms_norm
from limpid.maths.operation import Array
from limpid.primer.exercise import Exercise, Numbers, Slip, shown

ANGLES = (15, 20, 30, 40, 45, 60, 75, 80, 90)


def _products(rng: np.random.Generator) -> Numbers:
    return {
        "d_k": int(rng.choice([4, 9, 16, 25])),
        "products": rng.integers(-6, 10, 3).astype(float),
        "values": 10.0 * rng.permutation(np.arange(-2, 8))[:3],
    }


def _mixed(scores: Array, values: Array) -> float:
    return float(dot(softmax(scores), values))


def _four(rng: np.random.Generator) -> Numbers:
    return {"x": rng.integers(-6, 10, 4).astype(float)}


def _normed(x: Array) -> Array:
    return layer_norm(x, np.ones(len(x)), np.zeros(len(x)), 1e-12)


def _deviation(x: Array) -> float:
    return float(np.sqrt(np.mean((x - x.mean()) ** 2)))


def _depth(rng: np.random.Generator) -> Numbers:
    return {"n": int(rng.integers(4, 33)), "g": round(float(rng.choice([-1, 1]) * rng.integers(2, 31)) / 100, 2)}


def _slope(n: int, g: float) -> float:
    return float(chain_rule(*[[[1 + g]]] * n)[0, 0])


def _pair(rng: np.random.Generator) -> Numbers:
    pair = rng.integers(1, 6, 2) * rng.choice([-1, 1], 2)
    return {"q": pair.astype(float), "t": int(rng.integers(2, 8)), "degrees": int(rng.choice(ANGLES))}


def turned(pair: Array, position: int, degrees: float) -> Array:
    """A pair of entries at a position, if each position turns by so many degrees."""
    rows = np.broadcast_to(pair, (1, position + 1, 1, 2))
    at_each = Rotary(scaling="linear", factor=1 / math.radians(degrees))(rows)
    result: Array = np.round(at_each[0, position, 0], 9) + 0.0
    return result


def _cosine(degrees: float) -> str:
    """Of an angle, as a solution says it; the sine is that of the angle less a quarter turn."""
    return shown(round(math.cos(math.radians(degrees)), 5) + 0.0, 5)


def _places(rng: np.random.Generator) -> Numbers:
    s = int(rng.integers(0, 40))
    t = s + int(rng.integers(1, 30))
    return {"t": t, "s": s, "other": t + int(rng.integers(1, 60))}


EXERCISES = (
    Exercise(
        name="attend",
        chapter="attention",
        first={"d_k": 4, "products": np.array([4.0, 2.0, 0.0]), "values": np.array([10.0, 20.0, 30.0])},
        draw=_products,
        ask="A query has the dot products {products} with three keys of {d_k} entries. The values are the numbers "
        "{values}. What is the output?",
        right=lambda d_k, products, values: _mixed(products / math.sqrt(d_k), values),
        solution=lambda d_k, products, values: (
            f"scores {shown(products / math.sqrt(d_k), 4)}, weights {shown(softmax(products / math.sqrt(d_k)), 4)}, "
            f"output {shown(_mixed(products / math.sqrt(d_k), values))}"
        ),
        slips=(
            Slip(
                "not-divided",
                lambda d_k, products, values: _mixed(products, values),
                "{given} takes softmax of the dot products as they are: what are they divided by?",
            ),
            Slip(
                "divided-by-size",
                lambda d_k, products, values: _mixed(products / d_k, values),
                "{given} divides by the number of entries: it is its root.",
            ),
            Slip(
                "no-softmax",
                lambda d_k, products, values: dot(products / math.sqrt(d_k), values),
                "{given} mixes by the scores themselves: weights have to be positive and add up to 1.",
            ),
            Slip(
                "plain-mean",
                lambda d_k, products, values: values.mean(),
                "{given} gives every value the same weight: the scores decide.",
            ),
        ),
        hints=("Divide by the root of the number of entries.", "Take softmax.", "Mix the values by these weights."),
    ),
    Exercise(
        name="layer-norm",
        chapter="residual-stream",
        first={"x": np.array([1.0, 3.0, 5.0, 7.0])},
        draw=_four,
        ask="LayerNorm without gain and offset: what does it make of x = {x}?",
        right=_normed,
        solution=lambda x: (
            f"mean {shown(x.mean())}, left {shown(x - x.mean())}, standard deviation {shown(_deviation(x), 5)}: "
            f"{shown(_normed(x), 5)}"
        ),
        slips=(
            Slip(
                "mean-left-in",
                lambda x: rms_norm(x, np.ones(len(x)), 1e-12) if x.mean() else None,
                "{given} is RMSNorm: LayerNorm takes the mean away first.",
            ),
            Slip(
                "not-divided",
                lambda x: x - x.mean(),
                "{given} has mean 0, but its standard deviation is not 1 yet.",
            ),
            Slip(
                "variance",
                lambda x: (x - x.mean()) / _deviation(x) ** 2,
                "{given} divides by the variance: the standard deviation is its root.",
            ),
            Slip(
                "one-less",
                lambda x: (x - x.mean()) / x.std(ddof=1),
                "{given} divides the sum of squares by one less than there are: norms divide by their number.",
            ),
        ),
        hints=(
            "Take the mean away from each entry.",
            "The variance is the mean of the squares.",
            "Divide by its root.",
        ),
    ),
    Exercise(
        name="identity-path",
        chapter="residual-stream",
        first={"n": 12, "g": 0.05},
        draw=_depth,
        ask="{n} parts follow one another, each with the slope {g}, and each is added to the stream. By what is a "
        "gradient multiplied on its way through all of them?",
        right=_slope,
        solution=lambda n, g: (
            f"each step has the slope 1 + {shown(g)} = {shown(1 + g)}: to the power {n} it is {shown(_slope(n, g))}"
        ),
        slips=(
            Slip(
                "no-stream",
                lambda n, g: g**n,
                "{given} is what is left without the addition: x itself has the slope 1.",
            ),
            Slip("added", lambda n, g: 1 + n * g, "{given} adds the slopes: one after another they are multiplied."),
            Slip("one-part", lambda n, g: 1 + g, "{given} is the slope of one step: there are several."),
            Slip("times", lambda n, g: n * (1 + g), "{given} multiplies by the number of parts: take the power."),
        ),
        hints=("What is the slope of x + f(x)?", "By the chain rule slopes are multiplied.", "Take the power."),
    ),
    Exercise(
        name="rotate",
        chapter="positions",
        first={"q": np.array([2.0, 1.0]), "t": 2, "degrees": 30},
        draw=_pair,
        ask="RoPE turns a pair by {degrees}° for each position, counted from 0. What does it make of the pair {q} at "
        "position {t}?",
        right=turned,
        solution=lambda q, t, degrees: (
            f"the angle is {t} · {degrees}° = {t * degrees}°, its cosine {_cosine(t * degrees)}, its sine "
            f"{_cosine(t * degrees - 90)}; first · cosine − second · sine and first · sine + second · cosine: "
            f"{shown(turned(q, t, degrees), 5)}"
        ),
        slips=(
            Slip(
                "other-way",
                lambda q, t, degrees: turned(q, t, 360 - degrees),
                "{given} is turned clockwise: which of the two sines has the minus?",
            ),
            Slip(
                "one-step",
                lambda q, t, degrees: turned(q, 1, degrees),
                "{given} is turned by one position's angle: at this position it is a multiple of that.",
            ),
            Slip(
                "one-less",
                lambda q, t, degrees: turned(q, t - 1, degrees) if t > 2 else None,
                "{given} counts positions from 1: the first is 0.",
            ),
            Slip("not-turned", lambda q, t, degrees: q, "{given} is the pair as it came."),
        ),
        hints=(
            "Multiply the angle by the position.",
            "The first entry is cos · first − sin · second.",
            "The second entry is sin · first + cos · second.",
        ),
    ),
    Exercise(
        name="same-distance",
        chapter="positions",
        first={"t": 7, "s": 4, "other": 12},
        draw=_places,
        ask="With RoPE, a query at position {t} and a key at position {s} have some score. The same query stands at "
        "position {other} now, and the key is before it. Where, for the same score?",
        right=lambda t, s, other: other - (t - s),
        solution=lambda t, s, other: (
            f"the score depends on the distance alone, {t} − {s} = {t - s}; {other} − {t - s} = {other - (t - s)}"
        ),
        slips=(
            Slip(
                "same-place",
                lambda t, s, other: s,
                "{given} is where the key was: then the distance is another one.",
            ),
            Slip(
                "ahead",
                lambda t, s, other: other + (t - s),
                "{given} lies after the query: it has to be before it.",
            ),
            Slip("distance", lambda t, s, other: t - s, "{given} is the distance: where does it lead from the query?"),
            Slip(
                "moved-back",
                lambda t, s, other: s - (other - t),
                "{given} moves the key the other way: it goes where the query goes.",
            ),
        ),
        hints=("What does the score depend on?", "How far apart were they?", "Go so far back from the query."),
    ),
)
