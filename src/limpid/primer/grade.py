"""What an answer is: right, right but rounded too far, one of the slips or two of them, or wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from limpid.primer.answer import Typed, Unreadable, read
from limpid.primer.exercise import Answer, Exercise, Numbers, Slip, Twist
from limpid.primer.units import is_known, smallest

LEAST_DIGITS = 3
"""Significant digits without which a slip is not named, unless its answer is exactly what was typed."""
EXACT = 1e-9
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
    typed, right = read(text, exercise.form(numbers), exercise.unit), exercise.answer(numbers)
    if not typed.unit and _alike(typed, right):
        tolerances = [exercise.tolerance(value) for value in right.values]
        if _near(typed, right, tolerances):
            return Grade("right", "right", f"Right: {right}.")
        if rounded := _rounded(exercise, numbers, typed, tolerances):
            return rounded
    if (not typed.unit or is_known(typed.unit)) and (way := _slip(exercise, numbers, typed)) is not None:
        return Grade("slip", way.note, way.told(Answer(typed.values, typed.form)))
    if typed.unit:
        asked = f"in {exercise.unit}, or the number alone" if exercise.unit else "without a unit"
        raise Unreadable(f"“{text.strip()}” is in {typed.unit}: type it {asked}")
    return _form(exercise, typed, right, tried)


def _rounded(exercise: Exercise, numbers: Numbers, typed: Typed, tolerances: list[float]) -> Grade | None:
    """Where the right answer rounds to what was typed, unless a slip's can be named that lies nearer."""
    right = exercise.answer(numbers)
    if not _near(typed, right, [max(pair) for pair in zip(tolerances, typed.within, strict=True)]):
        return None
    off, way = _apart(typed, right), _slip(exercise, numbers, typed)
    if way is not None and _apart(typed, way.made) < off:
        return None
    nearer = any(_alike(typed, one.made) and _apart(typed, one.made) < off for one in _ways(exercise, numbers))
    says = "Too few digits to tell: give more." if nearer else "Right so far: give more digits."
    return Grade("rounded", "rounded", says)


def _slip(exercise: Exercise, numbers: Numbers, typed: Typed) -> Way | None:
    """The slip whose answer was typed, the nearest if there are several; else two at once."""
    for ways in (_ways(exercise, numbers), _twice(exercise, numbers)):
        if found := [way for way in ways if _is(typed, way.made)]:
            return min(found, key=lambda way: _apart(typed, way.made))
    return None


def _ways(exercise: Exercise, numbers: Numbers) -> Iterator[Way]:
    given = exercise.given(numbers)
    for slip, made in exercise.wrong(numbers):
        yield Way(slip.note, made, partial(slip.told, given))


def _twice(exercise: Exercise, numbers: Numbers) -> Iterator[Way]:
    given = exercise.given(numbers)
    for slip, twist, made in exercise.wrong_twice(numbers):
        yield Way(f"{slip.note}+{twist.note}", made, partial(_both, given, slip, twist))


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
