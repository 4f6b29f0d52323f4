"""A small model that guesses the next letter from the last one, trained on a few sentences: a real loss to descend."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from limpid.maths.foundations import entropy, gradient_step, maximum_likelihood, softmax_cross_entropy
from limpid.maths.foundations.losses import softmax_cross_entropy_backward
from limpid.maths.operation import Array

TEXT = (
    "a model reads a letter and guesses the next one. at first it knows nothing, and every letter is as likely as "
    "any other. then it sees which letter came, and each weight moves a little to where the right letter would have "
    "been less of a surprise. after some hundred steps it has learned that a space often follows a dot, and that an "
    "e often comes after an h."
)
LETTERS = sorted(set(TEXT))
IDS = np.array([LETTERS.index(letter) for letter in TEXT])
BEFORE, AFTER = IDS[:-1], IDS[1:]


class Descent(NamedTuple):
    """The loss before each step and after the last: of all of the text, and of what each step saw."""

    losses: tuple[float, ...]
    seen: tuple[float, ...]


def pairs() -> int:
    """How many letters there are to guess."""
    return len(BEFORE)


def start() -> Array:
    """Scores of each letter after each: all alike at first."""
    return np.zeros((len(LETTERS), len(LETTERS)))


def loss(scores: Array, some: Array | slice = slice(None)) -> float:
    """The mean surprise of all letters, or of some."""
    return float(softmax_cross_entropy(scores[BEFORE[some]], AFTER[some]))


def loss_gradient(scores: Array, some: Array | slice = slice(None)) -> Array:
    """Of the same, for each score."""
    rows, _ = softmax_cross_entropy_backward(np.float64(1.0), scores[BEFORE[some]], AFTER[some])
    found = np.zeros_like(scores)
    np.add.at(found, BEFORE[some], rows)
    return found


@cache
def descent(rate: float, steps: int, batch: int | None = None, seed: int = 0) -> Descent:
    """So many steps, each with the gradient of all letters, or of a few drawn at random."""
    rng = np.random.Generator(np.random.PCG64(seed))
    scores, losses, seen = start(), [], []
    for _ in range(steps):
        some = slice(None) if batch is None else rng.integers(0, pairs(), batch)
        losses.append(loss(scores))
        seen.append(loss(scores, some))
        scores = gradient_step(scores, loss_gradient(scores, some), rate)
    return Descent((*losses, loss(scores)), tuple(seen))


@cache
def least() -> float:
    """The loss that no such table can go below: the text's own uncertainty, given the last letter."""
    counts = np.zeros_like(start())
    np.add.at(counts, (BEFORE, AFTER), 1)
    rows = counts[counts.sum(1) > 0]
    return float(sum(row.sum() / pairs() * entropy(maximum_likelihood(row)) for row in rows))


def rises(found: Descent) -> int:
    """How many steps left the whole text's loss higher than before."""
    return int(sum(after > before for before, after in zip(found.losses, found.losses[1:], strict=False)))


@cache
def each_gradient() -> Array:
    """One row for each letter to guess: the gradient of its own surprise at the start."""
    return np.array([loss_gradient(start(), np.array([one])).ravel() for one in range(pairs())])


@cache
def spread(batch: int, draws: int = 1000, seed: int = 0) -> float:
    """Variance of a batch's gradient at the start, all entries together: mean squared distance from the whole one."""
    rng = np.random.Generator(np.random.PCG64(seed))
    each = each_gradient()
    whole = each.mean(0)
    apart = [each[rng.integers(0, pairs(), batch)].mean(0) - whole for _ in range(draws)]
    return float(np.mean([np.square(one).sum() for one in apart]))
