"""What the chapter on probability shows, and its mathematics, against numbers worked out apart from it."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from limpid.errors import DomainError
from limpid.maths.foundations import conditional, is_distribution, marginal, normal_density, normal_probability
from limpid.primer.chapter import Example, Figure, Text, chapter
from limpid.primer.figures import as_svg, as_text
from limpid.primer.values import worked_drawn


def prose() -> str:
    return " ".join(" ".join(part.markdown for part in chapter("probability").parts if isinstance(part, Text)).split())


def test_the_worked_values_stand_in_the_chapter() -> None:
    (solved,) = [part.solution for part in chapter("probability").parts if isinstance(part, Example)]
    assert "= 0.000336, and its logarithm is −7.9984" in solved
    assert "they would add up to −8.01; the exact sum rounds to −8.00" in prose()
    assert "[0.4, 0.35, 0.2, 0.05] is a distribution. With 0.1 in the last place it sums to 1.05" in prose()


def test_the_table_of_words_has_its_three_kinds() -> None:
    counts = np.array([[30, 10], [15, 45]])
    assert f"the share {30 / 40} goes on" in prose()
    assert f"only {30 / 45:.3f} begin with" in prose()
    assert f"would have the probability {40 * 45 / 100**2} in place of {30 / 100}" in prose()
    assert conditional(counts / 100) == pytest.approx(np.array([[0.75, 0.25], [0.25, 0.75]]))
    assert f"which is {0.1 * 0.6 / (0.1 * 0.6 + 0.9 * 0.05):.3f}." in prose()


@given(hnp.arrays(np.float64, (3, 4), elements=st.floats(0.01, 1)))
def test_a_table_is_made_again_of_its_margin_and_its_rows(raw: np.ndarray) -> None:
    joint = raw / raw.sum()
    assert is_distribution(marginal(joint))
    assert is_distribution(conditional(joint))
    assert marginal(joint)[:, None] * conditional(joint) == pytest.approx(joint)


def test_a_table_that_is_none_and_a_row_that_cannot_be_are_named() -> None:
    with pytest.raises(DomainError, match="sum to 1"):
        marginal([[0.5, 0.5], [0.5, 0.5]])
    with pytest.raises(DomainError, match="row 1 has probability 0"):
        conditional([[0.5, 0.5], [0.0, 0.0]])


@given(st.floats(-8, 8), st.floats(0, 8), st.floats(-5, 5), st.floats(0.01, 10))
def test_an_interval_has_the_area_that_scipy_finds(low: float, width: float, mean: float, std: float) -> None:
    a, b = mean + low * std, mean + (low + width) * std
    theirs = stats.norm(mean, std)
    expected = theirs.cdf(b) - theirs.cdf(a) if low < 0 else theirs.sf(a) - theirs.sf(b)
    assert normal_probability(a, b, mean, std) == pytest.approx(expected, rel=1e-6, abs=1e-15)
    assert normal_density([a, b], mean, std) == pytest.approx(theirs.pdf([a, b]), rel=1e-9)


def test_intervals_at_the_ends() -> None:
    assert normal_probability(-math.inf, math.inf) == 1
    assert normal_probability(2, 2) == 0
    assert normal_probability(9, math.inf) == pytest.approx(stats.norm.sf(9), rel=1e-12)
    assert normal_probability(-math.inf, -9) == normal_probability(9, math.inf)
    for wrong in ((1.0, 0.0, 0.0, 1.0), (0.0, 1.0, 0.0, 0.0)):
        with pytest.raises(DomainError):
            normal_probability(*wrong)


def test_drawn_weights_lie_where_the_density_says() -> None:
    drawn = worked_drawn()
    within = [float((np.abs(drawn) <= 0.1 * steps).mean()) for steps in (1, 2)]
    assert within == pytest.approx([0.6827, 0.9545], abs=4 * math.sqrt(0.25 / len(drawn)))
    assert [f"{share:.4f}" for share in within] == list(
        re.findall(r"weights, ([\d.]+) really .*? and ([\d.]+) within", prose())[0]
    )
    (drawing,) = [part for part in chapter("probability").parts if isinstance(part, Figure)]
    assert "0.6827" in as_svg(drawing.name, drawing.settings)
    assert max(map(len, as_text(drawing.name, drawing.settings).splitlines())) <= 72
