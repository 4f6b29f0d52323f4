"""Attention of one position: heads are normed, rotated and stored, then each sees the keys and values before it."""

from __future__ import annotations

import math

import numpy as np

from limpid.generation.cpu.kernels.compiled import jit
from limpid.generation.cpu.kernels.functions import copy, exp, norm, rotate
from limpid.generation.cpu.kernels.sharing import finish, take, wait
from limpid.generation.cpu.kernels.tile import ROWS, product_of_row, products_of_rows, weighted_sum

HEADS_AT_LEAST = 4
"""Heads of a piece of work that takes little time for each."""


@jit
def place_heads(heads, weights, options, keys, values, padding, length, seen, block, counters, worker, workers):
    """Norm and rotate queries and keys in place, and store keys and values at their position."""
    queries = options.num_heads
    rotated, all_heads = queries + options.num_kv_heads, queries + 2 * options.num_kv_heads
    total = heads.shape[0] * all_heads
    no_bias = np.empty(0, heads.dtype)
    while True:
        first, last = take(counters, total, HEADS_AT_LEAST, worker, workers)
        if first == last:
            break
        for place in range(first, last):
            row, h = place // all_heads, place % all_heads
            head = heads[row, h]
            if h < rotated and weights.query_norm.size:
                gain = weights.query_norm[block] if h < queries else weights.key_norm[block]
                norm(head, gain, no_bias, options.eps, False, head)
            if seen.heads_normed.size:
                copy(head, seen.heads_normed[block, row, h])
            if h < rotated and weights.cos.size:
                position = max(length - padding[row], 0)
                rotate(head, weights.cos[position], weights.sin[position], options.halves)
            if seen.heads_rotated.size:
                copy(head, seen.heads_rotated[block, row, h])
            if h >= rotated:
                copy(head, values[row, h - rotated, length])
            elif h >= queries:
                copy(head, keys[row, h - queries, length])
        finish(counters, last - first, worker)
    wait(counters, total, workers)


@jit
def attend(heads, keys, values, padding, length, window, num_heads, mixed, counters, worker, workers):
    """Each head's softmax-weighted sum of the values from its first visible position up to `length`."""
    total = heads.shape[0] * num_heads
    score = np.empty(min(length + 1, window), mixed.dtype)
    while True:
        first, last = take(counters, total, 1, worker, workers)
        if first == last:
            break
        for place in range(first, last):
            row, h = place // num_heads, place % num_heads
            key_head, start = h // (num_heads // keys.shape[1]), max(padding[row], length + 1 - window)
            key, value = keys[row, key_head, start : length + 1], values[row, key_head, start : length + 1]
            attend_head(heads[row], h, key, value, score[: length + 1 - start], mixed[row, h])
        finish(counters, last - first, worker)
    wait(counters, total, workers)


@jit
def attend_head(queries, h, key, value, score, out):
    """One head's share of `attend`."""
    largest = -math.inf
    together = score.size // ROWS * ROWS
    for t in range(0, together, ROWS):
        score[t], score[t + 1], score[t + 2], score[t + 3] = products_of_rows(key, t, queries, h)
    for t in range(together, score.size):
        score[t] = product_of_row(key, t, queries, h)[0]
    for t in range(score.size):
        score[t] /= math.sqrt(out.size)
        largest = max(largest, score[t])
    for t in range(score.size):
        score[t] = exp(score[t] - largest)
    mass = 0.0
    for t in range(score.size):
        mass += score[t]
    for t in range(score.size):
        score[t] /= mass
    weighted_sum(score, value, out)
