"""The same exercises with numbers of a step that the reader recorded, graded against its trace."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from limpid.errors import ConfigError
from limpid.maths.rounding import FORMATS, unit_roundoff
from limpid.primer.exercise import apart, separable
from limpid.primer.exercises import EXERCISES
from limpid.primer.grade import EXACT
from limpid.primer.own import attention, losses, sizes, stream, updates, vectors
from limpid.primer.own.draw import Own
from limpid.tracing.trace import Trace

DRAWN: dict[str, Callable[[Trace, np.random.Generator], Own]] = {
    **vectors.DRAWN, **stream.DRAWN, **attention.DRAWN, **losses.DRAWN, **updates.DRAWN, **sizes.DRAWN
}  # fmt: skip
ROUNDINGS = 4
"""Of a step between the numbers of a question and its answer: scores, their exponentials, the sum, the division."""
PLACES = 16
"""Places of a step that are tried for one where slips can be told apart; sizes are the same in all of them."""
WITHOUT = {
    "gradient": "no part of a step is a polynomial of two numbers",
    "chain-of-two": "no part of a step is a power of a line",
    "backward-weight": "units of a step have more than two inputs, and the losses of language models are no squares",
    "softmax-of-equals": "scores of a step are never all equal",
    "least-norm": "the loss of a step has many weights, and no two that alone decide it",
    "cell-step": "a step has attention, and no cell",
}
"""Why an exercise cannot take its numbers from a step."""


def own_numbers(name: str, trace: Trace, seed: int) -> Own:
    """An exercise's numbers from a recorded step; another place of it for another seed.

    Raises  ConfigError where a step has no such numbers, or none whose digits give the answer that the step has
    """
    if name not in DRAWN:
        raise ConfigError(f"{name} has no numbers in a recorded step: {WITHOUT[name]}; "
                          "choose another exercise, or leave out of")  # fmt: skip
    rng = np.random.Generator(np.random.PCG64(seed))
    lost = unit_roundoff(FORMATS[trace.record.meta["precision"]["compute"]])
    best, most = None, -1
    for _ in range(PLACES):
        own = DRAWN[name](trace, rng)
        if not agrees(name, own, lost):
            continue
        if separable(EXERCISES[name], own.numbers):
            return own
        if (found := _shown(name, own)) > most:
            best, most = own, found
    if best is None:
        raise ConfigError(f"of this step, {own.where} is not what six digits of its numbers give, in any of {PLACES} "
                          "places: take a step in fp32, or another seed")  # fmt: skip
    return best


def _shown(name: str, own: Own) -> int:
    """How many slips lead to another answer than the right one."""
    exercise = EXERCISES[name]
    right = exercise.answer(own.numbers)
    return sum(apart(exercise, made, right) for _, made in exercise.wrong(own.numbers))


def agrees(name: str, own: Own, lost: float = 0.0) -> bool:
    """Whether the printed numbers lead to what the step has, up to the tolerance of the answer and its own roundings.

    lost    share of a number that one rounding of the step may take
    """
    exercise, share = EXERCISES[name], EXACT + ROUNDINGS * lost
    made = exercise.answer(own.numbers).values
    return len(made) == len(own.held) and all(
        abs(one - held) <= exercise.tolerance(held) + share * abs(held)
        for one, held in zip(made, own.held, strict=True)
    )
