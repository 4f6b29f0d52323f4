"""What the chapter on softmax shows, against numbers worked out apart from it."""

import math
import re

import numpy as np
import pytest

from limpid.primer.chapter import Example, Figure, Text, chapter
from limpid.primer.figures import FIGURES as REGISTERED
from limpid.primer.figures import ROOMS, as_svg, as_text

FIGURES = {part.name: part.settings for part in chapter("softmax").parts if isinstance(part, Figure)}


def prose() -> str:
    return " ".join(" ".join(part.markdown for part in chapter("softmax").parts if isinstance(part, Text)).split())


def test_the_worked_values_stand_in_the_chapter() -> None:
    (solved,) = [part.solution for part in chapter("softmax").parts if isinstance(part, Example)]
    found = [float(number) for number in re.findall(r"\d+\.\d+", solved)]
    assert found == pytest.approx([7.389, 2.718, 1.649, 11.756, 0.62853, 0.23122, 0.14024], rel=2e-4)
    assert "it finds [0.62853, 0.23122, 0.14024]." in prose()
    for drawn in (as_text("softmax-bars", FIGURES["softmax-bars"]), as_svg("softmax-bars", FIGURES["softmax-bars"])):
        assert all(number in drawn for number in ("7.389", "2.718", "1.649", "0.140"))


def test_a_difference_of_scores_is_the_logarithm_of_a_ratio() -> None:
    ratios = [float(found.replace(",", "")) for found in re.findall(r"\| ([\d,]+\.\d) \|", prose())]
    assert ratios == pytest.approx([math.e**gap for gap in (0, 1, 2, 5, 10)], abs=0.05)
    assert "0.62853 is 2.718 times 0.23122" in prose()


def test_log_sum_exp_keeps_what_a_probability_loses() -> None:
    total = math.log(math.exp(2) + math.exp(1) + math.exp(0.5))
    assert f"it is {total:.5f}, a little above the largest score" in prose()
    assert f"$\\ln p_1 = 2 - {total:.5f} = -{total - 2:.5f}$" in prose()
    assert (
        "The second probability is stored as 0, and zero has no logarithm. The difference above gives −800" in prose()
    )


def test_temperatures_keep_the_order_and_change_the_ratios() -> None:
    drawn = as_text("temperature", FIGURES["temperature"])
    shares = np.array([float(found) for found in re.findall(r"0\.\d{3}", drawn)]).reshape(3, 3)
    assert (np.diff(shares) < 0).all()
    assert shares[:, 0] / shares[:, 1] == pytest.approx(np.exp([2, 1, 0.5]), rel=0.01)
    assert shares.sum(1) == pytest.approx([1, 1, 1], abs=2e-3)


@pytest.mark.parametrize(("name", "settings"), [*FIGURES.items(), ("softmax-bars", {"scores": [-3, 0, 4]})])
def test_figures_have_both_forms(name: str, settings: dict) -> None:
    assert max(map(len, as_text(name, settings).splitlines())) <= 72
    assert not re.search(r"nan|inf|=\"-", as_svg(name, settings))


def test_no_two_figures_have_one_name() -> None:
    assert len(REGISTERED) == sum(len(getattr(room, "FIGURES", {})) for room in ROOMS)
