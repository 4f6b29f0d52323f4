"""oneDNN's long short-term memory as a function that can be differentiated twice."""

from __future__ import annotations

import torch
from torch import Tensor

LSTM = 2
"""The number of its kind."""


def lstm(
    input: Tensor, weight0: Tensor, weight1: Tensor, weight2: Tensor, weight3: Tensor, hx_: Tensor, cx_: Tensor,
    reverse: bool, batch_sizes: list[int], mode: int, hidden_size: int, num_layers: int, has_biases: bool,
    bidirectional: bool, batch_first: bool, train: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Of one layer, hidden states (time, batch, hidden) of all times and the last of both states."""
    if mode != LSTM or batch_sizes:
        raise NotImplementedError("another unit, or sequences of several lengths")
    hidden, cell, states = hx_, cx_, list[Tensor]()
    for x in input.flip(0) if reverse else input:
        sums = x @ weight0.mT + hidden @ weight1.mT
        sums = sums + weight2 + weight3 if has_biases else sums
        i, f, g, o = sums.chunk(4, -1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        states.append(hidden)
    return torch.stack(states[::-1] if reverse else states), hidden, cell, None


def lstm_backward(
    input: Tensor, weight1: Tensor, weight2: Tensor, weight3: Tensor, weight4: Tensor, hx_: Tensor, cx_tmp: Tensor,
    output: Tensor, hy_: Tensor, cy_: Tensor, grad_output: Tensor | None, grad_hy: Tensor | None,
    grad_cy: Tensor | None, reverse: bool, mode: int, hidden_size: int, num_layers: int, has_biases: bool, train: bool,
    bidirectional: bool, batch_sizes: list[int], batch_first: bool, workspace: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Of the input, both weights, both shifts and both states, through time: what was kept is formed anew."""
    if mode != LSTM or batch_sizes:
        raise NotImplementedError("another unit, or sequences of several lengths")
    moments, hidden, cell = list[tuple[Tensor, ...]](), hx_, cx_tmp
    for x in input.flip(0) if reverse else input:
        sums = x @ weight1.mT + hidden @ weight2.mT
        i, f, g, o = (sums + weight3 + weight4 if has_biases else sums).chunk(4, -1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        moments.append((x, hidden, cell, i, f, g, o))
        cell = f * cell + i * g
        hidden = o * cell.tanh()
    of_hidden, of_cell = (
        torch.zeros_like(hx_) if one is None else one.reshape(hx_.shape) for one in (grad_hy, grad_cy)
    )
    taught = torch.zeros(len(input), *hx_.shape) if grad_output is None else grad_output
    of_input, first, second, shift = list[Tensor](), *(torch.zeros_like(one) for one in (weight1, weight2, weight3))
    for (x, h, c, i, f, g, o), given in zip(moments[::-1], taught if reverse else taught.flip(0), strict=True):
        bent, of_hidden = (f * c + i * g).tanh(), of_hidden + given
        of_cell = of_cell + of_hidden * o * (1 - bent * bent)
        slopes = (of_cell * g * i * (1 - i), of_cell * c * f * (1 - f), of_cell * i * (1 - g * g),
                  of_hidden * bent * o * (1 - o))  # fmt: skip
        sums, of_cell = torch.cat(slopes, -1), of_cell * f
        of_input.append(sums @ weight1)
        of_hidden = sums @ weight2
        first, second = first + _outer(sums, x), second + _outer(sums, h)
        shift = shift + sums.reshape(-1, sums.shape[-1]).sum(0)
    found = torch.stack(of_input if reverse else of_input[::-1])
    return found, first, second, shift, shift, of_hidden, of_cell


def _outer(sums: Tensor, given: Tensor) -> Tensor:
    """Over all rows of a batch."""
    return sums.reshape(-1, sums.shape[-1]).mT @ given.reshape(-1, given.shape[-1])
