"""An exercise by its name, with numbers of a seed or of a recorded step: for the terminal and a notebook's cell."""

from __future__ import annotations

import random

from limpid.config.names import probably_meant
from limpid.errors import ConfigError
from limpid.primer.exercise import numbers_of
from limpid.primer.exercises import EXERCISES
from limpid.primer.own.draw import Own
from limpid.primer.posed import Asking, Posed
from limpid.primer.puzzles import PUZZLES


def exercise(name: str, *, seed: int | None = None, of: str | None = None, step: int | None = None) -> Asking:
    """An exercise with its numbers; as the last line of a cell its question, hints and solution, folded.

    seed    which numbers; another draw each time unless given
    of      take them from a step of this run, or of `worked`, the worked model; another place for another seed
    step    which step of it; the last one unless given
    Raises  ConfigError for a name that there is not, or a step that has no such numbers
    """
    if name not in EXERCISES and name not in PUZZLES:
        close = probably_meant(name, [*EXERCISES, *PUZZLES])
        raise ConfigError(
            f"no exercise is called {name!r}: {f'did you mean {close}?' if close else 'see limpid learn'}"
        )
    seed = fresh() if seed is None else seed
    if name in PUZZLES:
        if of is not None:
            raise ConfigError(f"of is {of}, and {name} draws its own: leave it out")
        return PUZZLES[name](seed)
    if of is None:
        return Posed(EXERCISES[name], numbers_of(EXERCISES[name], seed), f"{name} --seed {seed}")
    own, at = _own(name, seed, of, step), "" if step is None else f" --step {step}"
    return Posed(EXERCISES[name], own.numbers, f"{name} --of {of}{at} --seed {seed}", own.where, own.of)


def fresh() -> int:
    """A seed that was hardly there before."""
    return random.SystemRandom().randrange(1, 1_000_000)


def _own(name: str, seed: int, of: str, step: int | None) -> Own:
    from limpid.primer.own.step import own_numbers

    if of == "worked":
        from limpid.tracing.worked import opened

        with opened() as worked:
            return own_numbers(name, worked, seed)
    from limpid.api import trace

    return own_numbers(name, trace(of, step), seed)
