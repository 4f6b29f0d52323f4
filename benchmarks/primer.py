"""The primer's exercises over many seeds: python -m benchmarks.primer [SEEDS]

Of each: seeds without numbers, right answers that are refused, slips that are not named, and how many random wrong
numbers (the right ones times e to a normal number, four digits) are taken for a slip.
"""

import math
import sys

import numpy as np

from limpid.errors import ConfigError
from limpid.primer.exercise import Answer, Exercise, numbers_of
from limpid.primer.exercises import EXERCISES
from limpid.primer.grade import grade


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


def measured(exercise: Exercise, seeds: int) -> tuple[int, int, int, int, int]:
    """Seeds without numbers, answers refused, slips not named, wrong numbers named, wrong numbers."""
    rng = np.random.Generator(np.random.PCG64(0))
    without = refused = unnamed = named = wrong = 0
    for seed in range(1, seeds + 1):
        try:
            numbers = numbers_of(exercise, seed)
        except ConfigError:
            without += 1
            continue
        right = exercise.answer(numbers)
        refused += any(grade(exercise, numbers, text).outcome != "right" for text in (typed(right), str(right)))
        for slip, made in exercise.wrong(numbers):
            unnamed += grade(exercise, numbers, typed(made)).note != slip.note
        if right.values and right.form != "shape":
            values = tuple(x * math.exp(rng.normal()) + rng.normal() * (x == 0) for x in right.values)
            named += grade(exercise, numbers, typed(Answer(values, right.form), 4)).outcome == "slip"
            wrong += 1
    return without, refused, unnamed, named, wrong


def main() -> None:
    seeds = int(sys.argv[1]) if sys.argv[1:] else 10_000
    print(f"{seeds:,} seeds | without numbers | right refused | slips not named | wrong numbers taken for a slip")
    total = np.zeros(5, int)
    for exercise in EXERCISES.values():
        found = measured(exercise, seeds)
        total += found
        print(f"{exercise.name} | {found[0]} | {found[1]} | {found[2]} | {found[3]} of {found[4]}", flush=True)
    print(f"all | {total[0]} | {total[1]} | {total[2]} | {total[3]} of {total[4]}")


if __name__ == "__main__":
    main()
