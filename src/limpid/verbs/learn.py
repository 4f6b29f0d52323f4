"""`limpid learn`: the primer, its chapters and its exercises."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from limpid.config.flags import read
from limpid.errors import ConfigError
from limpid.terminal import say, say_json

if TYPE_CHECKING:
    from limpid.primer.exercise import Exercise, Numbers


@dataclass(frozen=True)
class LearnFlags:
    """The primer: chapters from vectors on, and exercises that say what went wrong.

    limpid learn                     all chapters, and their exercises
    limpid learn vectors             a chapter, its numbers computed as it is shown
    limpid learn dot                 an exercise, with numbers of its own each time
    limpid learn dot --seed 7        the same numbers anywhere; 0 are the first ones
    limpid learn dot --seed 7 --answer 22
    limpid learn scores --of last    with numbers of a step of yours
    """

    name: str | None = field(default=None, metadata={"positional": "NAME"})
    """Of a chapter or an exercise."""
    seed: int | None = None
    """Which numbers; another draw each time unless given."""
    of: str | None = None
    """Take the numbers from a step of this run, or of `worked`, the worked model; another place for another seed."""
    step: int | None = None
    """Which step of it; the last one unless given."""
    answer: str | None = None
    """Judge this answer, and ask nothing: exit code 0 when it is right, else 1."""
    solution: bool = False
    """Print the question and how it is solved."""
    json: bool = False
    """Print one JSON document."""


def verb(argv: Sequence[str]) -> int:
    flags = read("learn", LearnFlags, argv)
    from limpid.primer.chapter import written
    from limpid.primer.exercises import EXERCISES

    if flags.name is None:
        return _list(flags.json)
    if flags.name in written():
        return _chapter(flags)
    if flags.name not in EXERCISES:
        raise ConfigError(f"no chapter or exercise is called {flags.name!r}: choose one of "
                          f"{', '.join([*written(), *EXERCISES])}")  # fmt: skip
    if flags.step is not None and flags.of is None:
        raise ConfigError(f"step is {flags.step}, of no run: name it with of")
    if flags.seed is not None and flags.seed < 0:
        raise ConfigError(f"seed is {flags.seed}: 0 or more")
    seed = random.SystemRandom().randrange(1, 1_000_000) if flags.seed is None else flags.seed
    return _one(_posed(flags.name, seed, flags.of, flags.step), flags)


def _list(as_json: bool) -> int:
    from limpid.primer.chapter import chapter, written
    from limpid.primer.exercises import EXERCISES

    by_chapter = {
        name: [one for one in EXERCISES.values() if one.chapter == name]
        for name in dict.fromkeys([*written(), *(one.chapter for one in EXERCISES.values())])
    }
    if as_json:
        say_json(
            [
                {
                    "chapter": name,
                    "exercises": [{"exercise": one.name, "question": one.question(one.first)} for one in its],
                }
                for name, its in by_chapter.items()
            ]
        )
        return 0
    for name, its in by_chapter.items():
        minutes = f"{chapter(name).minutes} min" if name in written() else ""
        say(f"{name:20} {minutes:>6}  {', '.join(one.name for one in its)}".rstrip())
    return 0


def _chapter(flags: LearnFlags) -> int:
    """Print a chapter. What belongs to an exercise says so."""
    from limpid.console import Console
    from limpid.primer.chapter import chapter
    from limpid.primer.html import html
    from limpid.primer.terminal import show

    assert flags.name is not None
    for given in ("seed", "of", "answer"):
        if (value := getattr(flags, given)) is not None:
            raise ConfigError(f"{given} is {value}, and {flags.name} is a chapter: choose one of its exercises")
    read = chapter(flags.name)
    if flags.json:
        say_json({"chapter": read.name, "title": read.title, "minutes": read.minutes, "parts": html(read)})
    else:
        show(read, Console())
    return 0


class Posed(NamedTuple):
    """An exercise with its numbers."""

    exercise: Exercise
    numbers: Numbers
    said: str
    """How to have the same again."""
    where: str = ""
    """Which entry of a recorded step holds what was asked for."""

    @property
    def solution(self) -> str:
        solved = self.exercise.solution(*self.exercise.given(self.numbers))
        return f"{solved}\nin the step: {self.where}" if self.where else solved


def _posed(name: str, seed: int, of: str | None, step: int | None) -> Posed:
    from limpid.primer.exercise import numbers_of
    from limpid.primer.exercises import EXERCISES

    exercise = EXERCISES[name]
    if of is None:
        return Posed(exercise, numbers_of(exercise, seed), f"{name} --seed {seed}")
    from limpid.primer.own_step import own_numbers

    if of == "worked":
        from limpid.tracing.worked import opened

        with opened() as worked:
            own = own_numbers(name, worked, seed)
    else:
        from limpid.api import trace

        own = own_numbers(name, trace(of, step), seed)
    at = "" if step is None else f" --step {step}"
    return Posed(exercise, own.numbers, f"{name} --of {of}{at} --seed {seed}", own.where)


def _one(posed: Posed, flags: LearnFlags) -> int:
    from limpid.primer.grade import grade

    question = posed.exercise.question(posed.numbers)
    judged = None if flags.answer is None else grade(posed.exercise, posed.numbers, flags.answer)
    if flags.json:
        found = {"exercise": posed.said, "question": question}
        if flags.solution:
            found |= {"solution": posed.solution, "answer": str(posed.exercise.answer(posed.numbers))}
        say_json(found | ({} if judged is None else judged._asdict()))
    else:
        say(f"{posed.said}\n{question}")
        if judged is not None:
            say(judged.says)
        if flags.solution:
            say(posed.solution)
        if judged is None and not flags.solution:
            return _ask(posed)
    return 0 if judged is None or judged.outcome == "right" else 1


def _ask(posed: Posed) -> int:
    """Read answers until one is right; a hint and the solution can be asked for."""
    from limpid.primer.answer import Unreadable
    from limpid.primer.grade import grade

    shows = sys.stdin is not None and sys.stdin.isatty()
    if shows:
        say("An answer; or hint, or solution.")
    hints = itertools.chain(posed.exercise.hints, itertools.repeat(posed.exercise.hints[-1]))
    tried = 0
    while True:
        try:
            text = input("> " if shows else "").strip()
        except (EOFError, KeyboardInterrupt):
            return 1
        if text in ("", "hint", "h", "?"):
            say(next(hints))
        elif text in ("solution", "s"):
            say(posed.solution)
            return 1
        else:
            try:
                judged = grade(posed.exercise, posed.numbers, text, tried)
            except Unreadable as error:
                say(str(error))
                continue
            say(judged.says)
            if judged.outcome == "right":
                return 0
            tried += 1
