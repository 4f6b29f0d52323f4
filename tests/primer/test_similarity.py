"""What the chapter on the dot product shows, against numbers worked out apart from it."""

import re

import numpy as np
import pytest

from limpid.primer.chapter import Example, Figure, Text, chapter
from limpid.primer.figures import as_svg, as_text
from limpid.primer.values import row_cosines, worked


def prose(name: str) -> str:
    return " ".join(" ".join(part.markdown for part in chapter(name).parts if isinstance(part, Text)).split())


def test_the_worked_values_stand_in_the_chapter() -> None:
    (solved,) = [part.solution for part in chapter("similarity").parts if isinstance(part, Example)]
    assert "= 28\n‖a‖ = 5.47723\n‖b‖ = 5.38516" in solved
    assert float(solved.rsplit("= ", 1)[1]) == pytest.approx(28 / np.sqrt(870), abs=5e-6) == 0.94929
    figures = [part for part in chapter("similarity").parts if isinstance(part, Figure)]
    assert "6 + 5 + 4 = 15" in as_text(figures[0].name, figures[0].settings)
    said = [as_svg(part.name, part.settings) for part in figures if part.name == "angle"]
    assert [found[1] for one in said if (found := re.search(r"cosine ([−\d.]+)<", one))] == ["0.55", "0.99", "0.15"]


def test_turning_the_paper_keeps_the_dot_product() -> None:
    said = prose("similarity")
    arrows = [np.array(list(map(float, found.split(", ")))) for found in re.findall(r"\[(\d\.[\d., ]+)\]", said)]
    assert arrows[0] @ np.array([3.464, 2]) == pytest.approx(16, abs=1e-3)
    assert "their dot product is still 8." in said


def test_cosines_of_the_worked_model_are_those_of_its_embedding() -> None:
    table = worked("embed.tokens.weight")
    assert table[1, 0] == pytest.approx(0.024634, abs=5e-7)
    lengths = np.sqrt((table * table).sum(1))
    every = (table @ table.T / np.outer(lengths, lengths))[np.triu_indices(6, 1)]
    assert row_cosines(table) == pytest.approx(every)
    assert f"from {every.min():.2f} to {every.max():.2f}".replace("-", "−") in prose("similarity")


@pytest.mark.parametrize("one", [part for part in chapter("similarity").parts if isinstance(part, Figure)])
def test_figures_fit_a_terminal(one: Figure) -> None:
    assert max(map(len, as_text(one.name, one.settings).splitlines())) <= 72


def test_opposite_arrows_and_signs_are_drawn() -> None:
    assert "angle 180°, cosine −1" in as_text("angle", {"a": [1, 2], "b": [-2, -4]})
    assert "nan" not in as_svg("angle", {"a": [1, 2], "b": [-2, -4]})
    assert "-2 + 12 = 10" in as_text("product-and-sum", {"a": [-1, 3], "b": [2, 4]}).replace("−", "-")


def test_arrows_and_the_shadow_are_drawn_to_one_scale() -> None:
    lines = as_text("angle", {"a": [4, 0], "b": [2, 3]}).splitlines()
    assert lines[0].index("●") == pytest.approx(lines[13].index("●") / 2, abs=1)
    assert lines[13].count("▒") == pytest.approx(lines[13].index("●") / 2, abs=1)
    drawn = as_text("points", {"points": {"cat": [2, 5], "dog": [3, 4], "car": [6, 1]}})
    assert drawn.splitlines()[0].endswith("● cat")
    assert drawn.endswith("cat [2, 5], dog [3, 4], car [6, 1]")
