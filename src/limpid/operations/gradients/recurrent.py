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
    """Of the input, both weights, both shifts and both states: what the forward pass kept is formed anew."""
    given = [one if one.requires_grad else one.detach().requires_grad_()
             for one in (input, weight1, weight2, weight3, weight4, hx_, cx_tmp)]  # fmt: skip
    x, w1, w2, w3, w4, hidden, cell = given
    made = lstm(x, w1, w2, w3, w4, hidden, cell, reverse, batch_sizes, mode, hidden_size, num_layers, has_biases,
                bidirectional, batch_first, train)  # fmt: skip
    pairs = [
        (one, bar.reshape(one.shape))
        for one, bar in zip(made, (grad_output, grad_hy, grad_cy), strict=False)
        if one is not None and bar is not None
    ]
    return torch.autograd.grad(
        [one for one, _ in pairs], given, [bar for _, bar in pairs], create_graph=True, materialize_grads=True
    )
