"""oneDNN's long short-term memory: a whole sequence in one operation, redone gate by gate with its error beside it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import special

from limpid.maths.operation import Array
from limpid.maths.rounding import unit_roundoff
from limpid.operations.exact.elementwise import FUNCTION
from limpid.operations.exact.exact import Exact, arithmetic, growth

LSTM = 2
"""oneDNN's number of it among recurrent networks."""


class Rough(NamedTuple):
    """Values, and how far an engine's may be off, in units of u: a running error analysis (Higham 2002, chapter 3)."""

    value: Array
    off: Array

    def times(self, other: Rough) -> Rough:
        """Entry by entry."""
        value = self.value * other.value
        off = np.abs(self.value) * other.off + np.abs(other.value) * self.off + np.abs(value)
        return Rough(value, off)

    def plus(self, *others: Rough) -> Rough:
        """A sum of several."""
        value, off = self.value, self.off
        for other in others:
            value = value + other.value
            off = off + other.off + np.abs(value)
        return Rough(value, off)

    def into(self, matrix: Array) -> Rough:
        """Its product with a matrix that is known."""
        size = np.abs(self.value) @ np.abs(matrix)
        return Rough(self.value @ matrix, growth(len(matrix)) * size + self.off @ np.abs(matrix))

    def of(self, value: Array, slope: Array) -> Rough:
        """A function of it."""
        return Rough(value, np.abs(slope) * self.off + FUNCTION)

    def part(self, place: int) -> Rough:
        """One of four gates."""
        width = self.value.shape[-1] // 4
        own = (..., slice(place * width, (place + 1) * width))
        return Rough(self.value[own], self.off[own])


def known(value: Array) -> Rough:
    """What is given."""
    return Rough(value, np.zeros(value.shape))


def less(one: float, other: Rough) -> Rough:
    """A number less something rough."""
    return Rough(one - other.value, other.off + 1)


class _Moment(NamedTuple):
    """One time: its input, the states before it, its gates, the cell and the hidden state."""

    x: Array
    hidden_before: Rough
    cell_before: Rough
    gates: list[Rough]
    cell: Rough
    bent: Rough
    hidden: Rough


def _sequence(x: Array, weights: list[Array], hx: Array, cx: Array, reverse: bool) -> list[_Moment]:
    """f c + i g, o tanh c over time: gates i, f, g, o of W x + U h + b."""
    of_input, of_state, *shifts = weights
    hidden, cell = known(hx), known(cx)
    found = []
    for one in x[::-1] if reverse else x:
        summed = known(one).into(of_input.T).plus(hidden.into(of_state.T), *map(known, shifts))
        opened = [summed.part(place) for place in range(4)]
        gates = []
        for place, gate in enumerate(opened):
            value = np.tanh(gate.value) if place == 2 else special.expit(gate.value)
            gates.append(gate.of(value, 1 - value**2 if place == 2 else value * (1 - value)))
        after = gates[1].times(cell).plus(gates[0].times(gates[2]))
        bent = after.of(np.tanh(after.value), 1 - np.tanh(after.value) ** 2)
        made = gates[3].times(bent)
        found.append(_Moment(one, hidden, cell, gates, after, bent, made))
        hidden, cell = made, after
    return found


def _told(one: Rough, times: float) -> Exact:
    return Exact(one.value, times * one.off)


def _joined(several: list[Rough], reverse: bool) -> Rough:
    several = several[::-1] if reverse else several
    return Rough(np.stack([one.value for one in several]), np.stack([one.off for one in several]))


def _times(formats: dict[str, Any]) -> float:
    """How much coarser the format is than float32: gates and states are kept in it."""
    return max(1.0, unit_roundoff(formats["input"]) / unit_roundoff(np.float32))


@arithmetic("mkldnn_rnn_layer")
def lstm(
    input: Array, weight0: Array, weight1: Array, weight2: Array, weight3: Array, hx_: Array, cx_: Array,
    reverse: bool, batch_sizes: list[int], mode: int, hidden_size: int, num_layers: int, has_biases: bool,
    bidirectional: bool, batch_first: bool, train: bool, formats: dict[str, Any],
) -> list[Exact | None] | None:  # fmt: skip
    """Of one layer, hidden states of all times and the last of both states."""
    if mode != LSTM or batch_sizes:
        return None
    weights = [weight0, weight1, *([weight2, weight3] if has_biases else [])]
    found, times = _sequence(input, weights, hx_, cx_, reverse), _times(formats)
    output = _joined([one.hidden for one in found], reverse)
    return [_told(output, times), _told(found[-1].hidden, times), _told(found[-1].cell, times), None]


def _before(now: _Moment, of_hidden: Rough, of_cell: Rough) -> tuple[Rough, Rough]:
    """From the gradients of both states those of the gates' sums, and of the cell before."""
    i, f, g, o = now.gates
    of_cell = of_cell.plus(of_hidden.times(o).times(less(1, now.bent.times(now.bent))))
    slopes = [
        of_cell.times(g).times(i).times(less(1, i)),
        of_cell.times(now.cell_before).times(f).times(less(1, f)),
        of_cell.times(i).times(less(1, g.times(g))),
        of_hidden.times(now.bent).times(o).times(less(1, o)),
    ]
    sums = Rough(np.concatenate([one.value for one in slopes], -1), np.concatenate([one.off for one in slopes], -1))
    return sums, of_cell.times(f)


def _outer(sums: list[Rough], given: list[Rough]) -> Rough:
    """Σ over times and rows of the gates' gradients by what came in."""
    value = sum(a.value.T @ b.value for a, b in zip(sums, given, strict=True))
    size = sum(np.abs(a.value).T @ np.abs(b.value) for a, b in zip(sums, given, strict=True))
    off = sum(a.off.T @ np.abs(b.value) + np.abs(a.value).T @ b.off for a, b in zip(sums, given, strict=True))
    return Rough(np.asarray(value), growth(len(sums) * len(sums[0].value)) * np.asarray(size) + np.asarray(off))


@arithmetic("mkldnn_rnn_layer_backward")
def lstm_backward(
    input: Array, weight1: Array, weight2: Array, weight3: Array, weight4: Array, hx_: Array, cx_tmp: Array,
    output: Array, hy_: Array, cy_: Array, grad_output: Any, grad_hy: Any, grad_cy: Any, reverse: bool, mode: int,
    hidden_size: int, num_layers: int, has_biases: bool, train: bool, bidirectional: bool, batch_sizes: list[int],
    batch_first: bool, workspace: Array, formats: dict[str, Any],
) -> list[Exact | None] | None:  # fmt: skip
    """Of the input, both weights, both shifts and both states, through time."""
    if mode != LSTM or batch_sizes:
        return None
    weights = [weight1, weight2, *([weight3, weight4] if has_biases else [])]
    moments = _sequence(input, weights, hx_, cx_tmp, reverse)
    zero = np.zeros_like(hx_)
    of_hidden, of_cell = (known(zero if one is None else one.reshape(zero.shape)) for one in (grad_hy, grad_cy))
    taught = np.zeros((len(input), *zero.shape)) if grad_output is None else grad_output
    sums, of_input = list[Rough](), list[Rough]()
    for now, given in zip(moments[::-1], taught if reverse else taught[::-1], strict=True):
        own, of_cell = _before(now, of_hidden.plus(known(given)), of_cell)
        of_input.append(own.into(weight1))
        of_hidden = own.into(weight2)
        sums.append(own)
    backwards = moments[::-1]
    shift = _outer(sums, [known(np.ones((len(zero), 1))) for _ in sums])
    shift = Rough(shift.value[:, 0], shift.off[:, 0])
    found = [_joined(of_input, not reverse), _outer(sums, [known(one.x) for one in backwards]),
             _outer(sums, [one.hidden_before for one in backwards]), shift, shift, of_hidden, of_cell]  # fmt: skip
    return [_told(one, _times(formats)) for one in found]
