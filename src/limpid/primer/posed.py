"""An exercise with its numbers: asked in a terminal until it is answered, and what came of it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from limpid.errors import LimpidError
from limpid.primer.answer import Unreadable
from limpid.primer.exercise import Exercise, Numbers
from limpid.primer.grade import Grade, grade
from limpid.primer.notebook import asked_html
from limpid.primer.progress import Sitting, now, record
from limpid.primer.puzzles.broken_trace import looked
from limpid.terminal import say


class Posed(NamedTuple):
    """An exercise with its numbers."""

    exercise: Exercise
    numbers: Numbers
    said: str
    """How to have the same again."""
    where: str = ""
    """Which entry of a recorded step holds what was asked for."""
    of: str = ""
    """What the numbers are in that step."""
    entry: str | None = None
    """An entry of it to be looked at."""

    @property
    def question(self) -> str:
        return f"{self.of} {self.exercise.question(self.numbers)}".lstrip()

    @property
    def solution(self) -> str:
        solved = self.exercise.solved(self.numbers)
        return f"{solved}\nin the step: {self.where}" if self.where else solved

    @property
    def answer(self) -> str:
        return str(self.exercise.answer(self.numbers))

    @property
    def hints(self) -> tuple[str, ...]:
        return self.exercise.hints

    @property
    def looks(self) -> dict[str, str]:
        """There is no trace of it: `where` names the entry of a recorded one."""
        return {}

    def judged(self, text: str, tried: int = 0) -> Grade:
        """What an answer is worth; raises Unreadable."""
        return grade(self.exercise, self.numbers, text, tried)

    def _repr_html_(self) -> str:
        return asked_html(self)

    def sitting(self, tries: tuple[str, ...], hints: int = 0, gave_up: bool = False) -> Sitting:
        return Sitting(self.exercise.name, self.said, now().isoformat(), tries, hints, gave_up)


class Asking(Protocol):
    """What can be asked: an exercise with its numbers, or a puzzle."""

    @property
    def said(self) -> str: ...
    @property
    def question(self) -> str: ...
    @property
    def solution(self) -> str: ...
    @property
    def answer(self) -> str: ...
    @property
    def hints(self) -> tuple[str, ...]: ...
    @property
    def looks(self) -> Mapping[str, str]: ...
    def judged(self, text: str, tried: int = 0) -> Grade: ...
    def sitting(self, tries: tuple[str, ...], hints: int = 0, gave_up: bool = False) -> Sitting: ...


class Asked(NamedTuple):
    """What came of asking."""

    sitting: Sitting
    left: bool
    """Whether the reader went away: end of input, or Ctrl-C."""


def ask(posed: Asking) -> Asked:
    """Read answers until one is right; a hint and the solution can be asked for."""
    shows = sys.stdin is not None and sys.stdin.isatty()
    if shows:
        look = f"look {next(iter(posed.looks))}, or " if posed.looks else ""
        say(f"An answer; or {look}hint, or solution.")
    hints = itertools.chain(posed.hints, itertools.repeat(f"{posed.hints[-1]} That was the last hint: type solution."))
    tries: tuple[str, ...] = ()
    helped = 0
    while True:
        try:
            text = input("> " if shows else "").strip()
        except (EOFError, KeyboardInterrupt):
            return Asked(posed.sitting(tries, helped), left=True)
        if text in ("", "hint", "h", "?"):
            helped += 1
            say(next(hints))
        elif text in ("solution", "s"):
            say(posed.solution)
            return Asked(posed.sitting(tries, helped, gave_up=True), left=False)
        else:
            try:
                if posed.looks and (text.startswith("look ") or "[" in text):
                    say(looked(posed.looks, text.removeprefix("look ")))
                    continue
                judged = posed.judged(text, len(tries) + helped)
            except Unreadable as error:
                say(str(error))
                continue
            say(judged.says)
            tries += (judged.note,)
            if judged.outcome == "right":
                return Asked(posed.sitting(tries, helped), left=False)


def keep(sitting: Sitting) -> None:
    """Record a sitting; one that cannot be kept was worth its while all the same, and one without an answer is none."""
    if not sitting.tries and not sitting.gave_up:
        return
    try:
        record(sitting)
    except LimpidError as error:
        say(f"limpid: not recorded: {error}", file=sys.stderr)
