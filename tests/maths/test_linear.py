"""Linear maps and sums by pencil and paper."""

import numpy as np
import pytest

from limpid.errors import ShapeError
from limpid.maths import Add, Linear

X = np.array([[1.0, 2.0]])
WEIGHT = np.array([[1.0, 0.0], [0.0, 3.0], [-1.0, 1.0]])
BIAS = np.array([0.5, 0.0, -1.0])


def test_a_linear_map_by_hand() -> None:
    y, saved = Linear().forward(X, WEIGHT, BIAS)
    assert y.tolist() == [[1.5, 6.0, 0.0]]
    x_bar, weight_bar, bias_bar = Linear().backward(np.array([[1.0, 2.0, 3.0]]), saved)
    assert x_bar.tolist() == [[-2.0, 9.0]]
    assert weight_bar.tolist() == [[1, 2], [2, 4], [3, 6]]
    assert bias_bar.tolist() == [1, 2, 3]


def test_without_bias_there_is_no_gradient_of_one() -> None:
    y, saved = Linear().forward(X, WEIGHT)
    assert y.tolist() == [[1.0, 6.0, 1.0]]
    assert len(Linear().backward(np.ones((1, 3)), saved)) == 2


def test_heads_lie_side_by_side_in_the_features() -> None:
    """Features 0, 1, 2 are head 0; 3, 4, 5 are head 1."""
    x = np.array([[[1.0]]])
    heads = Linear(heads_out=2)(x, np.arange(6.0)[:, None])
    assert heads.tolist() == [[[[0, 1, 2], [3, 4, 5]]]]
    assert Linear(heads_in=2)(heads, np.eye(6)).tolist() == [[[0, 1, 2, 3, 4, 5]]]


def test_a_sum_by_hand_gives_each_copy_its_share() -> None:
    z, saved = Add().forward(np.zeros((3, 2)), np.array([1.0, 2.0]))
    assert z.tolist() == [[1, 2]] * 3
    x_bar, y_bar = Add().backward(np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 1.0]]), saved)
    assert x_bar.tolist() == [[1, 0], [2, 0], [3, 1]]
    assert y_bar.tolist() == [6, 1]


def test_an_axis_of_one_is_repeated_too() -> None:
    _, saved = Add().forward(np.zeros((2, 3)), np.zeros((2, 1)))
    assert Add().backward(np.ones((2, 3)), saved)[1].tolist() == [[3], [3]]


@pytest.mark.usefixtures("unchecked")
def test_what_does_not_fit_is_refused_with_both_shapes() -> None:
    with pytest.raises(ShapeError, match=r"weight has shape \(3, 2\), x \(1, 5\)"):
        Linear()(np.ones((1, 5)), WEIGHT)
    with pytest.raises(ShapeError, match=r"bias has shape \(2,\), expected \(3,\)"):
        Linear()(X, WEIGHT, np.ones(2))
    with pytest.raises(ShapeError, match=r"x has shape \(3, 2\), y \(3, 5\)"):
        Add()(np.ones((3, 2)), np.ones((3, 5)))
