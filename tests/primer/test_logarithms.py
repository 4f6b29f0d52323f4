"""What the chapter on exponentials and logarithms shows, against numbers worked out apart from it."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpid.primer.chapter import Example, Figure, Text, chapter
from limpid.primer.figures import as_svg, as_text


def prose() -> str:
    return " ".join(" ".join(part.markdown for part in chapter("logarithms").parts if isinstance(part, Text)).split())


def test_the_worked_values_stand_in_the_chapter() -> None:
    (solved,) = [part.solution for part in chapter("logarithms").parts if isinstance(part, Example)]
    assert solved == "0.8 · 0.6 · 0.9 = 0.432, and its logarithm is −0.83933"
    assert "−0.22314, −0.51083, −0.10536, and they add up to −0.83933" in prose()
    assert "$e^0 = 1$, $e^1$ is 2.71828, and $e^{-1}$ is 0.36788" in prose()
    assert "is 20.0855? The **natural logarithm**, written $\\ln$, answers that: it is 3." in prose()


def test_only_the_base_e_grows_by_as_much_as_the_power() -> None:
    grown = [float(found) for found in re.findall(r"\| (\d\.\d{3}) \|", prose())]
    assert grown == pytest.approx([math.log(2), 1, math.log(10)], abs=0.003)


@given(st.floats(-20, 20), st.floats(-20, 20), st.integers(-5, 5))
def test_powers_and_logarithms_obey_their_laws(x: float, y: float, n: int) -> None:
    a, b = math.exp(x), math.exp(y)
    assert a * b == pytest.approx(math.exp(x + y), rel=1e-13)
    assert 1 / a == pytest.approx(math.exp(-x), rel=1e-13)
    assert math.log(a * b) == pytest.approx(x + y, abs=1e-13)
    assert math.log(a / b) == pytest.approx(x - y, abs=1e-13)
    assert math.log(a**n) == pytest.approx(n * x, abs=1e-12)


def test_underflow_and_overflow_are_where_the_chapter_has_them() -> None:
    assert 0 < np.prod(np.full(323, 0.1)) < 1e-322
    assert np.prod(np.full(324, 0.1)) == 0
    assert np.isfinite(np.exp(709.0))
    with np.errstate(over="ignore"):
        assert np.isinf(np.exp(710.0))
    assert f"{-323 * math.log(10):.2f} and {-324 * math.log(10):.2f}".replace("-", "−") in prose()


def test_the_curves_undo_each_other() -> None:
    (drawn,) = [part for part in chapter("logarithms").parts if isinstance(part, Figure)]
    assert max(map(len, as_text(drawn.name, drawn.settings).splitlines())) <= 72
    points = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', as_svg(drawn.name, drawn.settings))
    across = [float(x) for x, _ in points]
    assert len(points) == 6
    assert across[4] - across[3] == pytest.approx(across[5] - across[4], abs=0.1)  # the powers, one apart
    assert (across[2] - across[1]) / (across[1] - across[0]) == pytest.approx(math.e, rel=5e-3)
