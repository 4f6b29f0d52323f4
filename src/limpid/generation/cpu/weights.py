"""A model's weights laid out for the compiled kernels: stacked by kind, matrices in the format they are read in."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from limpid.config import ModelConfig, WeightFormat
from limpid.generation.cpu.kernels.functions import ACTIVATIONS
from limpid.generation.cpu.packing import packed
from limpid.model.embedding import Rotation
from limpid.model.linear import merge
from limpid.model.transformer import Transformer

Array = NDArray[np.floating]

NO_WINDOW = np.iinfo(np.int64).max


class Weights(NamedTuple):
    """Of all blocks, stacked by kind. What the model lacks is empty.

    Matrices are (block, group, entries), see packing.py, in the format in which they are read: as x is, bfloat16's bits
    as uint16, or int8; scales (block, out) are what an int8 row is multiplied by, empty for other formats.
    """

    norm1: Array
    norm1_bias: Array
    query_key_value: NDArray[Any]
    query_key_value_scale: Array
    query_key_value_bias: Array
    query_norm: Array
    key_norm: Array
    attention_output: NDArray[Any]
    attention_output_scale: Array
    attention_output_bias: Array
    norm2: Array
    norm2_bias: Array
    gate_up: NDArray[Any]  # groups of gate, if there is one, and of up in turn
    gate_up_scale: Array  # gate, if there is one, and up
    gate_up_bias: Array
    mlp_output: NDArray[Any]
    mlp_output_scale: Array
    mlp_output_bias: Array
    final_norm: Array
    final_norm_bias: Array
    output_matrix: NDArray[Any]
    output_matrix_scale: Array
    cos: Array  # (position, pair)
    sin: Array
    window: NDArray[np.int64]  # (block)


class Options(NamedTuple):
    """What the weights' shapes do not tell."""

    num_heads: int
    num_kv_heads: int
    d_ff: int
    vocab_size: int
    activation: int  # place in ACTIVATIONS
    gated: bool
    layer_norm: bool
    pre_norm: bool
    halves: bool  # which features rotate together
    eps: float


def options_of(config: ModelConfig) -> Options:
    """The configuration as compiled code reads it."""
    return Options(
        config.num_heads,
        config.sizes.num_kv_heads,
        config.sizes.d_ff,
        config.vocab_size,
        ACTIVATIONS.index(config.activation),
        config.mlp == "gated",
        config.norm == "layer",
        config.norm_placement == "pre",
        config.rotary_layout == "half",
        config.norm_eps,
    )


def stack_weights(model: Transformer, weights: WeightFormat) -> Weights:
    """Every weight of the model, copied and stacked, matrices in the format in which they are to be read."""
    config, merged = merge(model.config, {name: parameter.detach() for name, parameter in model.named_parameters()})
    learned, blocks = {name: tensor.numpy() for name, tensor in merged.items()}, range(config.num_layers)

    def stacked(*names: str) -> Array:
        parts = [[learned.get(f"blocks.{i}.{name}", _empty(model)) for name in names] for i in blocks]
        return np.stack([np.concatenate(part) if part[0].size else part[0] for part in parts])

    def joined(*modules: str) -> tuple[Any, Array, Array]:
        made, scale = in_format(stacked(*(f"{module}.weight" for module in modules)), weights)
        return packed(made), scale, stacked(*(f"{module}.bias" for module in modules))

    def alternating(*modules: str) -> tuple[Any, Array, Array]:
        made, scales = zip(*(in_format(stacked(f"{module}.weight"), weights) for module in modules), strict=True)
        return packed(*made), np.concatenate(scales, -1), stacked(*(f"{module}.bias" for module in modules))

    def gains(module: str) -> tuple[Array, Array]:
        return stacked(f"{module}.weight"), stacked(f"{module}.bias")

    output_matrix, output_scale = in_format(
        learned["embed.tokens.weight" if config.tied else "logits.weight"][None], weights
    )
    return Weights(
        *gains("norm1"),
        *joined("attention.query", "attention.key", "attention.value"),
        stacked("attention.query_norm.weight"),
        stacked("attention.key_norm.weight"),
        *joined("attention.output"),
        *gains("norm2"),
        *alternating(*(("mlp.gate",) if config.mlp == "gated" else ()), "mlp.up"),
        *joined("mlp.output"),
        learned.get("final_norm.weight", _empty(model)),
        learned.get("final_norm.bias", _empty(model)),
        packed(output_matrix),
        output_scale,
        *rotation_tables(model.rotation, 0, model.compute),
        np.array([config.window(i) or NO_WINDOW for i in blocks], dtype=np.int64),
    )


def in_format(entries: Float[np.ndarray, "block out in"], weights: WeightFormat) -> tuple[NDArray[Any], Array]:
    """A stack of matrices in the format in which it is to be read, and the scale of each row, if it has one.

    int8: each row in units of its largest entry over 127, rounded to nearest. Source: Dettmers et al. 2022, section
    2.1, arXiv:2208.07339 (row-wise absolute maximum).
    """
    if weights == "bf16":
        half = torch.from_numpy(entries).to(torch.bfloat16)  # nearest, ties to even
        return half.view(torch.uint16).numpy(), np.empty((len(entries), 0), np.float32)
    if weights == "int8":
        scale = np.maximum(np.abs(entries).max(-1), np.finfo(np.float32).tiny) / 127
        return np.rint(entries / scale[..., None]).astype(np.int8), scale.astype(np.float32)
    return entries, np.empty((len(entries), 0), entries.dtype)


def _empty(model: Transformer) -> Array:
    return np.empty(0, model.embed.tokens.weight.detach().numpy().dtype)


def rotation_tables(rotation: Rotation | None, positions: int, dtype: torch.dtype) -> tuple[Array, Array]:
    """Cosines and sines of the first positions, (position, pair)."""
    if rotation is None:
        return (torch.empty(0, 0, dtype=dtype).numpy(),) * 2
    cos, sin = (table[:, 0].contiguous().numpy() for table in rotation.at(torch.arange(positions), dtype))
    return cos, sin
