"""One thing that can be said of a loop: its name, what values it takes, how it is seen, when it is not as said."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from limpid.doctor.expected.course import Course
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

When = Literal["read", "step", "end"]
"""Asked on steps whose loss is read from its gradient, on every step, or when the loop ends."""
NEAR = 0.02
"""Relative distance within which a number is the one that was said."""


@dataclass(frozen=True)
class Seen:
    """What a key is asked about: a step, the run until it, and all else that was said."""

    watched: Watched
    record: StepRecord
    history: History
    course: Course
    said: Mapping[str, Any]


@dataclass(frozen=True)
class Key:
    """One thing that can be said."""

    part: str
    name: str
    takes: str  # the values, in words
    means: str  # what is said by them
    accepts: Callable[[Any], bool]
    see: Callable[[Seen, Any], Any]
    """What is seen, given what was said; None where it cannot be seen."""
    agrees: Callable[[Any, Any], bool]
    when: When
    patience: int
    """Steps in a row that must disagree: batches differ."""
    settles: Callable[[Any], Sequence[str]]
    """Rules that doubt what is said: they are silent about it, while it is seen to be so."""


KEYS: dict[str, Key] = {}


def key(
    part: str,
    name: str,
    takes: str,
    means: str,
    accepts: Callable[[Any], bool],
    *,
    agrees: Callable[[Any, Any], bool] | None = None,
    when: When = "read",
    patience: int = 1,
    settles: Callable[[Any], Sequence[str]] = lambda said: (),
) -> Callable[[Callable[[Seen, Any], Any]], Callable[[Seen, Any], Any]]:
    """Register what can be said, with the function that sees it."""

    def keep(see: Callable[[Seen, Any], Any]) -> Callable[[Seen, Any], Any]:
        KEYS[name] = Key(part, name, takes, means, accepts, see, agrees or is_as_said, when, patience, settles)
        return see

    return keep


def is_as_said(said: Any, seen: Any) -> bool:
    """Words, switches and whole numbers are equal, numbers near; two numbers in a list are a span."""
    if isinstance(said, bool) or isinstance(seen, bool) or isinstance(said, str):
        return bool(said == seen)
    if isinstance(said, list):
        low, high = said
        return bool(low - NEAR * abs(low) <= seen <= high + NEAR * abs(high))
    return math.isclose(said, seen, rel_tol=NEAR, abs_tol=1e-12)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_amount(value: Any) -> bool:
    return is_number(value) and value >= 0


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def is_switch(value: Any) -> bool:
    return isinstance(value, bool)


def is_span(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_number, value)) and value[0] <= value[1]


def is_number_or_span(value: Any) -> bool:
    return is_number(value) or is_span(value)


def is_amount_or_off(value: Any) -> bool:
    return value is False or is_amount(value)


def one_of(*words: str) -> Callable[[Any], bool]:
    return lambda value: value in words


def are_words(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)
