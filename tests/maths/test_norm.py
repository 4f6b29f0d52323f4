"""Norms by pencil and paper, and what they do not see."""

import numpy as np
import pytest

from limpid.errors import ShapeError
from limpid.maths import LayerNorm, RMSNorm


def test_rms_norm_by_hand() -> None:
    y = RMSNorm(eps=0)(np.array([3.0, 4.0]), np.ones(2))
    assert y == pytest.approx([3 / 12.5**0.5, 4 / 12.5**0.5])


def test_layer_norm_by_hand() -> None:
    y = LayerNorm(eps=0)(np.array([1.0, 3.0]), np.array([2.0, 2.0]), np.array([0.5, 0.5]))
    assert y == pytest.approx([-1.5, 2.5])


def test_rms_norm_forgets_the_scale_so_its_gradient_is_at_right_angles_to_x(rng: np.random.Generator) -> None:
    x, weight = rng.standard_normal((5, 7)), rng.standard_normal(7)
    operation = RMSNorm(eps=0)
    assert operation(3 * x, weight) == pytest.approx(operation(x, weight))
    x_bar, _ = operation.backward(rng.standard_normal((5, 7)), operation.forward(x, weight)[1])
    assert (x_bar * x).sum(-1) == pytest.approx(0, abs=1e-12)


def test_layer_norm_forgets_the_mean_so_its_gradient_sums_to_zero(rng: np.random.Generator) -> None:
    x, weight, bias = rng.standard_normal((5, 7)), rng.standard_normal(7), rng.standard_normal(7)
    operation = LayerNorm(eps=0)
    assert operation(x + 3, weight, bias) == pytest.approx(operation(x, weight, bias))
    x_bar, _, _ = operation.backward(rng.standard_normal((5, 7)), operation.forward(x, weight, bias)[1])
    assert x_bar.sum(-1) == pytest.approx(0, abs=1e-12)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("operation", [RMSNorm(), LayerNorm()])
def test_a_gain_of_another_width_is_refused(operation: RMSNorm | LayerNorm) -> None:
    weights = [np.ones(5)] * (len(operation.adjoint) - 1)
    with pytest.raises(ShapeError, match=r"weight has shape \(5,\), expected \(7,\)"):
        operation(np.ones((3, 7)), *weights)
