"""Published laws: their exponents, their optimum, and the compute-optimal partner of a number."""

import pytest

from limpid.planning.laws.allocation import allocate, judge
from limpid.planning.laws.scaling import (
    APPROACH_1,
    APPROACH_2,
    APPROACH_3,
    LAWS,
    REFIT,
    Law,
    kaplan_factor,
    kaplan_loss,
    tokens_without_overfitting,
)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_partners_agree_whichever_of_the_three_is_given(law) -> None:
    from_compute = {one.name.rpartition(".")[2]: one.value for one in allocate(law, compute=1e21)}
    for given in ({"parameters": from_compute["parameters"]}, {"tokens": from_compute["tokens"]}):
        found = {one.name.rpartition(".")[2]: one.value for one in allocate(law, **given)}
        assert found == pytest.approx(from_compute)
    assert 6 * from_compute["parameters"] * from_compute["tokens"] == pytest.approx(1e21)


@pytest.mark.parametrize("law", [APPROACH_3, REFIT], ids=lambda law: law.name)
def test_the_optimum_is_one(law: Law) -> None:
    n, d = law.optimum(1e21)
    for factor in (0.9, 1.1):
        assert law.loss(n * factor, d / factor) > law.loss(n, d)


def test_the_approaches_have_their_published_exponents() -> None:
    assert pytest.approx((0.50, 0.49), abs=0.005) == (APPROACH_1.a, APPROACH_2.a)
    assert APPROACH_3.exponent == pytest.approx(0.46, abs=0.005)


def test_chinchilla_is_about_right_and_gopher_under_trained_under_the_refit() -> None:
    def ratio(parameters: float, tokens: float) -> float:
        return next(one.value for one in judge(REFIT, parameters, tokens) if one.name.endswith(".training"))

    assert ratio(70e9, 1.4e12) == pytest.approx(1.09, abs=0.01)
    assert ratio(280e9, 300e9) < 0.1


@pytest.mark.parametrize("parameters", [1e7, 1e9, 1e11])
def test_a_model_overfits_by_two_hundredths_on_the_fewest_tokens(parameters: float) -> None:
    """Kaplan et al. 2020, section 4.2: where eq. 4.4 comes from, to the two digits that it is printed with."""
    enough = kaplan_loss(parameters, 1e30)
    assert kaplan_loss(parameters, tokens_without_overfitting(parameters)) / enough - 1 == pytest.approx(0.02, abs=5e-3)
    assert kaplan_loss(2 * parameters) / kaplan_loss(parameters) == pytest.approx(kaplan_factor(2))
