"""How likely a wrong number meets a slip by chance: against numbers drawn at random."""

import math

import numpy as np
import pytest

from limpid.primer.answer import read
from limpid.primer.chance import chance
from limpid.primer.exercise import Answer
from limpid.primer.exercises import EXERCISES
from limpid.primer.grade import PERHAPS, grade

DRAWN = np.random.Generator(np.random.PCG64(0)).normal(size=200_000)


@pytest.mark.parametrize(("right", "text"), [(7, "49"), (7, "1"), (22, "25"), (-8, "-3"), (100, "12"), (3.5, "9.87")])
def test_it_is_the_share_of_random_wrong_numbers_that_round_to_what_was_typed(right: float, text: str) -> None:
    typed = read(text, "number")
    half = 0.5 if "." not in text else 0.005
    hit = np.mean(np.abs(right * np.exp(DRAWN) - typed.values[0]) <= half)
    alike = half / abs(right) if 0 <= typed.values[0] / right <= 2 else 0.0
    said = chance(typed, Answer(typed.values), Answer((right,)))
    assert said == pytest.approx(max(hit, alike), rel=0.05, abs=2e-4)


def test_of_nothing_it_is_that_of_small_numbers() -> None:
    typed = read("1", "number")
    hit = np.mean(np.round(DRAWN) == 1)
    assert chance(typed, Answer((1.0,)), Answer((0.0,))) == pytest.approx(hit, rel=0.02)


def test_a_list_is_met_when_all_its_entries_are() -> None:
    typed, right = read("[8, 10]", "list"), Answer((10.0, 6.0), "list")
    each = [
        chance(read(str(one), "number"), Answer((float(one),)), Answer((true,)))
        for one, true in zip((8, 10), right.values, strict=True)
    ]
    assert chance(typed, Answer((8.0, 10.0), "list"), right) == pytest.approx(math.prod(each))
    assert chance(typed, Answer((8.0,)), right) == 0


def test_what_many_numbers_meet_is_said_with_perhaps() -> None:
    length = EXERCISES["length"]
    assert grade(length, length.first, "49").says.startswith("49 is the sum of the squares")
    guessed = grade(length, length.first, "11")
    assert guessed.note == "no-square"
    assert guessed.says.startswith(f"{PERHAPS}11 is the sum of the entries")
    right_angle = EXERCISES["right-angle"]
    assert grade(right_angle, right_angle.first, "1").says.startswith(PERHAPS)
    chain = EXERCISES["chain-of-tokens"]
    assert not grade(chain, chain.first, "0.667494").says.startswith(PERHAPS)
