"""What each kernel of one decoding position made, by the names of the mathematics; and the matrices it read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from limpid.config import ModelConfig
from limpid.generation.cpu.packing import Packed, unpacked
from limpid.generation.cpu.weights import Array, Options, Weights


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
    blocks = len(weights.mlp_output)
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
        gate_up=room(2 * options.d_ff if options.gated else options.d_ff),
        hidden=room(options.d_ff),
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
    w, projections = weights, {"attention.query": query, "attention.key": key, "attention.value": key}
    up = _exact(w.gate_up, w.gate_up_scale, sizes.d_ff, 2 if config.mlp == "gated" else 1)
    stacks = (
        (_exact(w.query_key_value, w.query_key_value_scale, query + 2 * key), projections),
        (
            _exact(w.attention_output, w.attention_output_scale, config.d_model),
            {"attention.output": config.d_model},
        ),
        (up, {"mlp.gate": sizes.d_ff, "mlp.up": sizes.d_ff} if config.mlp == "gated" else {"mlp.up": sizes.d_ff}),
        (_exact(w.mlp_output, w.mlp_output_scale, config.d_model), {"mlp.output": config.d_model}),
    )
    for stack, parts in stacks:
        rows = np.cumsum(list(parts.values()))[:-1]
        for i, block in enumerate(stack):
            for name, matrix in zip(parts, np.split(block, rows), strict=True):
                yield f"blocks.{i}.{name}.weight", matrix
    yield "logits.weight", _exact(w.output_matrix, w.output_matrix_scale, config.vocab_size)[0]


def _exact(groups: Packed, scale: Array, out: int, parts: int = 1) -> Float[Array, "block rows in"]:
    """Matrices of so many rows, the groups of one or two of which alternate, one below the other."""
    stored = np.concatenate([unpacked(groups[:, part::parts], out) for part in range(parts)], 1)
    if stored.dtype == np.uint16:  # the upper half of a float32
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    entries = stored.astype(np.float64)
    return entries * scale.astype(np.float64)[..., None] if scale.size else entries
