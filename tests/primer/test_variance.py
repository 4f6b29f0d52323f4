"""The chapter on variance: counted through, simulated, and beside what was worked out by hand."""

import math

import numpy as np
import pytest

from limpid.maths.foundations import green_probability, green_z
from limpid.primer.cases import draws, letters
from limpid.primer.chapter import Example, Figure, Text, chapter
from limpid.primer.figures import as_svg, as_text

READ = chapter("variance")
TEXT = "\n".join(part.markdown for part in READ.parts if isinstance(part, Text)).replace("\n", " ")


def test_four_numbers_and_dice() -> None:
    (example,) = (part for part in READ.parts if isinstance(part, Example))
    assert example.solution.endswith("its root 1.41421")
    assert draws.variance(draws.DIE) == pytest.approx(35 / 12)
    assert draws.variance(draws.sums(2)) == pytest.approx(35 / 6)
    assert draws.variance([2 * face for face in draws.DIE]) == pytest.approx(4 * 35 / 12)
    assert "2.9167" in TEXT
    assert "5.8333" in TEXT


def test_few_numbers_tell_their_variance_when_the_divisor_is_one_less() -> None:
    assert draws.estimated(4, 3) == pytest.approx(35 / 12, rel=0.01)
    assert draws.estimated(4, 4) == pytest.approx(35 / 12 * 3 / 4, rel=0.01)


@pytest.mark.parametrize("n", [4, 16, 64])
def test_means_scatter_by_the_root_of_their_number(n: int) -> None:
    assert draws.deviation(draws.means(n)) == pytest.approx((35 / 12 / n) ** 0.5, rel=0.04)


def test_intervals_hold_the_mean_as_often_as_they_say() -> None:
    assert draws.covered(100) == pytest.approx(0.95, abs=0.011)
    assert draws.covered(4) < 0.9
    assert "= 0.196 on each side" in TEXT


def test_a_batchs_variance_falls_with_its_size() -> None:
    each = letters.each_gradient()
    exact = float(np.square(each - each.mean(0)).sum(1).mean())
    for batch in (1, 4, 16, 64):
        assert letters.spread(batch) * batch == pytest.approx(exact, rel=0.04)


@pytest.mark.parametrize("d", [4, 16, 64, 256])
def test_a_dot_product_of_random_vectors_has_as_much_variance_as_entries(d: int) -> None:
    assert draws.variance(draws.products(d)) == pytest.approx(d, rel=0.12)
    assert abs(draws.mean(draws.products(d))) < 4 * (d / 4000) ** 0.5
    assert draws.largest_weight(64, False) > 0.7 > 0.4 > draws.largest_weight(64, True)


def test_a_watermark_is_counted_in_standard_deviations() -> None:
    rng, n, gamma, delta = np.random.default_rng(0), 400, 0.25, 2.0
    plain = rng.binomial(n, gamma, 20_000)
    marked = rng.binomial(n, green_probability(gamma, delta), 20_000)
    z = [[green_z(int(count), n, gamma) for count in counts] for counts in (plain, marked)]
    assert np.mean(z[0]) == pytest.approx(0, abs=0.03)
    assert np.std(z[0]) == pytest.approx(1, abs=0.02)
    assert min(z[1]) > max(z[0])
    odds = green_probability(gamma, delta) / (1 - green_probability(gamma, delta))
    assert odds == pytest.approx(math.exp(delta) * gamma / (1 - gamma))


def test_the_picture_fits_a_terminal() -> None:
    (part,) = (part for part in READ.parts if isinstance(part, Figure))
    assert max(map(len, as_text(part.name, part.settings).splitlines())) <= 72
    assert as_svg(part.name, part.settings).startswith("<svg")
