"""What each kernel of one decoding position made, by the names of the mathematics; and the matrices it read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from limpid.config import ModelConfig
from limpid.generation.cpu.weights import Array, Matrix, Options, Weights


class Seen(NamedTuple):
    """Room for one position, (block, batch, …); empty where nothing is to be kept."""

    norm1: Array
    heads: Array  # (block, batch, query + key + value heads, d_head), from the product
    heads_normed: Array
    heads_rotated: Array
    mixed: Array  # (block, batch, head, d_head)
    attention_output: Array
    residual1: Array
    norm2: Array
    gate_up: Array
    hidden: Array
    mlp_output: Array
    residual2: Array
    final_norm: Array  # (1, batch, d_model)


def no_room(dtype: np.dtype[np.floating]) -> Seen:
    """Nothing is kept."""
    vectors, heads = np.empty((0, 0, 0), dtype), np.empty((0, 0, 0, 0), dtype)
    return Seen(*(heads if name in ("heads", "heads_normed", "heads_rotated", "mixed") else vectors
                  for name in Seen._fields))  # fmt: skip


def room_for(weights: Weights, options: Options, x: Float[Array, "batch d_model"], d_head: int) -> Seen:
    """Room for everything that a model makes of `x`."""
    blocks, d_ff = len(weights.mlp_output.entries), weights.mlp_output.entries.shape[2]
    none, count = no_room(x.dtype), options.num_heads + 2 * options.num_kv_heads

    def room(*shape: int) -> Array:
        return np.empty((blocks, len(x), *shape), x.dtype)

    stream = x.shape[1]
    return Seen(
        norm1=room(stream),
        heads=room(count, d_head),
        heads_normed=room(count, d_head) if weights.query_norm.size else none.heads_normed,
        heads_rotated=room(count, d_head) if weights.cos.size else none.heads_rotated,
        mixed=room(options.num_heads, d_head),
        attention_output=room(stream),
        residual1=room(stream),
        norm2=room(stream),
        gate_up=room(weights.gate_up.entries.shape[1]),
        hidden=room(d_ff),
        mlp_output=room(stream),
        residual2=room(stream),
        final_norm=room(stream)[:1] if options.pre_norm else none.final_norm,
    )


def quantities(seen: Seen, options: Options) -> Iterator[tuple[str, Float[Array, "batch ..."]]]:
    """Every quantity of one position under its name, in the order of the model."""
    queries, keys = options.num_heads, options.num_heads + options.num_kv_heads
    d_ff = seen.hidden.shape[2]
    for i in range(len(seen.mixed)):
        at = f"blocks.{i}"
        yield f"{at}.norm1", seen.norm1[i]
        yield f"{at}.attention.query", seen.heads[i][:, :queries]
        yield f"{at}.attention.key", seen.heads[i][:, queries:keys]
        yield f"{at}.attention.value", seen.heads[i][:, keys:]
        for kind, heads in (("norm", seen.heads_normed), ("rotated", seen.heads_rotated)):
            if heads.size:
                yield f"{at}.attention.query_{kind}", heads[i][:, :queries]
                yield f"{at}.attention.key_{kind}", heads[i][:, queries:keys]
        yield f"{at}.attention.mixed", seen.mixed[i]
        yield f"{at}.attention.output", seen.attention_output[i]
        yield f"{at}.residual1", seen.residual1[i]
        yield f"{at}.norm2", seen.norm2[i]
        if options.gated:
            yield f"{at}.mlp.gate", seen.gate_up[i][:, :d_ff]
        yield f"{at}.mlp.up", seen.gate_up[i][:, d_ff:] if options.gated else seen.gate_up[i]
        yield f"{at}.mlp.hidden", seen.hidden[i]
        yield f"{at}.mlp.output", seen.mlp_output[i]
        yield f"{at}.residual2", seen.residual2[i]
    if seen.final_norm.size:
        yield "final_norm", seen.final_norm[0]


def matrices(weights: Weights, config: ModelConfig) -> Iterator[tuple[str, Float[Array, "out in"]]]:
    """Every matrix with the exact numbers that its format stands for; the one that makes logits as logits.weight."""
    sizes = config.sizes
    query, key = config.num_heads * sizes.d_head, sizes.num_kv_heads * sizes.d_head
    gate = {"mlp.gate": sizes.d_ff} if config.mlp == "gated" else {}
    stacks = (
        (weights.query_key_value, {"attention.query": query, "attention.key": key, "attention.value": key}),
        (weights.attention_output, {"attention.output": config.d_model}),
        (weights.gate_up, gate | {"mlp.up": sizes.d_ff}),
        (weights.mlp_output, {"mlp.output": config.d_model}),
    )
    for stack, parts in stacks:
        rows = np.cumsum(list(parts.values()))[:-1]
        for i, block in enumerate(_exact(stack)):
            for name, matrix in zip(parts, np.split(block, rows), strict=True):
                yield f"blocks.{i}.{name}.weight", matrix
    yield "logits.weight", _exact(weights.output_matrix)[0]


def _exact(matrix: Matrix) -> Float[Array, "block out in"]:
    if matrix.entries.dtype == np.uint16:  # the upper half of a float32
        return (matrix.entries.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    entries = matrix.entries.astype(np.float64)
    return entries * matrix.scale.astype(np.float64)[..., None] if matrix.scale.size else entries
