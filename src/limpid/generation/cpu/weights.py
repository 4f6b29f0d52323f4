"""A model's weights laid out for the compiled kernels: stacked by kind, matrices in the format they are read in."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from limpid.config import ModelConfig, WeightFormat
from limpid.generation.cpu.kernels import ACTIVATIONS
from limpid.model.embedding import Rotation
from limpid.model.linear import merge
from limpid.model.transformer import Transformer

Array = NDArray[np.floating]

NO_WINDOW = np.iinfo(np.int64).max


class Matrix(NamedTuple):
    """(block, out, in) in the format in which it is read: as x is, bfloat16's bits as uint16, or int8."""

    entries: NDArray[Any]
    scale: Array  # (block, out), what an int8 row is multiplied by; empty for other formats


class Weights(NamedTuple):
    """Of all blocks, stacked by kind, matrices as (block, out, in). What the model lacks is empty."""

    norm1: Array
    norm1_bias: Array
    query_key_value: Matrix
    query_key_value_bias: Array
    query_norm: Array
    key_norm: Array
    attention_output: Matrix
    attention_output_bias: Array
    norm2: Array
    norm2_bias: Array
    gate_up: Matrix  # gate, if there is one, and up
    gate_up_bias: Array
    mlp_output: Matrix
    mlp_output_bias: Array
    final_norm: Array
    final_norm_bias: Array
    output_matrix: Matrix
    cos: Array  # (position, pair)
    sin: Array
    window: NDArray[np.int64]  # (block)


class Options(NamedTuple):
    """What the weights' shapes do not tell."""

    num_heads: int
    num_kv_heads: int
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

    def joined(*modules: str) -> tuple[Matrix, Array]:
        entries = stacked(*(f"{module}.weight" for module in modules))
        return pack(entries, weights), stacked(*(f"{module}.bias" for module in modules))

    def gains(module: str) -> tuple[Array, Array]:
        return stacked(f"{module}.weight"), stacked(f"{module}.bias")

    return Weights(
        *gains("norm1"),
        *joined("attention.query", "attention.key", "attention.value"),
        stacked("attention.query_norm.weight"),
        stacked("attention.key_norm.weight"),
        *joined("attention.output"),
        *gains("norm2"),
        *joined(*(("mlp.gate",) if config.mlp == "gated" else ()), "mlp.up"),
        *joined("mlp.output"),
        learned.get("final_norm.weight", _empty(model)),
        learned.get("final_norm.bias", _empty(model)),
        pack(learned["embed.tokens.weight" if config.tied else "logits.weight"][None], weights),
        *rotation_tables(model.rotation, 0, model.compute),
        np.array([config.window(i) or NO_WINDOW for i in blocks], dtype=np.int64),
    )


def pack(entries: Float[np.ndarray, "block out in"], weights: WeightFormat) -> Matrix:
    """A stack of matrices in the format in which it is to be read.

    int8: each row in units of its largest entry over 127, rounded to nearest. Source: Dettmers et al. 2022, section
    2.1, arXiv:2208.07339 (row-wise absolute maximum). NumPy's own memory comes in huge pages, torch's does not.
    """
    if weights == "bf16":
        half = torch.from_numpy(entries).to(torch.bfloat16)  # nearest, ties to even
        return Matrix(half.view(torch.uint16).numpy().copy(), np.empty((len(entries), 0), np.float32))
    if weights == "int8":
        scale = np.maximum(np.abs(entries).max(-1), np.finfo(np.float32).tiny) / 127
        return Matrix(np.rint(entries / scale[..., None]).astype(np.int8), scale.astype(np.float32))
    return Matrix(entries.copy(), np.empty((len(entries), 0), entries.dtype))


def _empty(model: Transformer) -> Array:
    return np.empty(0, model.embed.tokens.weight.detach().numpy().dtype)


def rotation_tables(rotation: Rotation | None, positions: int, dtype: torch.dtype) -> tuple[Array, Array]:
    """Cosines and sines of the first positions, (position, pair)."""
    if rotation is None:
        return (torch.empty(0, 0, dtype=dtype).numpy(),) * 2
    cos, sin = (table[:, 0].contiguous().numpy() for table in rotation.at(torch.arange(positions), dtype))
    return cos, sin
