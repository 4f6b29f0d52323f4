"""Variance, means of many, and the noise of batches."""

from __future__ import annotations

import math

import numpy as np

from limpid.maths.foundations import gaussian_maximum_likelihood, green_z
from limpid.maths.operation import Array
from limpid.primer.exercise import Exercise, Numbers, Slip, shown


def _four(rng: np.random.Generator) -> Numbers:
    return {"x": np.sort(rng.integers(1, 16, 4))}


def _deviation(x: Array) -> float:
    return gaussian_maximum_likelihood(x).std


def _squares(x: Array) -> Array:
    return np.square(x - gaussian_maximum_likelihood(x).mean)


def _many(rng: np.random.Generator) -> Numbers:
    return {"sigma": int(rng.integers(2, 25)), "n": int(rng.choice([9, 16, 25, 36, 64, 100, 144, 225, 400, 900]))}


def _batches(rng: np.random.Generator) -> Numbers:
    b, c = rng.choice([1, 2, 4, 8, 16, 32, 64, 128], 2, replace=False)
    return {"v": round(float(rng.integers(2, 60)) / 10, 1), "b": int(b), "c": int(c)}


def _greens(rng: np.random.Generator) -> Numbers:
    n, gamma = int(rng.choice([100, 144, 196, 256, 400])), float(rng.choice([0.2, 0.25, 0.5]))
    return {"n": n, "gamma": gamma, "g": round(gamma * n) + int(rng.integers(3, 4 * round(n**0.5)))}


def _green_spread(n: int, gamma: float) -> float:
    """Standard deviation of how many are green by chance."""
    return math.sqrt(n * gamma * (1 - gamma))


EXERCISES = (
    Exercise(
        name="standard-deviation",
        chapter="variance",
        first={"x": np.array([3, 5, 5, 11])},
        draw=_four,
        ask="What is the standard deviation of the four numbers {x}? Divide by their number.",
        right=_deviation,
        solution=lambda x: (
            f"mean {shown(gaussian_maximum_likelihood(x).mean)}, squared distances {shown(_squares(x))}, their mean "
            f"{shown(_squares(x).mean())}, its root {shown(_deviation(x))}"
        ),
        slips=(
            Slip(
                "variance", lambda x: _squares(x).mean(), "{given} is the variance: the standard deviation is its root."
            ),
            Slip(
                "n-minus-one",
                lambda x: math.sqrt(_squares(x).sum() / (len(x) - 1)),
                "{given} divides by one less: right for an estimate from a sample; here divide by their number.",
            ),
            Slip("not-divided", lambda x: math.sqrt(_squares(x).sum()), "{given} lacks a division: take the mean."),
            Slip(
                "no-squares",
                lambda x: np.abs(x - x.mean()).mean(),
                "{given} is the mean distance without its sign: square the distances.",
            ),
            Slip("no-mean", lambda x: math.sqrt(np.square(x).mean()), "{given} measures from 0, not from the mean."),
        ),
        hints=("First the mean.", "Square each distance from it.", "The mean of the squares; then the root."),
    ),
    Exercise(
        name="standard-error",
        chapter="variance",
        first={"sigma": 12, "n": 36},
        draw=_many,
        ask="Single losses have a standard deviation of {sigma}. What is the standard deviation of the mean of {n} "
        "independent ones?",
        right=lambda sigma, n: sigma / math.sqrt(n),
        solution=lambda sigma, n: f"{sigma} / √{n} = {sigma} / {shown(math.sqrt(n))} = {shown(sigma / math.sqrt(n))}",
        slips=(
            Slip("no-root", lambda sigma, n: sigma / n, "{given} divides by n: that is what happens to a variance."),
            Slip("single", lambda sigma, n: sigma, "{given} is that of a single one: a mean varies less."),
            Slip(
                "of-the-sum",
                lambda sigma, n: sigma * math.sqrt(n),
                "{given} is that of the sum: the mean is the sum divided by n.",
            ),
            Slip(
                "variance",
                lambda sigma, n: sigma**2 / n,
                "{given} is the variance of the mean: the standard deviation is asked for.",
            ),
        ),
        hints=("The variance of a mean is that of one, divided by n.", "Take its root.", "σ divided by √n."),
    ),
    Exercise(
        name="batch-noise",
        chapter="variance",
        first={"v": 2.0, "b": 8, "c": 32},
        draw=_batches,
        ask="With batches of {b} the gradient of a weight has a variance of {v}. What is it with batches of {c}?",
        right=lambda v, b, c: v * b / c,
        solution=lambda v, b, c: (
            f"one example has {shown(v)} · {b} = {shown(v * b)}; {c} have {shown(v * b)} / {c} = {shown(v * b / c)}"
        ),
        slips=(
            Slip(
                "turned-round",
                lambda v, b, c: v * c / b,
                lambda v, b, c: (
                    f"{{given}} makes it {'larger' if c > b else 'smaller'}: batches of {c} have "
                    f"{'more' if c > b else 'fewer'} examples than batches of {b}."
                ),
            ),
            Slip(
                "root",
                lambda v, b, c: v * math.sqrt(b / c),
                "{given} is how a standard deviation changes: a variance needs no root.",
            ),
            Slip("squared", lambda v, b, c: v * (b / c) ** 2, "{given} squares the ratio: a variance falls as 1 / b."),
            Slip("unchanged", lambda v, b, c: v, "{given} is what it was: the batch is another."),
            Slip("of-one", lambda v, b, c: v / c, "{given} takes the first variance for that of one example."),
        ),
        hints=("What is the variance of one example?", "A batch of b divides it by b.", "Multiply by b, divide by c."),
    ),
    Exercise(
        name="green-count",
        chapter="variance",
        first={"n": 256, "gamma": 0.25, "g": 88},
        draw=_greens,
        ask="A share of {gamma} of all tokens is green. Of {n} different pairs in a text {g} are green. How many "
        "standard deviations is that above chance?",
        right=lambda n, gamma, g: green_z(g, n, gamma),
        solution=lambda n, gamma, g: (
            f"chance makes {shown(gamma)} · {n} = {shown(gamma * n)}; the variance is {n} · {shown(gamma)} · "
            f"{shown(1 - gamma)} = {shown(n * gamma * (1 - gamma))}, its root {shown(_green_spread(n, gamma))}; "
            f"({g} − {shown(gamma * n)}) / {shown(_green_spread(n, gamma))} = {shown(green_z(g, n, gamma))}"
        ),
        slips=(
            Slip(
                "variance",
                lambda n, gamma, g: (g - gamma * n) / (n * gamma * (1 - gamma)),
                "{given} divides by the variance: the standard deviation is its root.",
            ),
            Slip(
                "of-one",
                lambda n, gamma, g: (g - gamma * n) / math.sqrt(gamma * (1 - gamma)),
                "{given} divides by the deviation of a single token: here many are added up.",
            ),
            Slip(
                "mean-as-variance",
                lambda n, gamma, g: (g - gamma * n) / math.sqrt(gamma * n),
                "{given} takes the mean for the variance: a number that is one or zero has γ (1 − γ).",
            ),
            Slip("excess", lambda n, gamma, g: g - gamma * n, "{given} is how many too many: divide by their spread."),
            Slip(
                "nothing-expected",
                lambda n, gamma, g: g / _green_spread(n, gamma),
                "{given} measures from 0: chance makes some green as well.",
            ),
        ),
        hints=(
            "How many would chance make?",
            "The variance of each is γ (1 − γ), and variances add up.",
            "Excess divided by the root of that.",
        ),
        unit="standard deviations",
    ),
)
