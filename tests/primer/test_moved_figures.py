"""Figures that the page can move, in the forms that stand still."""

import re

from limpid.maths.foundations import softmax
from limpid.primer.figures import as_svg, as_text
from limpid.primer.figures.descent import places


def test_temperature_sharpens_and_flattens_the_bars() -> None:
    settings = {"z": [2, 1, 0.5], "temperatures": [0.5, 1, 2]}
    text, svg = as_text("temperature", settings), as_svg("temperature", settings)
    assert max(map(len, text.splitlines())) <= 72
    heights = [float(one) for one in re.findall(r'<rect [^>]*height="([\d.]+)"', svg)]
    for group, temperature in enumerate(settings["temperatures"]):
        wanted = softmax(settings["z"], float(temperature))
        assert abs(heights[3 * group] / sum(heights[3 * group : 3 * group + 3]) - wanted[0]) < 1e-3
        assert f"{wanted[0]:.3f}" in text


def test_each_step_goes_against_the_slope() -> None:
    assert abs(places(1, 3, 0.1, 1)[1] - (3 - 0.1 * 4)) < 1e-6
    text = as_text("descent", {"minimum": 1, "start": 3, "rate": 0.1, "steps": 8})
    assert "3 → 2.6 → 2.28" in text
    assert max(map(len, text.splitlines())) <= 72
