"""The primer's exercises over many seeds: python -m benchmarks.primer [SEEDS] [NAME …]

Of each: seeds without numbers, draws in which two ways cannot be told apart, spellings of the right answer that are
refused, slips that are not named, and how many random wrong numbers (the right ones times e to a normal number, four
digits) are taken for a slip.
"""

import math
import operator
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from limpid.errors import ConfigError
from limpid.primer.answer import Unreadable
from limpid.primer.exercise import Answer, Exercise, Numbers, answer, numbers_of, separable
from limpid.primer.exercises import EXERCISES
from limpid.primer.grade import grade

THOUSANDS = re.compile(r"-?[1-9]\d{0,2},\d{3}")
"""What a comma parts into thousands."""


RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def typed(of: Answer, digits: int = 15) -> str:
    """An answer as a reader would type it."""
    said = [f"{value:.{digits}g}" for value in of.values]
    match of.form:
        case "number":
            return said[0]
        case "shape":
            return "x".join(said)
        case "undefined":
            return "undefined"
    return f"[{', '.join(said)}]"


def spellings(of: Answer) -> list[str]:
    """The same answer in every notation that is read."""
    plain = [f"{value:.15g}" for value in of.values]
    every = [typed(of), str(of), f"{typed(of)}.", f" x = {typed(of)} "]
    match of.form:
        case "shape":
            pairs = [f"({', '.join(plain)})", f"[{','.join(plain)}]", " ".join(plain)]
            return [*every, *pairs, " × ".join(plain), " by ".join(plain), f"({'x'.join(plain)})"]
        case "undefined":
            return [*every, "Undefined", "not defined", "no", "none"]
        case "list":
            commas = [one.replace(".", ",") for one in plain]
            every += [
                "; ".join(plain),
                ", ".join(plain),
                f"({', '.join(plain)})",
                f"[{' '.join(plain)}]",
                ",".join(plain),
            ]
            return [*every, f"[{'; '.join(commas)}]", typed(of).replace("-", "−")]
    (value,) = of.values
    comma = plain[0].replace(".", ",")
    mantissa, exponent = f"{value:.14e}".split("e")
    every += [
        f"{value:.14e}",
        plain[0] if THOUSANDS.fullmatch(comma) else comma,
        plain[0].replace("-", "−"),
        f"≈ {plain[0]}",
        f"{mantissa}*10^{int(exponent)}",
        f"{mantissa} × 10{str(int(exponent)).translate(RAISED)}",
        f"{100 * value:.15g}%",
    ]
    every += [f"{2 * value:.15g}/2", f"({value / 3:.16g}) · 3", f"{value:,.0f}" if value.is_integer() else plain[0]]
    return [*every, f"√({value * value:.16g})", f"exp(ln({value:.16g}))"] if value > 0 else every


def measured(exercise: Exercise, seeds: int) -> tuple[int, ...]:
    """Seeds without numbers, draws not separable, spellings refused, slips not named, numbers named, wrong numbers."""
    rng, exercise = np.random.Generator(np.random.PCG64(0)), _remembered(exercise)
    without = close = refused = unnamed = named = wrong = 0
    for seed in range(1, seeds + 1):
        try:
            numbers = numbers_of(exercise, seed)
        except ConfigError:
            without += 1
            continue
        close += not separable(exercise, numbers)
        right = exercise.answer(numbers)
        refused += sum(_outcome(exercise, numbers, text) != "right" for text in set(spellings(right)))
        for slip, made in exercise.wrong(numbers):
            unnamed += grade(exercise, numbers, typed(made)).note != slip.note
        if right.values and right.form != "shape":
            values = tuple(x * math.exp(rng.normal()) + rng.normal() * (x == 0) for x in right.values)
            named += grade(exercise, numbers, typed(Answer(values, right.form), 4)).outcome == "slip"
            wrong += 1
    return without, close, refused, unnamed, named, wrong


def _remembered(exercise: Exercise) -> Exercise:
    """The same, each way computed once for the same numbers and not for every answer again."""
    slips = tuple(slip._replace(way=_once(slip.way)) for slip in exercise.slips)
    return replace(exercise, right=_once(exercise.right), slips=slips)


def _once(way: Callable[..., Any]) -> Callable[..., Answer | None]:
    last: tuple[Any, ...] | None = None
    made: Answer | None = None

    def same(*given: Any) -> Answer | None:
        nonlocal last, made
        if last is None or not all(map(operator.is_, given, last)):
            found = way(*given)
            last, made = given, None if found is None else answer(found)
        return made

    return same


def _outcome(exercise: Exercise, numbers: Numbers, text: str) -> str:
    try:
        return grade(exercise, numbers, text).outcome
    except Unreadable:
        return "unread"


def main() -> None:
    seeds = int(sys.argv[1]) if sys.argv[1:] else 10_000
    print(f"{seeds:,} seeds | without numbers | ambiguous | right refused | slips not named | wrong taken for a slip")
    total = np.zeros(6, int)
    for name in sys.argv[2:] or EXERCISES:
        found = measured(EXERCISES[name], seeds)
        total += found
        print(_row(name, found), flush=True)
    print(_row("all", total))


def _row(name: str, found: tuple[int, ...] | np.ndarray) -> str:
    return f"{name} | {' | '.join(map(str, found[:4]))} | {found[4]} of {found[5]}"


if __name__ == "__main__":
    main()
