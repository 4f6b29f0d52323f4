"""An exercise: numbers drawn from a seed, the right answer, and the answer to which each likely slip leads.

Response trees as in STACK (Sangwin 2013, Computer Aided Assessment of Mathematics); slips are code, so that their
answers are known for any numbers, and numbers for which two of them cannot be told apart are not drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from limpid.errors import ConfigError
from limpid.primer.solution import line_by_line

Numbers = Mapping[str, Any]
DRAWS = 10_000
"""Attempts at numbers whose slips can be told apart."""
APART = 3.0
"""In tolerances: how far a slip's answer is from the right one, and from another slip's."""


class Answer(NamedTuple):
    """A number, a list of numbers, a shape, or "undefined"."""

    values: tuple[float, ...]
    form: str = "number"

    def __str__(self) -> str:
        said = [shown(value) for value in self.values]
        match self.form:
            case "list":
                return f"[{', '.join(said)}]"
            case "shape":
                return " × ".join(said)
            case "undefined":
                return "undefined"
        return said[0]


UNDEFINED = Answer((), "undefined")


def answer(value: Any) -> Answer:
    """What a function of numbers gives, as an answer."""
    if isinstance(value, Answer):
        return value
    array = np.asarray(value, dtype=np.float64)
    return Answer((float(array),)) if array.ndim == 0 else Answer(tuple(map(float, array.ravel())), "list")


def shape(rows: int, columns: int) -> Answer:
    return Answer((float(rows), float(columns)), "shape")


def shown(value: Any, digits: int = 6) -> str:
    """A number as it is printed: whole numbers whole, others to so many significant digits; lists in brackets."""
    if isinstance(value, Answer):
        return str(value)
    if isinstance(value, str):
        return value
    array = np.asarray(value)
    if array.ndim:
        return f"[{', '.join(shown(one, digits) for one in array)}]"
    number = float(array)
    if number.is_integer() and abs(number) < 1e15:
        return f"{int(number):,}".replace("-", "−")
    return f"{number:.{digits}g}".replace("-", "−")


class Slip(NamedTuple):
    """A wrong way, as code."""

    note: str
    """A tag without numbers, the same for every draw."""
    way: Callable[..., Any]
    """From the numbers to the wrong answer; None where the slip cannot be made with them."""
    says: str | Callable[..., str]
    """Names what was done and asks for the missing move, without the solution; {given} is the wrong answer. A function
    of the numbers where it depends on them."""

    def told(self, given: tuple[Any, ...], made: Answer) -> str:
        """What is said to this wrong answer."""
        return (self.says(*given) if callable(self.says) else self.says).format(given=made)


class Twist(NamedTuple):
    """What is done to an answer at its end, right or wrong: a sign, a base of logarithms."""

    note: str
    way: Callable[[float], float]
    says: str

    def told(self, _: tuple[Any, ...], made: Answer) -> str:
        return self.says.format(given=made)


@dataclass(frozen=True)
class Exercise:
    """A question about numbers that are drawn; seed 0 has the numbers of the text that the primer follows."""

    name: str
    chapter: str
    first: Numbers
    draw: Callable[[np.random.Generator], Numbers]
    ask: str | Callable[..., str]
    right: Callable[..., Any]
    solution: Callable[..., str]
    slips: tuple[Slip, ...]
    hints: tuple[str, ...]
    twists: tuple[Twist, ...] = ()
    decimals: int | None = None
    """Places after the point that are asked for; None: exact where the answer is whole, else 0.5 %."""
    about: float | None = None
    """How far off an answer may lie, as a share of the right one, where the question asks for about how many."""
    unit: str = ""
    """What is counted: an answer may name it."""

    def question(self, numbers: Numbers) -> str:
        if callable(self.ask):
            return self.ask(*self.given(numbers))
        return self.ask.format(**{name: shown(value) for name, value in numbers.items()})

    def given(self, numbers: Numbers) -> tuple[Any, ...]:
        """The numbers in the order in which ways take them."""
        return tuple(numbers[name] for name in self.first)

    def answer(self, numbers: Numbers) -> Answer:
        return answer(self.right(*self.given(numbers)))

    def form(self, numbers: Numbers) -> str:
        """Number, list or shape; where the right answer is that there is none, what a slip takes it for."""
        right = self.answer(numbers)
        every = itertools.chain([right], (made for _, made in self.wrong(numbers) if right.form == "undefined"))
        return next((one.form for one in every if one.form != "undefined"), "undefined")

    def solved(self, numbers: Numbers) -> str:
        """How one comes to the answer, one equality a line."""
        return line_by_line(self.solution(*self.given(numbers)))

    def tolerance(self, value: float) -> float:
        """How far from the right number an answer may lie."""
        if self.decimals is not None:
            return 0.5 * 10.0**-self.decimals
        if self.about is not None:
            return self.about * abs(value)
        return 0.0 if float(value).is_integer() else 0.005 * abs(value)

    def wrong(self, numbers: Numbers) -> Iterator[tuple[Slip | Twist, Answer]]:
        """Each slip that can be made with these numbers, and the answer to which it leads."""
        right = self.answer(numbers)
        for slip in self.slips:
            if (made := slip.way(*self.given(numbers))) is not None:
                yield slip, answer(made)
        for twist in self.twists:
            yield twist, twisted(twist, right)

    def wrong_twice(self, numbers: Numbers) -> Iterator[tuple[Slip, Twist, Answer]]:
        """A slip, and then something at the end."""
        for slip, twist in itertools.product(self.slips, self.twists):
            if (made := slip.way(*self.given(numbers))) is not None:
                yield slip, twist, twisted(twist, answer(made))


def twisted(twist: Twist, of: Answer) -> Answer:
    return Answer(tuple(float(twist.way(value)) for value in of.values), of.form)


def numbers_of(exercise: Exercise, seed: int) -> Numbers:
    """The numbers of a seed: those of the text at 0, else the first drawn whose slips can all be told apart."""
    if seed == 0:
        return exercise.first
    rng = np.random.Generator(np.random.PCG64(seed))
    for _ in range(DRAWS):
        numbers = exercise.draw(rng)
        if separable(exercise, numbers):
            return numbers
    raise ConfigError(f"{exercise.name} has no numbers for the seed {seed} whose slips can be told apart: try another")


def separable(exercise: Exercise, numbers: Numbers) -> bool:
    """Whether the right answer and each slip's differ from every other by more than three tolerances.

    Nor do two slips at once lead to the right answer.
    """
    right = exercise.answer(numbers)
    every = [right, *(made for _, made in exercise.wrong(numbers))]
    if len(every) != 1 + len(exercise.slips) + len(exercise.twists):
        return False
    if not all(apart(exercise, a, b) for a, b in itertools.combinations(every, 2)):
        return False
    return all(apart(exercise, made, right) for _, _, made in exercise.wrong_twice(numbers))


def apart(exercise: Exercise, a: Answer, b: Answer) -> bool:
    """Whether two answers are told apart by some entry."""
    if a.form != b.form or len(a.values) != len(b.values):
        return True
    return any(
        abs(x - y) > max(APART * exercise.tolerance(x), APART * exercise.tolerance(y), 1e-9)
        for x, y in zip(a.values, b.values, strict=True)
    )
