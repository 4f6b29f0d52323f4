"""An exercise with numbers that a reader gives: `v = [3, 4]`, as in TOML, or as answers are typed, √2 and 1/3 too."""

from __future__ import annotations

import re
import tomllib
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from limpid.errors import ConfigError, LimpidError
from limpid.maths.operation import Array
from limpid.primer.answer import Unreadable, read
from limpid.primer.exercise import Exercise, Numbers, numbers_of, shown

MOST = 64
"""Entries of a list: a line is read by a person."""
LARGEST = 1e9
"""Of a number, unless the exercise draws such itself: squares and products of these keep all their digits."""
SEEDS = range(1, 33)
"""Draws from which it is seen what a number has to be."""
REFUSED = (LimpidError, ArithmeticError, ValueError, TypeError, IndexError, AssertionError, MemoryError)
"""What an exercise raises for numbers that it can do nothing with."""


def given(exercise: Exercise, text: str) -> Numbers:
    """The numbers that a text gives to an exercise.

    Raises  ConfigError that names the value, what was expected, and numbers that can be used
    """
    way_out = f"as in --numbers '{spelled(exercise.first)}'"
    typed = _assigned(text, way_out)
    typed = {name if name in exercise.first else name.lower(): value for name, value in typed.items()}
    if unknown := [name for name in typed if name not in exercise.first]:
        raise ConfigError(f"numbers has {unknown[0]}, and {exercise.name} takes {', '.join(exercise.first)}: {way_out}")
    if missing := [name for name in exercise.first if name not in typed]:
        raise ConfigError(f"numbers has no {' and no '.join(missing)}: {way_out}")
    numbers = {name: _checked(exercise, name, typed[name], way_out) for name in exercise.first}
    _computed(exercise, numbers, way_out)
    return numbers


def spelled(numbers: Numbers) -> str:
    """Numbers as one may type them."""
    return "; ".join(f"{name} = {np.asarray(value).tolist()}" for name, value in numbers.items())


def _assigned(text: str, way_out: str) -> dict[str, Any]:
    """Names and values, as TOML where it is that, else each as an answer is read."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        pass
    found: dict[str, Any] = {}
    for part in filter(str.strip, _parts(text)):
        name, equals, value = (one.strip() for one in part.partition("="))
        if not equals or not name.isidentifier() or name in found:
            raise ConfigError(f"numbers has {part.strip()!r}, which gives no value a name of its own: {way_out}")
        found[name] = _typed(name, value, way_out)
    return found


def _parts(text: str) -> list[str]:
    """What semicolons and ends of lines part outside of brackets."""
    parts, depth = [""], 0
    for mark in text:
        depth += (mark == "[") - (mark == "]")
        if mark in ";\n" and depth <= 0:
            parts.append("")
        else:
            parts[-1] += mark
    return parts


def _typed(name: str, value: str, way_out: str) -> Any:
    """A number, or a list, or a list of lists."""
    if rows := re.fullmatch(r"\[\s*(\[.*\])\s*,?\s*\]", value, re.DOTALL):
        return [_typed(name, row, way_out) for row in re.findall(r"\[[^\[\]]*\]", rows[1])]
    if one := re.fullmatch(r"\[([^\[\],;\s]+),?\]", value):
        return [_typed(name, one[1], way_out)]
    try:
        typed = read(value)
    except Unreadable as error:
        raise ConfigError(f"numbers gives {name} no number: {error}") from None
    if typed.form not in ("number", "list"):
        raise ConfigError(f"numbers gives {name} = {value}: a number or a list of numbers, {way_out}")
    values = [int(one) if one.is_integer() else one for one in typed.values]
    return values if typed.form == "list" else values[0]


def _checked(exercise: Exercise, name: str, value: Any, way_out: str) -> Any:
    """A value of the kind that the exercise has there."""
    array, expected = _array(value), _kind(exercise, name)
    if array is None or array.ndim != np.ndim(exercise.first[name]) or 0 in array.shape or not np.isfinite(array).all():
        said = value if len(str(value)) < 60 else f"{str(value)[:57]}…"
        raise ConfigError(f"numbers gives {name} = {said}: {expected}, {way_out}")
    if max(array.shape, default=0) > MOST:
        raise ConfigError(f"numbers gives {name} {max(array.shape)} entries: {MOST} at most, {way_out}")
    drawn = _drawn(exercise, name)
    limit = max(LARGEST, 1000 * max(map(abs, drawn)))
    if (largest := float(np.abs(array).max())) > limit:
        raise ConfigError(f"numbers gives {name} {largest:g}: {limit:,.0f} at most, {way_out}")
    whole = bool((array == np.round(array)).all()) and largest < 2**53
    counts = array.ndim == 0 and min(drawn) >= 1 and all(float(one).is_integer() for one in drawn)
    if (counts and (not whole or array < 1)) or (min(drawn) > 0 and array.ndim == 0 and array <= 0):
        raise ConfigError(f"numbers gives {name} = {shown(array)}: {expected}, {way_out}")
    if name == "p" and max(drawn) <= 1 and ((array < 0) | (array > 1)).any():
        raise ConfigError(f"numbers gives {name} = {shown(array)}: a probability lies in 0 to 1, {way_out}")
    array = array.astype(np.int64) if whole else array
    return array if array.ndim else array.item()


def _array(value: Any) -> Array | None:
    """As an array of numbers; None for what is none."""
    flat = np.asarray(value, dtype=object).ravel() if not isinstance(value, Mapping) else [None]
    if any(isinstance(one, bool) or not isinstance(one, int | float) for one in flat):
        return None
    try:
        return np.asarray(value, dtype=np.float64)
    except (ValueError, OverflowError):
        return None


def _kind(exercise: Exercise, name: str) -> str:
    drawn = _drawn(exercise, name)
    match np.ndim(exercise.first[name]):
        case 1:
            return "a list of finite numbers"
        case 2:
            return "rows of finite numbers, of one length"
    if min(drawn) >= 1 and all(float(one).is_integer() for one in drawn):
        return "a whole number, 1 or more"
    return "a number above 0" if min(drawn) > 0 else "a number"


@cache
def _of_seeds(exercise_name: str) -> tuple[Numbers, ...]:
    from limpid.primer.exercises import EXERCISES

    return tuple(numbers_of(EXERCISES[exercise_name], seed) for seed in (0, *SEEDS))


def _drawn(exercise: Exercise, name: str) -> list[float]:
    """Values that the exercise draws itself."""
    return [float(one) for numbers in _of_seeds(exercise.name) for one in np.ravel(numbers[name])]


def _computed(exercise: Exercise, numbers: Numbers, way_out: str) -> None:
    """Refuse numbers that do not fit together: the question, the answer and each slip have to come of them."""
    said = ", ".join(f"{name} = {shown(value)}" for name, value in numbers.items())
    said = said if len(said) < 120 else f"{said[:117]}…"
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            values = exercise.answer(numbers).values
            exercise.question(numbers)
            exercise.solution(*exercise.given(numbers))
            for _ in (*exercise.wrong(numbers), *exercise.wrong_twice(numbers)):
                pass
    except REFUSED as error:
        why = f": {error}" if isinstance(error, LimpidError) else ""
        raise ConfigError(f"numbers gives {said}, which do not go together{why}; {way_out}") from None
    if not np.isfinite(values).all():
        raise ConfigError(f"numbers gives {said}, and no finite answer comes of it; {way_out}")
