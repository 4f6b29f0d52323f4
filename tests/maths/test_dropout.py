"""Dropout with a given mask."""

import numpy as np
import pytest

from limpid.errors import ShapeError
from limpid.maths import Dropout


def test_what_is_kept_is_enlarged_and_what_is_dropped_learns_nothing() -> None:
    y, saved = Dropout(0.75).forward(np.array([1.0, 2.0, 3.0]), np.array([1, 0, 1]))
    assert y.tolist() == [4, 0, 12]
    x_bar, kept_bar = Dropout(0.75).backward(np.ones(3), saved)
    assert x_bar.tolist() == [4, 0, 4]
    assert kept_bar is None


def test_the_mean_stays(rng: np.random.Generator) -> None:
    x = np.ones(100_003)
    kept = (rng.random(x.shape) >= 0.3).astype(np.float64)
    assert Dropout(0.3)(x, kept).mean() == pytest.approx(1, abs=0.01)


def test_probability_zero_changes_nothing() -> None:
    x = np.array([1.0, -2.0])
    assert np.array_equal(Dropout(0.0)(x, np.ones(2)), x)


def test_a_mask_drawn_for_something_else_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"kept has shape \(3, 5\), expected \(3, 7\)"):
        Dropout(0.5)(np.ones((3, 7)), np.ones((3, 5)))
