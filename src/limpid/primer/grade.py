"""What an answer is: right, right but rounded too far, one of the slips or two of them, or wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, NamedTuple

from limpid.primer.answer import Typed, Unreadable, read
from limpid.primer.chance import MOST, chance
from limpid.primer.exercise import Answer, Exercise, Numbers, Slip, Twist
from limpid.primer.units import is_known, smallest

LEAST_DIGITS = 3
"""Significant digits without which a slip is not named, unless its answer is exactly what was typed."""
EXACT = 1e-9
PERHAPS = "Perhaps this: "
"""Before a slip's name where a guess might have met its answer."""
PRINTED = 5e-7
"""Of a slip's answer, what its printed digits leave open: AdamW's ε, say, moves the tenth one."""


class Grade(NamedTuple):
    """What is said to an answer."""

    outcome: str  # right, rounded, slip, wrong
    note: str  # the slip's, two joined by +, else the outcome
    says: str


class Way(NamedTuple):
    """A wrong way, the answer to which it leads, and what is said to it."""

    note: str
    made: Answer
    told: Callable[[Answer], str]


def grade(exercise: Exercise, numbers: Numbers, text: str, tried: int = 0) -> Grade:
    """Judge a typed answer; the hint of a wrong one is that of so many tries.

    Raises  Unreadable when the text is no answer at all
    """
    return Key(exercise, numbers).grade(text, tried)


class Key:
    """An exercise with its numbers: the right answer and those of the slips, computed once for many that are typed."""

    def __init__(self, exercise: Exercise, numbers: Numbers) -> None:
        self.exercise, self.given = exercise, exercise.given(numbers)
        self.right = exercise.answer(numbers)
        self._numbers = numbers

    @cached_property
    def form(self) -> str:
        return self.exercise.form(self._numbers)

    @cached_property
    def tolerances(self) -> list[float]:
        return [self.exercise.tolerance(value) for value in self.right.values]

    @cached_property
    def ways(self) -> list[Way]:
        """The slips that can be made with these numbers."""
        wrong = self.exercise.wrong(self._numbers)
        return [Way(slip.note, made, partial(slip.told, self.given)) for slip, made in wrong]

    @cached_property
    def twice(self) -> list[Way]:
        """A slip, and then something at the end."""
        return [
            Way(f"{slip.note}+{twist.note}", made, partial(_both, self.given, slip, twist))
            for slip, twist, made in self.exercise.wrong_twice(self._numbers)
        ]

    def grade(self, text: str, tried: int = 0) -> Grade:
        """Judge a typed answer; raises Unreadable."""
        exercise, right = self.exercise, self.right
        typed = read(text, self.form, exercise.unit)
        if not typed.unit and _alike(typed, right):
            if _near(typed, right, self.tolerances):
                return Grade("right", "right", f"Right: {right}.")
            if rounded := self._rounded(typed):
                return rounded
        if (not typed.unit or is_known(typed.unit)) and (way := self._slip(typed)) is not None:
            says = way.told(Answer(typed.values, typed.form))
            return Grade("slip", way.note, says if self._certain(typed, way) else PERHAPS + says)
        if typed.unit:
            asked = f"in {exercise.unit}, or the number alone" if exercise.unit else "without a unit"
            raise Unreadable(f"“{text.strip()}” is in {typed.unit}: type it {asked}")
        return _form(exercise, typed, right, tried)

    def _rounded(self, typed: Typed) -> Grade | None:
        """Where the right answer rounds to what was typed, unless a slip's can be named that lies nearer."""
        if not _near(typed, self.right, [max(pair) for pair in zip(self.tolerances, typed.within, strict=True)]):
            return None
        off, way = _apart(typed, self.right), self._slip(typed)
        if way is not None and _apart(typed, way.made) < off:
            return None
        nearer = any(_alike(typed, one.made) and _apart(typed, one.made) < off for one in self.ways)
        says = "Too few digits to tell: give more." if nearer else "Right so far: give more digits."
        return Grade("rounded", "rounded", says)

    def _certain(self, typed: Typed, way: Way) -> bool:
        """Whether a random wrong number hardly meets this slip's answer, nor one of those that it meets less often."""
        if not _alike(typed, way.made) or not _alike(typed, self.right):
            return True
        own = chance(typed, way.made, self.right)
        if way not in self.ways:
            return own * len(self.twice) <= MOST
        every = (chance(typed, one.made, self.right) for one in self.ways if _alike(typed, one.made))
        return sum(one for one in every if one <= own) <= MOST

    def _slip(self, typed: Typed) -> Way | None:
        """The slip whose answer was typed, the nearest if there are several; else two at once."""
        nearest = _nearest(typed, self.ways)
        return _nearest(typed, self.twice) if nearest is None else nearest


def _nearest(typed: Typed, ways: list[Way]) -> Way | None:
    found = [way for way in ways if _is(typed, way.made)]
    return min(found, key=lambda way: _apart(typed, way.made)) if found else None


def _both(given: tuple[Any, ...], slip: Slip, twist: Twist, typed: Answer) -> str:
    return f"Two things at once. {slip.told(given, typed)} And then: {twist.told(given, typed)}"


def _form(exercise: Exercise, typed: Typed, right: Answer, tried: int) -> Grade:
    hint = exercise.hints[min(tried, len(exercise.hints) - 1)]
    if typed.form != right.form:
        asked = {"number": "one number", "list": "a list of numbers", "shape": "a shape, as 3 × 2",
                 "undefined": "whether it is defined at all"}[right.form]  # fmt: skip
        return Grade("wrong", f"form-{typed.form}", f"Asked for is {asked}. {hint}")
    if len(typed.values) != len(right.values):
        return Grade(
            "wrong", "length", f"The list has {len(right.values)} numbers, here are {len(typed.values)}. {hint}"
        )
    unit, size = smallest(exercise.unit) if exercise.unit else ("", 1.0)
    if size != 1 and typed.form == "number" and abs(typed.values[0] / size / right.values[0] - 1) <= PRINTED:
        return Grade("wrong", "unit", f"Right in {unit}; asked for are {exercise.unit}.")
    said = f"Not {Answer(typed.values, typed.form)} {exercise.unit if size != 1 else ''}".rstrip()
    return Grade("wrong", "wrong", f"{said}. {hint}")


def _alike(typed: Typed, made: Answer) -> bool:
    return typed.form == made.form and len(typed.values) == len(made.values)


def _apart(typed: Typed, made: Answer) -> float:
    """How far off the entry is that is farthest off; nothing where all printed digits agree."""
    each = zip(typed.values, made.values, strict=True)
    return max((abs(value - one) for value, one in each if abs(value - one) > _exact(one)), default=0.0)


def _exact(wrong: float) -> float:
    return EXACT + PRINTED * abs(wrong)


def _near(typed: Typed, right: Answer, within: list[float]) -> bool:
    each = zip(typed.values, right.values, within, strict=True)
    return all(abs(value - true) <= allowed + EXACT * abs(true) for value, true, allowed in each)


def _is(typed: Typed, made: Answer) -> bool:
    """Whether what was typed is this number to the last digit that was typed."""
    if not _alike(typed, made):
        return False
    return all(
        abs(value - wrong) <= (within if _says_enough(value, within) else 0.0) + _exact(wrong)
        for value, wrong, within in zip(typed.values, made.values, typed.within, strict=True)
    )


def _says_enough(value: float, within: float) -> bool:
    return abs(value) >= within * 10.0 ** (LEAST_DIGITS - 1)
