"""The same exercises with numbers of a step that the reader recorded, graded against its trace."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from limpid.errors import ConfigError
from limpid.primer import own_attention, own_training
from limpid.primer.exercise import separable
from limpid.primer.exercises import EXERCISES
from limpid.primer.own_draw import Own
from limpid.tracing.trace import Trace

DRAWN: dict[str, Callable[[Trace, np.random.Generator], Own]] = {**own_attention.DRAWN, **own_training.DRAWN}
PLACES = 16
"""Places of a step that are tried for one where slips can be told apart; sizes are the same in all of them."""
TOO_LONG = "a step has vectors of its model's width, too long to reckon with by hand"
OF_A_WORLD = "it counts things of the world, and a step has none"
OF_LETTERS = "it is about a function of a line or two, and a step has other ones"
NOT_THERE = "no entry of a step holds what it asks for"
WITHOUT = {
    **dict.fromkeys(("layer-norm", "matrix-vector", "matrix-matrix", "transpose", "clip-factor"), TOO_LONG),
    **dict.fromkeys(("standard-deviation", "backward-weight"), TOO_LONG),
    **dict.fromkeys(
        ("conditional", "green-count", "turn-round", "interval", "standard-error", "group-advantage"), OF_A_WORLD
    ),
    **dict.fromkeys(("power-rule", "gradient", "chain-of-two", "exponentials", "undo-ln", "logs-add"), OF_LETTERS),
    **dict.fromkeys(("log-laws", "product-of-slopes", "identity-path", "gradient-step"), OF_LETTERS),
    **dict.fromkeys(("length", "cosine", "right-angle", "same-distance", "temperature", "batch-noise"), NOT_THERE),
    **dict.fromkeys(("softmax-of-equals", "product-order", "exponent-bias", "largest-number"), NOT_THERE),
    **dict.fromkeys(("size-of-a-gradient", "training-flops", "training-memory", "reward-loss"), NOT_THERE),
}
"""Why an exercise cannot take its numbers from a step."""


def own_numbers(name: str, trace: Trace, seed: int) -> Own:
    """An exercise's numbers from a recorded step; another place of it for another seed.

    Raises  ConfigError where a step has no such numbers, or none that one can reckon with by hand
    """
    if name not in DRAWN:
        why = f": {WITHOUT[name]}" if name in WITHOUT else ""
        raise ConfigError(
            f"{name} has no numbers in a recorded step{why}; choose one of {', '.join(DRAWN)}, or leave out of"
        )
    rng = np.random.Generator(np.random.PCG64(seed))
    first = own = DRAWN[name](trace, rng)
    for _ in range(PLACES):
        if separable(EXERCISES[name], own.numbers):
            return own
        own = DRAWN[name](trace, rng)
    return first
