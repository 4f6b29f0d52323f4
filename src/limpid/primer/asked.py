"""An exercise by its name, with numbers of a seed or of a recorded step: for the terminal and a notebook's cell."""

from __future__ import annotations

import random

from limpid.config.names import probably_meant
from limpid.errors import ConfigError
from limpid.primer.exercise import numbers_of
from limpid.primer.exercises import EXERCISES
from limpid.primer.own.draw import Own
from limpid.primer.own.step import own_numbers
from limpid.primer.posed import Asking, Posed
from limpid.primer.puzzles import PUZZLES
from limpid.terminal import command
from limpid.tracing.trace import Trace
from limpid.tracing.worked import opened

WORKED = "worked"
"""The step of the worked model, where a run is asked for."""


def exercise(name: str, *, seed: int | None = None, of: Trace | str | None = None) -> Asking:
    """An exercise with its numbers; as the last line of a cell its question, hints and solution, folded.

    seed    which numbers; another draw each time unless given
    of      take them from this recorded step, limpid.trace(…), or from "worked", the worked model; another place of it
            for another seed
    Raises  ConfigError for a name that there is not, or a step that has no such numbers
    """
    if name not in EXERCISES and name not in PUZZLES:
        close = probably_meant(name, [*EXERCISES, *PUZZLES])
        way_out = f"did you mean {close}?" if close else "limpid learn lists them"
        raise ConfigError(f"no exercise is called {name!r}: {way_out}")
    seed = fresh() if seed is None else seed
    if name in PUZZLES:
        if of is not None:
            raise ConfigError(f"of is given, and {name} draws its own: leave it out")
        return PUZZLES[name](seed)
    if of is None:
        return Posed(EXERCISES[name], numbers_of(EXERCISES[name], seed), f"{name} --seed {seed}")
    own, where = _own(name, seed, of), of if isinstance(of, str) else of.record.path
    said = command(name, "--of", str(where), "--seed", str(seed))
    return Posed(EXERCISES[name], own.numbers, said, own.where, own.of, own.entry)


def fresh() -> int:
    """A seed that was hardly there before."""
    return random.SystemRandom().randrange(1, 1_000_000)


def _own(name: str, seed: int, of: Trace | str) -> Own:
    if not isinstance(of, str):
        return own_numbers(name, of, seed)
    if of != WORKED:
        raise ConfigError(f"of is {of!r}: a recorded step, limpid.trace({of!r}), or {WORKED!r}, the worked model")
    with opened() as worked:
        return own_numbers(name, worked, seed)
