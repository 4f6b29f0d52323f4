"""The chapter on positions has the values that were worked out by hand, and scores that see distances only."""

import math

import numpy as np
import pytest

from limpid.maths.embedding import Rotary, SinusoidalPositions
from limpid.primer.chapter import Text, chapter
from limpid.primer.figures import as_svg, as_text
from limpid.primer.figures.rotation import turned


def text() -> str:
    read = chapter("positions")
    return " ".join(" ".join(part.markdown for part in read.parts if isinstance(part, Text)).split())


def by_hand(x: float, y: float, angle: float) -> list[float]:
    return [math.cos(angle) * x - math.sin(angle) * y, math.sin(angle) * x + math.cos(angle) * y]


def test_a_rotation_by_hand() -> None:
    assert turned([2, 1], 3) == pytest.approx(by_hand(2, 1, 3))
    assert turned([1, 1], 0) == pytest.approx([1, 1])


def test_the_score_depends_on_the_distance_alone() -> None:
    two_apart = 3 * math.cos(2) - math.sin(2) * (1 * 1 - 2 * 1)  # q = [2, 1], k = [1, 1]: turn k by −2
    assert two_apart == pytest.approx(-0.3391, abs=5e-5)
    for t in range(2, 9):
        assert turned([2, 1], t) @ turned([1, 1], t - 2) == pytest.approx(two_apart)
    said = text()
    assert said.count("| −0.3391 |") == 3
    assert said.count("| 3.0000 |") == 2


def test_positions_of_the_published_size_turn_as_said() -> None:
    slowest = 10000 ** (-62 / 64)
    said = text()
    assert "the first pair makes a full turn in 6.28 positions" in said
    assert f"the last one in {2 * math.pi / slowest:,.0f}." in said
    assert Rotary().frequencies(64)[-1] == pytest.approx(slowest)


def test_waves_by_hand() -> None:
    assert SinusoidalPositions(9, 4)()[3] == pytest.approx([math.sin(3), math.cos(3), math.sin(0.03), math.cos(0.03)])
    said = text()
    assert "| 3 | [0.141, −0.990, 0.030, 1.000] |" in said
    apart = math.cos(2) + math.cos(0.02)
    assert said.count(f"it is {apart:.4f}") == 2


def test_the_worked_models_table_is_the_one_that_is_shown() -> None:
    assert "Its table has 5 rows" in text()


def test_the_picture_shows_the_same_angle_twice() -> None:
    settings = {"q": [2, 1], "k": [1, 1], "places": [[3, 1], [7, 5]]}
    said, drawn = as_text("rotation", settings), as_svg("rotation", settings)
    apart = math.degrees(2 + math.atan2(1, 2) - math.atan2(1, 1))
    assert said.count(f"{apart:.1f}°   dot product −0.3391") == 2
    assert drawn.count("dot product −0.3391") == 2
    assert max(map(len, said.splitlines())) <= 72


def test_lengths_stay() -> None:
    rows = np.random.Generator(np.random.PCG64(2)).normal(size=(1, 40, 1, 8))
    assert np.linalg.norm(Rotary()(rows), axis=-1) == pytest.approx(np.linalg.norm(rows, axis=-1))
