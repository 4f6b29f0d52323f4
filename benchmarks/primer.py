"""The primer's exercises over many seeds: python -m benchmarks.primer [SEEDS] [NAME …]

Of each: seeds without numbers, draws in which two ways cannot be told apart, spellings of the right answer that are
refused, slips that are not named, and how many random wrong numbers (the right ones times e to a normal number, four
digits) are taken for a slip.
"""

import math
import re
import sys
from dataclasses import replace

import numpy as np

from limpid.errors import ConfigError
from limpid.primer.answer import Unreadable
from limpid.primer.exercise import Answer, Exercise, Numbers, numbers_of, separable
from limpid.primer.exercises import EXERCISES
from limpid.primer.grade import grade

THOUSANDS = re.compile(r"-?[1-9]\d{0,2},\d{3}")
"""What a comma parts into thousands."""


RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def typed(answer: Answer, digits: int = 15) -> str:
    """An answer as a reader would type it."""
    said = [f"{value:.{digits}g}" for value in answer.values]
    match answer.form:
        case "number":
            return said[0]
        case "shape":
            return "x".join(said)
        case "undefined":
            return "undefined"
    return f"[{', '.join(said)}]"


def spellings(answer: Answer) -> list[str]:
    """The same answer in every notation that is read."""
    plain = [f"{value:.15g}" for value in answer.values]
    every = [typed(answer), str(answer), f"{typed(answer)}.", f" x = {typed(answer)} "]
    match answer.form:
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
            return [*every, f"[{'; '.join(commas)}]", typed(answer).replace("-", "−")]
    (value,) = answer.values
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
    rng = np.random.Generator(np.random.PCG64(0))
    without = close = refused = unnamed = named = wrong = 0
    for seed in range(1, seeds + 1):
        try:
            numbers = numbers_of(exercise, seed)
        except ConfigError:
            without += 1
            continue
        close += not separable(exercise, numbers)
        fixed = _fixed(exercise, numbers)
        right = fixed.answer(numbers)
        refused += sum(_outcome(fixed, numbers, text) != "right" for text in spellings(right))
        for slip, made in fixed.wrong(numbers):
            unnamed += grade(fixed, numbers, typed(made)).note != slip.note
        if right.values and right.form != "shape":
            values = tuple(x * math.exp(rng.normal()) + rng.normal() * (x == 0) for x in right.values)
            named += grade(fixed, numbers, typed(Answer(values, right.form), 4)).outcome == "slip"
            wrong += 1
    return without, close, refused, unnamed, named, wrong


def _fixed(exercise: Exercise, numbers: Numbers) -> Exercise:
    """The same with these numbers alone, each way computed once and not for every answer again."""
    ways = [exercise.right, *(slip.way for slip in exercise.slips)]
    right, *wrong = [one(*exercise.given(numbers)) for one in ways]
    slips = tuple(
        slip._replace(way=lambda *_, made=made: made) for slip, made in zip(exercise.slips, wrong, strict=True)
    )
    return replace(exercise, right=lambda *_: right, slips=slips)


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
