"""Products with packed matrices: threads share the groups of rows, each of which is read once for all rows of x."""

from __future__ import annotations

import numpy as np

from limpid.generation.cpu.kernels.compiled import GROUP, ROWS_TOGETHER, jit
from limpid.generation.cpu.kernels.functions import activate
from limpid.generation.cpu.kernels.sharing import finish, take, wait
from limpid.generation.cpu.kernels.tile import group_with_row, group_with_rows

LEAST_BYTES = 8192
"""Weights of a piece of work, at least: threads meet for each, and the last one is waited for."""


@jit
def product(x, weight, scale, bias, y, counters, worker, workers):
    """y = x Wᵀ + b."""
    groups, d_out = weight.shape[0], y.shape[1]
    sums = np.empty(GROUP * ROWS_TOGETHER, x.dtype)
    least = least_groups(weight)
    while True:
        first, last = take(counters, groups, least, worker, workers)
        if first == last:
            break
        for group in range(first, last):
            o = GROUP * group
            product_of_group(x, weight, group, scale, bias, y, o, min(GROUP, d_out - o), sums)
        finish(counters, last - first)
    wait(counters, groups)


@jit
def mlp_hidden(x, weight, scale, bias, activation, gated, gate_up, hidden, counters, worker, workers):
    """f(gate) ⊙ up, or f(up), of x: whoever multiplies a part of it activates it. Groups of gate and up alternate."""
    total, least = -(-hidden.shape[1] // GROUP), least_groups(weight)
    while True:
        first, last = take(counters, total, least, worker, workers)
        if first == last:
            break
        gate_and_up(x, weight, scale, bias, gated, gate_up, hidden.shape[1], first, last)
        gated_hidden(gate_up, activation, gated, hidden, first * GROUP, min(hidden.shape[1], last * GROUP))
        finish(counters, last - first)
    wait(counters, total)


@jit
def gate_and_up(x, weight, scale, bias, gated, gate_up, d_ff, first, last):
    """The products of groups `first` up to `last` of both."""
    sums = np.empty(GROUP * ROWS_TOGETHER, x.dtype)
    for group in range(first, last):
        o = GROUP * group
        count = min(GROUP, d_ff - o)
        if gated:
            product_of_group(x, weight, 2 * group, scale, bias, gate_up, o, count, sums)
            product_of_group(x, weight, 2 * group + 1, scale, bias, gate_up, d_ff + o, count, sums)
        else:
            product_of_group(x, weight, group, scale, bias, gate_up, o, count, sums)


@jit
def gated_hidden(gate_up, activation, gated, hidden, first, last):
    """f(gate) ⊙ up, or f(up), from one feature up to another."""
    d_ff = hidden.shape[1]
    for row in range(hidden.shape[0]):
        activate(gate_up[row, first:last], activation, hidden[row, first:last])
        if gated:
            for i in range(first, last):
                hidden[row, i] *= gate_up[row, d_ff + i]


@jit
def product_of_group(x, weight, group, scale, bias, y, o, count, sums):
    """The entries of y from `o` on."""
    rows = x.shape[0]
    together = rows // ROWS_TOGETHER * ROWS_TOGETHER
    for row in range(0, together, ROWS_TOGETHER):
        group_with_rows(weight, group, x, row, sums)
        for i in range(count):
            for j in range(ROWS_TOGETHER):
                y[row + j, o + i] = sums[ROWS_TOGETHER * i + j]
    for row in range(together, rows):
        group_with_row(weight, group, x, row, sums)
        for i in range(count):
            y[row, o + i] = sums[i]
    for row in range(rows):
        for i in range(o, o + count):
            total = y[row, i]
            if scale.size:
                total *= scale[i]
            y[row, i] = total + bias[i] if bias.size else total


@jit
def least_groups(weight):
    """Groups that make up `LEAST_BYTES`."""
    return max(1, LEAST_BYTES // (weight.shape[1] * weight.itemsize))
