"""The complementary error function beside Python's own, which takes one number at a time."""

import math

import numpy as np
import pytest

from limpid.maths import GELU
from limpid.maths.special import erfc

EDGES = (0.46875, 4.0, 1 / 16, 0.5)


def relative_error(x: np.ndarray) -> float:
    truth = np.array([math.erfc(entry) for entry in x])
    return float((np.abs(erfc(x) - truth) / truth).max())


def test_it_equals_pythons_to_the_last_digits() -> None:
    assert relative_error(np.random.default_rng(0).uniform(-7, 26, 20011)) < 1e-15
    assert relative_error(np.linspace(-1, 1, 20011)) < 1e-15


@pytest.mark.parametrize("edge", EDGES)
def test_its_pieces_meet(edge: float) -> None:
    below, above = np.nextafter(edge, 0), np.nextafter(edge, 9)
    x = np.array([below, edge, above])
    assert relative_error(x) < 1e-15
    assert relative_error(-x) < 1e-15


def test_its_limits() -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, 30.0, 1e200, -1e200])
    assert erfc(x).tolist() == [1, 1, 0, 2, 0, 0, 2]
    assert np.isnan(erfc(np.array([np.nan])))


def test_it_takes_any_shape() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 5))
    assert np.array_equal(erfc(x), erfc(x.ravel()).reshape(2, 3, 5))
    assert erfc(np.zeros((0, 3))).shape == (0, 3)


def test_gelu_keeps_its_digits_where_one_plus_erf_cancels() -> None:
    x = np.array([-7.0, -9.0, -20.0])
    truth = [entry * math.erfc(-entry / math.sqrt(2)) / 2 for entry in x]
    assert GELU()(x) == pytest.approx(truth, rel=1e-13, abs=0)
