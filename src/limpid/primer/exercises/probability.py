"""Probabilities, softmax, cross-entropy."""

from __future__ import annotations

import math

import numpy as np

from limpid.maths.foundations import bayes, conditional, joint_log_probability, normal_probability, softmax, surprise
from limpid.maths.operation import Array
from limpid.primer.exercise import Exercise, Numbers, Slip, shown
from limpid.primer.exercises.twists import BASE_2, BASE_10, sign


def _all_but_one(rng: np.random.Generator) -> Numbers:
    shares = rng.multinomial(19, [0.45, 0.3, 0.25]) + 0
    return {"p": np.round(shares / 20, 2)} if shares.min() > 0 else {"p": np.array([0.5, 0.3, 0.15])}


def _chances(rng: np.random.Generator) -> Numbers:
    return {"p": np.round(rng.integers(1, 20, 3) * 0.05, 2)}


def _counts(rng: np.random.Generator) -> Numbers:
    return {"n": rng.integers(1, 20, (2, 2))}


def _test(rng: np.random.Generator) -> Numbers:
    return {
        "prior": round(float(rng.integers(1, 10)) / 100, 2),
        "hit": round(float(rng.integers(70, 100)) / 100, 2),
        "false": round(float(rng.integers(2, 16)) / 100, 2),
    }


def _interval(rng: np.random.Generator) -> Numbers:
    low, high = sorted(rng.choice(np.arange(-4, 5), 2, replace=False) * 0.5)
    return {"low": float(low), "high": float(high)}


def _together(n: Array) -> Array:
    return n / n.sum()


def _believed(prior: float, hit: float, false: float) -> float:
    return float(bayes([prior, 1 - prior], [hit, false])[0])


def _below(x: float) -> float:
    """Of the standard normal distribution."""
    return normal_probability(-math.inf, x)


def _logits(rng: np.random.Generator) -> Numbers:
    return {"z": np.round(rng.integers(-4, 7, 3) * 0.5, 1)}


def _warm(rng: np.random.Generator) -> Numbers:
    return {**_logits(rng), "temperature": float(rng.choice([0.25, 0.5, 2, 4]))}


def _gap(rng: np.random.Generator) -> Numbers:
    first, second = rng.choice(np.arange(-4, 9), 2, replace=False)
    return {"a": int(first), "b": int(second)}


def _left(p: Array) -> float:
    return round(1.0 - math.fsum(p), 10)


def _shares(z: Array) -> Array | None:
    return z / z.sum() if z.sum() != 0 else None


def _softmax_in_words(z: Array) -> str:
    powers = np.exp(z)
    return f"exp gives {shown(powers)}, together {shown(powers.sum())}; each divided by that: {shown(softmax(z))}"


LARGEST_ALONE = Slip(
    "largest-alone",
    lambda z, temperature=1: np.eye(len(z))[np.argmax(z)],
    "{given} gives everything to the largest, or is rounded: the others have shares too. Give 4 decimals.",
)

EXERCISES = (
    Exercise(
        name="what-is-left",
        chapter="probability",
        first={"p": np.array([0.4, 0.35, 0.2])},
        draw=_all_but_one,
        ask="Three of four probabilities are {p}. What is the fourth, if they are a distribution?",
        right=_left,
        solution=lambda p: f"they add up to 1: 1 − {shown(math.fsum(p))} = {shown(_left(p))}",
        slips=(
            Slip("sum", lambda p: math.fsum(p), "{given} is the sum of the three: what is missing to 1?"),
            Slip("mean", lambda p: math.fsum(p) / 3, "{given} is their mean; nothing asks the fourth to be that."),
            Slip("equal", lambda p: 0.25, "{given} would be its share if all four were equal."),
        ),
        hints=("What do all probabilities add up to?", "Add the three.", "Take that from 1."),
        twists=(sign("A probability is never negative: take the sum from 1."),),
        decimals=3,
    ),
    Exercise(
        name="conditional",
        chapter="probability",
        first={"n": np.array([[12, 4], [8, 16]])},
        draw=_counts,
        ask=lambda n: (
            f"In a text word A stands {n[0, 0]} times before word C and {n[0, 1]} times before word D, word B stands "
            f"{n[1, 0]} times before C and {n[1, 1]} times before D. Of these pairs, what is P(C | A)?"
        ),
        right=lambda n: conditional(_together(n))[0, 0],
        solution=lambda n: (
            f"of the {n[0].sum()} pairs with A, {n[0, 0]} have C: "
            f"{n[0, 0]}/{n[0].sum()} = {shown(conditional(_together(n))[0, 0])}"
        ),
        slips=(
            Slip(
                "turned-round",
                lambda n: conditional(_together(n.T))[0, 0],
                "{given} is P(A | C): of the pairs with C, those with A. What is known is A.",
            ),
            Slip("joint", lambda n: n[0, 0] / n.sum(), "{given} is P(A, C), the share of all pairs."),
            Slip("marginal", lambda n: n[:, 0].sum() / n.sum(), "{given} is P(C), whatever stands before."),
            Slip("odds", lambda n: n[0, 0] / n[0, 1], "{given} divides by the pairs that have D: divide by both."),
        ),
        hints=("What stands behind the bar is known.", "Keep the pairs with A alone.", "Which share has C?"),
    ),
    Exercise(
        name="chain-of-tokens",
        chapter="probability",
        first={"p": np.array([0.3, 0.5, 0.9])},
        draw=_chances,
        ask="A model gives tokens that follow one another the probabilities {p}, each after those before it. What is "
        "ln of the probability of them all?",
        right=joint_log_probability,
        solution=lambda p: (
            f"{' · '.join(map(shown, p))} = {shown(np.prod(p))}, and its logarithm is {shown(joint_log_probability(p))}"
        ),
        slips=(
            Slip("added", lambda p: p.sum(), "{given} is the sum: what happens one after another is multiplied."),
            Slip(
                "no-logarithm",
                lambda p: np.prod(p),
                "{given} is the probability of them all: its logarithm is asked for.",
            ),
            Slip(
                "log-of-sum",
                lambda p: math.log(p.sum()),
                "{given} is ln of their sum: multiply them, or add logarithms.",
            ),
            Slip("mean", lambda p: float(np.log(p).mean()), "{given} is the mean of the logarithms: they are added."),
        ),
        hints=("Multiply them.", "Or: take the logarithm of each.", "Add the logarithms."),
        twists=(sign("The logarithm of a number below 1 is negative."), BASE_2, BASE_10),
    ),
    Exercise(
        name="turn-round",
        chapter="probability",
        first={"prior": 0.02, "hit": 0.9, "false": 0.1},
        draw=_test,
        ask="Of all words of a text {prior} are “the”. A model expects “the” before {hit} of these, and before {false} "
        "of all other words. It expects “the” now. How probable is it that “the” comes?",
        right=_believed,
        solution=lambda prior, hit, false: (
            f"“the” and expected {shown(prior * hit, 4)}, another and expected {shown((1 - prior) * false, 4)}; the "
            f"first over both: {shown(_believed(prior, hit, false))}"
        ),
        slips=(
            Slip(
                "not-turned",
                lambda prior, hit, false: hit,
                "{given} is P(expected | the); asked for is P(the | expected).",
            ),
            Slip(
                "joint",
                lambda prior, hit, false: prior * hit,
                "{given} is the share of all words that are “the” and expected: divide by all where it is expected.",
            ),
            Slip(
                "no-prior",
                lambda prior, hit, false: hit / (hit + false),
                "{given} would be right if half of all words were “the”.",
            ),
            Slip(
                "odds",
                lambda prior, hit, false: prior * hit / ((1 - prior) * false),
                "{given} divides by the others where it is expected: divide by all where it is expected.",
            ),
        ),
        hints=(
            "Which share of all words is “the” and expected?",
            "Which share is another word, with “the” expected?",
            "The first, over both together.",
        ),
    ),
    Exercise(
        name="interval",
        chapter="probability",
        first={"low": -1.0, "high": 1.0},
        draw=_interval,
        ask=lambda low, high: (
            "X is normal with μ = 0 and σ = 1. "
            + ", ".join(f"P(X ≤ {shown(x)}) = {_below(x):.4f}" for x in (low, high))
            + f". What is P({shown(low)} ≤ X ≤ {shown(high)})?"
        ),
        right=lambda low, high: round(normal_probability(low, high), 4),
        solution=lambda low, high: (
            f"what lies below {shown(high)}, less what lies below {shown(low)}: "
            f"{_below(high):.4f} − {_below(low):.4f}, or {shown(normal_probability(low, high), 4)} rounded at the end"
        ),
        slips=(
            Slip("added", lambda low, high: _below(high) + _below(low), "{given} adds them: take one from the other."),
            Slip("below", lambda low, high: _below(high), "{given} counts everything below the upper end."),
            Slip(
                "outside",
                lambda low, high: 1 - normal_probability(low, high),
                "{given} is the probability of lying outside.",
            ),
        ),
        hints=("P(X ≤ x) is the area to the left of x.", "Take the left area from the right one."),
        twists=(sign("A probability is never negative: the smaller is taken from the larger."),),
        decimals=3,
    ),
    Exercise(
        name="softmax-of-equals",
        chapter="softmax",
        first={"z": np.zeros(3)},
        draw=lambda rng: {"z": np.full(int(rng.integers(2, 6)), int(rng.integers(-9, 10)))},
        ask="What is softmax of {z}? Give the list.",
        right=softmax,
        solution=lambda z: f"all equal, so all shares are: 1/{len(z)} each, whatever the number",
        slips=(
            Slip("zeros", lambda z: np.zeros(len(z)), "{given}: shares add up to 1."),
            Slip(
                "ones",
                lambda z: np.ones(len(z)),
                lambda z: f"{{given}} adds up to {len(z)}: divide by the sum of the exponentials.",
            ),
        ),
        hints=("Exponentiate each.", "They are equal, whatever they are.", "Each is one of so many equal shares."),
    ),
    Exercise(
        name="softmax-of-scores",
        chapter="softmax",
        first={"z": np.array([10, 0, 0])},
        draw=_logits,
        ask="What is softmax of {z}? Give the list, to 4 decimals.",
        right=softmax,
        solution=_softmax_in_words,
        slips=(
            LARGEST_ALONE,
            Slip("no-exponential", _shares, "{given} are shares of the numbers themselves: exponentiate them first."),
            Slip("not-normalised", lambda z: np.exp(z), "{given} are the exponentials: divide each by their sum."),
            Slip("base-2", lambda z: softmax(z * math.log(2)), "{given} takes powers of 2: softmax takes those of e."),
            Slip("turned-round", lambda z: softmax(-z), "{given} gives the largest number the smallest share."),
        ),
        hints=("Exponentiate each.", "Add the three.", "Divide each by the sum."),
        decimals=4,
    ),
    Exercise(
        name="temperature",
        chapter="softmax",
        first={"z": np.array([2, 1, 0.5]), "temperature": 0.5},
        draw=_warm,
        ask="What is softmax of {z} at the temperature {temperature}? Give the list, to 4 decimals.",
        right=lambda z, temperature: softmax(z, temperature),
        solution=lambda z, temperature: (
            f"divided by {shown(temperature)}: {shown(z / temperature)}; {_softmax_in_words(z / temperature)}"
        ),
        slips=(
            LARGEST_ALONE,
            Slip("no-temperature", lambda z, temperature: softmax(z), "{given} leaves the temperature at 1."),
            Slip(
                "multiplied",
                lambda z, temperature: softmax(z * temperature),
                "{given} multiplies by the temperature: the scores are divided by it.",
            ),
            Slip(
                "after",
                lambda z, temperature: softmax(z) / temperature,
                "{given} divides the shares, which then do not sum to 1: divide the scores, before the exponential.",
            ),
            Slip(
                "not-normalised",
                lambda z, temperature: np.exp(z / temperature),
                "{given} are the exponentials: divide each by their sum.",
            ),
        ),
        hints=("Divide each score by the temperature.", "Exponentiate what you have.", "Divide each by the sum."),
        decimals=4,
    ),
    Exercise(
        name="gap",
        chapter="softmax",
        first={"a": 3, "b": 1},
        draw=_gap,
        ask="Two of the scores are {a} and {b}. After softmax, how many times as large is the first one's share as the "
        "second one's?",
        right=lambda a, b: math.exp(a - b),
        solution=lambda a, b: (
            f"e^{shown(a)} over e^{shown(b)}, the sum below both cancels: e^{shown(a - b)} = {shown(math.exp(a - b))}"
        ),
        slips=(
            Slip(
                "difference",
                lambda a, b: a - b,
                "{given} is the difference of the scores, the logarithm of what is asked.",
            ),
            Slip(
                "linear",
                lambda a, b: a / b if b else None,
                "{given} is the ratio of the scores: of their exponentials?",
            ),
            Slip("turned-round", lambda a, b: math.exp(b - a), "{given} is the second over the first."),
            Slip("base-2", lambda a, b: 2.0 ** (a - b), "{given} takes a power of 2: softmax takes those of e."),
        ),
        hints=("Write both shares as fractions.", "They have the same number below.", "e^a / e^b is e^(a − b)."),
    ),
    Exercise(
        name="surprise",
        chapter="cross-entropy",
        first={"p": 0.3},
        draw=lambda rng: {"p": round(float(rng.integers(2, 96)) / 100, 2)},
        ask="The right token had the probability {p}. What is the loss, in nats?",
        right=surprise,
        solution=lambda p: f"−ln {shown(p)} = {shown(float(surprise(p)))}",
        slips=(
            Slip("no-logarithm", lambda p: 1 - p, "{given} is what is missing to 1: the loss is −ln p."),
            Slip("inverse", lambda p: 1 / p, "{given} is 1/p, the perplexity: the loss is its logarithm."),
            Slip("of-the-rest", lambda p: float(surprise(1 - p)), "{given} is the loss had the token not come."),
        ),
        hints=("The loss is the surprise.", "Surprise is −ln p.", "The logarithm of a number below 1 is negative."),
        twists=(sign("ln of a number below 1 is negative, so that −ln is positive."), BASE_2, BASE_10),
        unit="nats",
    ),
    Exercise(
        name="perplexity",
        chapter="cross-entropy",
        first={"h": 2},
        draw=lambda rng: {"h": round(float(rng.uniform(0.5, 6)), 1)},
        ask="The cross-entropy is {h} nats a token. What is the perplexity?",
        right=lambda h: math.exp(h),
        solution=lambda h: f"e^{shown(h)} = {shown(math.exp(h))}",
        slips=(
            Slip("base-2", lambda h: 2.0**h, "{given} would be right for bits: nats belong to e."),
            Slip("base-10", lambda h: 10.0**h, "{given} is 10 to this power: nats belong to e."),
            Slip("logarithm", lambda h: math.log(h), "{given} goes the other way: perplexity undoes the logarithm."),
            Slip("inverse", lambda h: math.exp(-h), "{given} is the mean probability; perplexity is one over it."),
        ),
        hints=("Perplexity undoes the logarithm in the loss.", "Which base has ln?", "e to the power of the loss."),
    ),
)
