"""The primer's exercises over many seeds: python -m benchmarks.primer [SEEDS] [NAME …]

Of each: seeds without numbers; right answers refused, in every notation, and moved to the edge of the tolerance; draws
in which two ways cannot be told apart; answers of slips that are not named, in full and with four digits; answers of
two slips at once, how many are given another name, pass as right or have no name; and how many random wrong numbers are
named as a slip for certain: the right ones times e to a normal number, with four digits; where the right answer is
whole, those rounded to whole numbers, as a reader who reckons wrongly has them, and of these how many are named with
“perhaps”; and any whole number from 0 to twice the right one.
"""

import argparse
import math
import operator
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from limpid.errors import ConfigError
from limpid.primer.answer import Unreadable
from limpid.primer.exercise import Answer, Exercise, answer, numbers_of
from limpid.primer.exercises import EXERCISES
from limpid.primer.grade import PERHAPS, Key

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


class Found(NamedTuple):
    """What was counted."""

    seeds: int = 0
    without: int = 0
    typed: int = 0
    refused: int = 0
    ambiguous: int = 0
    slips: int = 0
    unnamed: int = 0
    twice: int = 0
    other: int = 0
    passed: int = 0
    nameless: int = 0
    random: int = 0
    named: int = 0
    whole: int = 0
    whole_named: int = 0
    perhaps: int = 0
    any: int = 0
    any_named: int = 0

    def __str__(self) -> str:
        return (
            f"{self.seeds:,} | {self.without} | {self.refused} of {self.typed:,} | {self.ambiguous} | "
            f"{self.unnamed} of {self.slips:,} | {self.other}, {self.passed}, {self.nameless} of {self.twice:,} | "
            f"{self.named} of {self.random:,} | {self.whole_named} and {self.perhaps} of {self.whole:,} | "
            f"{self.any_named} of {self.any:,}"
        )


def measured(exercise: Exercise, seeds: int) -> Found:
    """Counts over so many seeds; seed 0 is the text's own."""
    rng, total = np.random.Generator(np.random.PCG64(0)), np.zeros(len(Found._fields), int)
    slips = tuple(slip._replace(way=_once(slip.way)) for slip in exercise.slips)
    exercise = replace(exercise, right=_once(exercise.right), slips=slips)
    for seed in range(1, seeds + 1):
        try:
            key = Key(exercise, numbers_of(exercise, seed))
        except ConfigError:
            total += Found(seeds=1, without=1)
            continue
        total += _of(key, rng)
    return Found(*total.tolist())


def _once(way: Callable[..., Any]) -> Callable[..., Answer | None]:
    """The same, computed once for the same numbers: to see whether they will do, and again to grade."""
    last: tuple[Any, ...] | None = None
    made: Answer | None = None

    def same(*given: Any) -> Answer | None:
        nonlocal last, made
        if last is None or not all(map(operator.is_, given, last)):
            found = way(*given)
            last, made = given, None if found is None else answer(found)
        return made

    return same


def _of(key: Key, rng: np.random.Generator) -> Found:
    right = key.right
    texts = {*spellings(right), *(typed(_moved(key, by)) for by in (-0.98, 0.98))}
    slips = [(way.note, text) for way in key.ways for text in {typed(way.made), _rounded(way.made)}]
    found = Found(
        seeds=1, typed=len(texts), refused=sum(_judged(key, text)[0] != "right" for text in texts),
        ambiguous=_ambiguous(key), slips=len(slips), unnamed=sum(_judged(key, text)[1] != note for note, text in slips),
    )  # fmt: skip
    found = found._replace(**_twice(key))
    return found if not right.values or right.form == "shape" else found._replace(**_random(key, rng))


def _twice(key: Key) -> dict[str, int]:
    """What becomes of answers to which two slips at once lead."""
    judged = [(way.note, *_judged(key, text)) for way in key.twice for text in {typed(way.made), _rounded(way.made)}]
    outcomes = Counter("both" if note == made else outcome for made, outcome, note in judged)
    return {"twice": len(judged), "other": outcomes["slip"], "passed": outcomes["right"] + outcomes["rounded"],
            "nameless": outcomes["wrong"] + outcomes["unread"]}  # fmt: skip


def _random(key: Key, rng: np.random.Generator) -> dict[str, int]:
    """How many wrong numbers that nothing led to are named."""
    right = key.right
    wrong = tuple(x * math.exp(rng.normal()) + rng.normal() * (x == 0) for x in right.values)
    counts = {"random": 1, "named": _named(key, typed(Answer(wrong, right.form), 4)) == 1}
    if not all(x.is_integer() for x in right.values):
        return counts
    if (whole := tuple(map(float, map(round, wrong)))) != right.values:
        said = _named(key, typed(Answer(whole, right.form)))
        counts |= {"whole": 1, "whole_named": said == 1, "perhaps": said == 2}
    anything = tuple(float(round(2 * x * rng.random())) for x in right.values)
    if anything != right.values:
        counts |= {"any": 1, "any_named": _named(key, typed(Answer(anything, right.form))) == 1}
    return counts


def _named(key: Key, text: str) -> int:
    """1 where a slip is named for certain, 2 where with “perhaps”, else 0."""
    try:
        judged = key.grade(text)
    except Unreadable:
        return 0
    return 0 if judged.outcome != "slip" else 2 if judged.says.startswith(PERHAPS) else 1


def _rounded(made: Answer) -> str:
    """With four digits, whole numbers in full: no reader rounds 27,436."""
    said = [f"{x:.15g}" if x.is_integer() else f"{x:#.4g}".rstrip(".") for x in made.values]
    return f"[{', '.join(said)}]" if made.form == "list" else said[0] if made.form == "number" else typed(made)


def _moved(key: Key, by: float) -> Answer:
    """The right answer, each number off by a share of its tolerance."""
    pairs = zip(key.right.values, key.tolerances, strict=True)
    return Answer(tuple(value + by * within for value, within in pairs), key.right.form)


def _ambiguous(key: Key) -> bool:
    """Whether two ways lead to numbers of which none is three tolerances of the right one from the other's."""
    every = [key.right, *(way.made for way in key.ways)]
    by_form = {(one.form, len(one.values)): [] for one in every}
    for one in every:
        by_form[one.form, len(one.values)].append(one.values)
    return any(_close(key.exercise, np.array(alike)) for alike in by_form.values())


def _close(exercise: Exercise, values: np.ndarray) -> bool:
    """Of rows of numbers, whether two agree within three tolerances of either in every entry."""
    within = np.vectorize(exercise.tolerance, otypes=[float])(values) if values.size else np.zeros_like(values)
    for row in range(len(values) - 1):
        off, allowed = np.abs(values[row + 1 :] - values[row]), 3 * np.maximum(within[row + 1 :], within[row])
        if (off <= np.maximum(allowed, 1e-12 * np.abs(values[row]))).all(1).any():
            return True
    return False


def _judged(key: Key, text: str) -> tuple[str, str]:
    try:
        judged = key.grade(text)
    except Unreadable:
        return "unread", "unread"
    return judged.outcome, judged.note


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", nargs="?", type=int, default=10_000)
    parser.add_argument("names", nargs="*", metavar="NAME")
    given = parser.parse_args()
    total, started = np.zeros(len(Found._fields), int), time.process_time()
    print(
        "name | seeds | without numbers | right refused | ambiguous | slips not named | two at once: another name, "
        "right, none | random named | whole named, and perhaps | any whole named"
    )
    for name in given.names or EXERCISES:
        found = measured(EXERCISES[name], given.seeds)
        total += found
        print(f"{name} | {found}", flush=True)
    print(f"all | {Found(*total.tolist())} | {time.process_time() - started:.0f} s of processor time")


if __name__ == "__main__":
    main()
