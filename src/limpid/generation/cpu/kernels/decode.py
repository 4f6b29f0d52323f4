"""The stages of one position, in their order; the threads are started once and meet after each."""

from __future__ import annotations

import numpy as np
from numba import prange

from limpid.generation.cpu.kernels.attention import attend, place_heads
from limpid.generation.cpu.kernels.compiled import SOURCES, cached_parallel_jit, jit
from limpid.generation.cpu.kernels.functions import keep, norm
from limpid.generation.cpu.kernels.product import mlp_hidden, product
from limpid.generation.cpu.kernels.sharing import finish, no_counters, take, wait

STAGES = 8
"""Of a block. Before all blocks there is a norm, after them the logits."""


@jit
def add_and_norm(x, written, residual, block, weight, bias, options, y, counters, worker, workers):
    """x + written in place, where something was written, and y its norm, row by row."""
    total = x.shape[0]
    while True:
        first, last = take(counters, total, 1, worker, workers)
        if first == last:
            break
        for row in range(first, last):
            if len(written):
                for i in range(x.shape[1]):
                    x[row, i] += written[row, i]
            if residual.size:
                for i in range(x.shape[1]):
                    residual[block, row, i] = x[row, i]
            if weight.size:
                norm(x[row], weight, bias, options.eps, options.layer_norm, y[row])
        finish(counters, last - first, worker)
    wait(counters, total, workers)


@jit
def all_stages(
    x, weights, options, keys, values, padding, length, seen, heads, mixed, written, gate_up, hidden, normed, logits,
    counters, worker, workers,
):  # fmt: skip
    """One worker's part of every stage: x (batch, d_model) becomes logits (batch, vocab).

    What each kernel makes goes into `seen` too, where it has room; then there is one worker.
    """
    pre, batch, blocks = options.pre_norm, x.shape[0], weights.query_key_value.shape[0]
    entering, nothing = normed if pre else x, np.empty(0, x.dtype)
    if pre:
        gain, bias, none = weights.norm1[0], weights.norm1_bias[0], written[:0]
        add_and_norm(x, none, seen.residual1[:0], 0, gain, bias, options, normed, counters[-2], worker, workers)
        keep(seen.norm1, 0, normed)
    for i in range(blocks):
        turn = counters[STAGES * i : STAGES * (i + 1)]
        product(
            entering, weights.query_key_value[i], weights.query_key_value_scale[i], weights.query_key_value_bias[i],
            heads.reshape((batch, -1)), weights.attention_output[i], turn[0], worker, workers,
        )  # fmt: skip
        keep(seen.heads, i, heads)
        place_heads(heads, weights, options, keys[i], values[i], padding, length, seen, i, turn[1], worker, workers)
        window = weights.window[i]
        attend(heads, keys[i], values[i], padding, length, window, options.num_heads, mixed, turn[2], worker, workers)
        keep(seen.mixed, i, mixed)
        product(
            mixed.reshape((batch, -1)), weights.attention_output[i], weights.attention_output_scale[i],
            weights.attention_output_bias[i], written, weights.gate_up[i], turn[3], worker, workers,
        )  # fmt: skip
        keep(seen.attention_output, i, written)
        gain, bias = (weights.norm2[i], weights.norm2_bias[i]) if pre else (weights.norm1[i], weights.norm1_bias[i])
        add_and_norm(x, written, seen.residual1, i, gain, bias, options, entering, turn[4], worker, workers)
        keep(seen.norm2 if pre else seen.norm1, i, entering)
        mlp_hidden(
            entering, weights.gate_up[i], weights.gate_up_scale[i], weights.gate_up_bias[i], options.activation,
            options.gated, gate_up, hidden, weights.mlp_output[i], turn[5], worker, workers,
        )  # fmt: skip
        keep(seen.gate_up, i, gate_up)
        keep(seen.hidden, i, hidden)
        out, scale, bias = weights.mlp_output[i], weights.mlp_output_scale[i], weights.mlp_output_bias[i]
        following = weights.query_key_value[i + 1] if i + 1 < blocks else weights.output_matrix[0]
        product(hidden, out, scale, bias, written, following, turn[6], worker, workers)
        keep(seen.mlp_output, i, written)
        if pre and i + 1 < blocks:
            gain, bias = weights.norm1[i + 1], weights.norm1_bias[i + 1]
        elif pre:
            gain, bias = weights.final_norm, weights.final_norm_bias
        else:
            gain, bias = weights.norm2[i], weights.norm2_bias[i]
        add_and_norm(x, written, seen.residual2, i, gain, bias, options, entering, turn[7], worker, workers)
        if not pre:
            keep(seen.norm2, i, x)
        elif i + 1 < blocks:
            keep(seen.norm1, i + 1, normed)
        else:
            keep(seen.final_norm, 0, normed)
    product(
        entering,
        weights.output_matrix[0],
        weights.output_matrix_scale[0],
        nothing,
        logits,
        weights.query_key_value[0],
        counters[-1],
        worker,
        workers,
    )


def _decode_position(sources):
    @cached_parallel_jit
    def decode_position(x, weights, options, keys, values, padding, length, seen, workers):
        """Logits of one more position: `x` (batch, d_model) becomes (batch, vocab); keys and values are stored."""
        _ = sources
        batch, d_head, format_ = x.shape[0], keys.shape[4], x.dtype
        heads = np.empty((batch, options.num_heads + 2 * options.num_kv_heads, d_head), format_)
        mixed = np.empty((batch, options.num_heads, d_head), format_)
        written, normed = np.empty_like(x), np.empty_like(x)
        gate_up = np.empty((batch, 2 * options.d_ff if options.gated else options.d_ff), format_)
        hidden = np.empty((batch, options.d_ff), format_)
        logits = np.empty((batch, options.vocab_size), format_)
        counters = no_counters(STAGES * weights.query_key_value.shape[0] + 2, workers)
        if workers == 1:  # without a pool of threads, which ends the children of a process that begins one
            all_stages(
                x, weights, options, keys, values, padding, length, seen, heads, mixed, written, gate_up, hidden,
                normed, logits, counters, np.int64(0), workers,
            )  # fmt: skip
            return logits
        for worker in prange(workers):
            all_stages(
                x, weights, options, keys, values, padding, length, seen, heads, mixed, written, gate_up, hidden,
                normed, logits, counters, np.int64(worker), workers,
            )  # fmt: skip
        return logits

    return decode_position


decode_position = _decode_position(SOURCES)
