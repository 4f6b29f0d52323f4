"""A recurrent network: a state of fixed size that is carried from token to token."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from limpid.errors import ShapeError
from limpid.maths.activation import sigmoid, tanh
from limpid.maths.formula import floats, formula
from limpid.maths.operation import Array, Branch


class _Steps(NamedTuple):
    """What every step of a cell came to."""

    gates: Array  # (position, 4 · hidden)  before their functions: input, forget, candidate, output
    cell: Array  # (position + 1, hidden)  the first is 0
    hidden: Array  # (position + 1, hidden)  the first is 0


@formula(
    r"i_t, f_t, o_t = \sigma(a_t), \quad g_t = \tanh a_t, \quad a_t = W x_t + b + U h_{t-1} + b', \quad "
    r"c_t = f_t \odot c_{t-1} + i_t \odot g_t, \quad h_t = o_t \odot \tanh c_t",
    Branch.CALCULUS,
    "Hochreiter & Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735; forget gate, Gers, Schmidhuber & Cummins 2000, "
    "doi:10.1162/089976600300015015",
    (
        r"\bar x_t = W^\top \bar a_t",
        r"\bar W = \sum_t \bar a_t x_t^\top",
        r"\bar U = \sum_t \bar a_t h_{t-1}^\top, \quad "
        r"\bar c_{t-1} = f_t \odot \bar c_t, \quad \bar h_{t-1} = \bar y_{t-1} + U^\top \bar a_t",
        r"\bar b = \sum_t \bar a_t",
        r"\bar b' = \sum_t \bar a_t",
    ),
)
def lstm(
    x: Float[Array, "position d_in"],
    w_input: Float[Array, "d_gates d_in"],
    w_hidden: Float[Array, "d_gates d_hidden"],
    b_input: Float[Array, " d_gates"],
    b_hidden: Float[Array, " d_gates"],
) -> Float[Array, "position d_hidden"]:
    """Read a text token by token into a state of fixed size: long short-term memory.

    Takes   x         (position, d_in)
            w_input   W  (4 d_hidden, d_in)      input, forget, candidate and output one below the other, as in PyTorch
            w_hidden  U  (4 d_hidden, d_hidden)  the same
            b_input, b_hidden  b and b' (4 d_hidden,), which PyTorch keeps apart
    Gives   h         (position, d_hidden), from a state of zeros
    Limits  what comes t steps later reaches a cell through t forget gates: it fades unless they are nearly 1
    Raises  ShapeError where the gates are not four of the state's size
    """
    return _steps(x, w_input, w_hidden, b_input, b_hidden).hidden[1:]


@lstm.derivative
def lstm_backward(
    y_bar: Array, x: Array, w_input: Array, w_hidden: Array, b_input: Array, b_hidden: Array
) -> tuple[Array, ...]:
    x, w_input, w_hidden = floats(x), floats(w_input), floats(w_hidden)
    gates, cell, hidden = _steps(x, w_input, w_hidden, b_input, b_hidden)
    size = hidden.shape[1]
    gates_bar = np.empty_like(gates)
    h_bar, c_bar = np.zeros(size), np.zeros(size)
    for t in reversed(range(len(x))):
        a_i, a_f, a_g, a_o = np.split(gates[t], 4)
        h_bar = h_bar + y_bar[t]
        c_bar = c_bar + h_bar * sigmoid.value(a_o) * tanh.slope(cell[t + 1])
        gates_bar[t] = np.concatenate(
            (
                c_bar * tanh.value(a_g) * sigmoid.slope(a_i),
                c_bar * cell[t] * sigmoid.slope(a_f),
                c_bar * sigmoid.value(a_i) * tanh.slope(a_g),
                h_bar * tanh.value(cell[t + 1]) * sigmoid.slope(a_o),
            )
        )
        c_bar, h_bar = c_bar * sigmoid.value(a_f), gates_bar[t] @ w_hidden
    b_bar = gates_bar.sum(0)
    return gates_bar @ w_input, gates_bar.T @ x, gates_bar.T @ hidden[:-1], b_bar, b_bar


def _steps(x: Array, w_input: Array, w_hidden: Array, b_input: Array, b_hidden: Array) -> _Steps:
    """Every step, forwards."""
    x, w_input, w_hidden = floats(x), floats(w_input), floats(w_hidden)
    size = w_hidden.shape[-1]
    if len(w_hidden) != 4 * size:
        raise ShapeError(f"w_hidden has shape {w_hidden.shape}: a state of {size} needs {4 * size} rows, four gates")
    given = x @ w_input.T + floats(b_input) + floats(b_hidden)
    gates = np.empty((len(x), 4 * size))
    cell, hidden = np.zeros((2, len(x) + 1, size))
    for t, from_token in enumerate(given):
        gates[t] = from_token + w_hidden @ hidden[t]
        a_i, a_f, a_g, a_o = np.split(gates[t], 4)
        cell[t + 1] = sigmoid.value(a_f) * cell[t] + sigmoid.value(a_i) * tanh.value(a_g)
        hidden[t + 1] = sigmoid.value(a_o) * tanh.value(cell[t + 1])
    return _Steps(gates, cell, hidden)
