"""Nonlinearities by pencil and paper, their limits, and how far the approximations of GELU lie from it."""

import math
from typing import get_args

import numpy as np
import pytest

from limpid.config import Activation
from limpid.errors import ShapeError
from limpid.maths import GELU, Gated, GELUTanh, ReLU, SiLU, SquaredReLU
from limpid.maths.activation import ACTIVATIONS

CURVED = (SiLU(), GELU(), GELUTanh())


def test_every_word_of_the_configuration_has_its_function() -> None:
    assert set(ACTIVATIONS) == set(get_args(Activation))


@pytest.mark.parametrize(
    ("operation", "at_one", "at_minus_two"),
    [
        (ReLU(), 1.0, 0.0),
        (SquaredReLU(), 1.0, 0.0),
        (SiLU(), 1 / (1 + math.exp(-1)), -2 / (1 + math.exp(2))),
        (GELU(), (1 + math.erf(math.sqrt(0.5))) / 2, -math.erfc(math.sqrt(2))),
        (GELUTanh(), 0.841191990608, -0.045402305912),
    ],
)
def test_values_by_hand(operation: SiLU, at_one: float, at_minus_two: float) -> None:
    assert operation(np.array([1.0, -2.0, 0.0])) == pytest.approx([at_one, at_minus_two, 0.0], rel=1e-11)


def test_relu_and_its_square_are_flat_at_zero() -> None:
    x = np.array([-1.0, 0.0, -0.0, 2.0])
    for operation, slope in ((ReLU(), [0, 0, 0, 1]), (SquaredReLU(), [0, 0, 0, 4])):
        assert operation.backward(np.ones(4), operation.forward(x)[1])[0].tolist() == slope


@pytest.mark.parametrize("operation", CURVED)
def test_far_out_they_are_the_identity_or_nothing(operation: SiLU) -> None:
    x = np.array([1e3, -1e3, 1e200, -1e200])
    with np.errstate(over="ignore"):  # x³ inside the tanh
        y, saved = operation.forward(x)
    assert y.tolist() == [1e3, 0, 1e200, 0]
    assert operation.backward(np.ones(2), saved[:2])[0] == pytest.approx([1, 0])


def test_the_tanh_stays_within_what_is_said_of_it() -> None:
    x = np.linspace(-6, 6, 10007)
    assert 4e-4 < np.abs(GELU()(x) - GELUTanh()(x)).max() < 5e-4


def test_silu_is_lowest_where_it_is_said_to_be() -> None:
    x = np.linspace(-3, 0, 3001)
    y = SiLU()(x)
    assert (x[y.argmin()], y.min()) == (pytest.approx(-1.278, abs=1e-3), pytest.approx(-0.278, abs=1e-3))


def test_a_gate_by_hand() -> None:
    gate, up = np.array([2.0, -1.0]), np.array([3.0, 5.0])
    hidden, saved = Gated(ReLU()).forward(gate, up)
    assert hidden.tolist() == [6, 0]
    gate_bar, up_bar = Gated(ReLU()).backward(np.array([10.0, 10.0]), saved)
    assert gate_bar.tolist() == [30, 0]
    assert up_bar.tolist() == [20, 0]


@pytest.mark.usefixtures("unchecked")
def test_gate_and_up_of_different_shapes_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"up has shape \(3, 7\), expected \(3, 5\)"):
        Gated()(np.ones((3, 5)), np.ones((3, 7)))


def test_gelu_keeps_its_digits_where_one_plus_erf_cancels() -> None:
    x = np.array([-7.0, -9.0, -20.0])
    truth = [entry * math.erfc(-entry / math.sqrt(2)) / 2 for entry in x]
    assert GELU()(x) == pytest.approx(truth, rel=1e-13, abs=0)
