"""Products with packed matrices: threads share the groups of rows, each of which is read once for all rows of x."""

from __future__ import annotations

from limpid.generation.cpu.kernels.compiled import GROUP, ROWS_TOGETHER, jit
from limpid.generation.cpu.kernels.functions import activate
from limpid.generation.cpu.kernels.sharing import finish, share, take, wait
from limpid.generation.cpu.kernels.tile import group_with_row, group_with_rows, prefetch_run

LEAST_BYTES = 8192
"""Weights of a piece of work, at least: threads meet for each, and the last one is waited for."""


@jit
def product(x, weight, scale, bias, y, following, counters, worker, workers):
    """y = x Wᵀ + b. The matrix that is read after it is asked for before the others are waited for."""
    groups, least = weight.shape[0], least_groups(weight)
    while True:
        first, last = take(counters, groups, least, worker, workers)
        if first == last:
            break
        product_of_groups(x, weight, first, last, 1, scale, bias, y)
        finish(counters, last - first, worker)
    ask_for(following, worker, workers)
    wait(counters, groups, workers)


@jit
def mlp_hidden(x, weight, scale, bias, activation, gated, gate_up, hidden, following, counters, worker, workers):
    """f(gate) ⊙ up, or f(up), of x: whoever multiplies a part of it activates it. Groups of gate and up alternate."""
    total, least = -(-hidden.shape[1] // GROUP), least_groups(weight)
    while True:
        first, last = take(counters, total, least, worker, workers)
        if first == last:
            break
        gate_and_up(x, weight, scale, bias, gated, gate_up, first, last)
        gated_hidden(gate_up, activation, gated, hidden, first * GROUP, min(hidden.shape[1], last * GROUP))
        finish(counters, last - first, worker)
    ask_for(following, worker, workers)
    wait(counters, total, workers)


@jit
def gate_and_up(x, weight, scale, bias, gated, gate_up, first, last):
    """The products of groups `first` up to `last` of both."""
    parts = 2 if gated else 1
    product_of_groups(x, weight, parts * first, parts * last, parts, scale, bias, gate_up)


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
def product_of_groups(x, weight, first, last, parts, scale, bias, y):
    """The entries of y that some groups make; those of so many matrices, whose entries follow each other, alternate."""
    rows, d_out = x.shape[0], y.shape[1] // parts
    together = rows // ROWS_TOGETHER * ROWS_TOGETHER
    for group in range(first, last):
        begin = group % parts * d_out
        o, limit = begin + group // parts * GROUP, begin + d_out
        for row in range(0, together, ROWS_TOGETHER):
            group_with_rows(weight, group, x, row, scale, bias, y, o, limit)
        for row in range(together, rows):
            group_with_row(weight, group, x, row, scale, bias, y, o, limit)


@jit
def ask_for(weight, worker, workers):
    """Prefetch the beginning of this worker's share."""
    prefetch_run(weight, worker * share(weight.shape[0], workers))


@jit
def least_groups(weight):
    """Groups that make up `LEAST_BYTES`."""
    return max(1, LEAST_BYTES // (weight.shape[1] * weight.itemsize))
