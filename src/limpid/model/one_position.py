"""A model's weights laid out for its compiled twin, and the call of it."""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from filelock import FileLock
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from limpid.config import ModelConfig, WeightFormat
from limpid.model.cache import Cache
from limpid.model.compiled import ACTIVATIONS, step
from limpid.model.embedding import Rotation
from limpid.model.transformer import Transformer

Array = NDArray[np.floating]

LOCK = Path(tempfile.gettempdir()) / f"limpid-compile-{getattr(os, 'getuid', getpass.getuser)()}.lock"
"""Two processes that compile at once would overwrite each other's entries in the cache of compiled code."""
UNBOUNDED = np.iinfo(np.int64).max


class Matrix(NamedTuple):
    """(block, out, in) in the format in which it is read: as x is, bfloat16's bits as uint16, or int8."""

    numbers: NDArray[Any]
    scale: Array  # (block, out), what an int8 row is multiplied by; empty for other formats


class Weights(NamedTuple):
    """Of all blocks, stacked by kind, matrices as (block, out, in). What the model lacks is empty."""

    norm1: Array
    norm1_bias: Array
    attend: Matrix  # queries, keys and values
    attend_bias: Array
    query_norm: Array
    key_norm: Array
    attention_output: Matrix
    attention_output_bias: Array
    norm2: Array
    norm2_bias: Array
    widen: Matrix  # gate, if there is one, and up
    widen_bias: Array
    mlp_output: Matrix
    mlp_output_bias: Array
    final_norm: Array
    final_norm_bias: Array
    head: Matrix
    cos: Array  # (position, pair)
    sin: Array
    window: NDArray[np.int64]  # (block)


class Form(NamedTuple):
    """What the weights' shapes do not tell."""

    num_heads: int
    num_kv_heads: int
    activation: int
    gated: bool
    layer_norm: bool
    norm_first: bool
    halves: bool  # which features rotate together
    eps: float


class OnePosition:
    """One more position of every row. Making the first one on a machine compiles the code, some seconds' work."""

    def __init__(self, model: Transformer, weights: WeightFormat) -> None:
        self.embed, self.weights, self.form = model.embed, gathered(model, weights), form(model.config)
        with FileLock(LOCK):
            self(torch.zeros(1, 1, dtype=torch.int64), Cache(model.config, 1, 1, model.compute, None))

    def __call__(self, tokens: Int[Tensor, "batch position"], cache: Cache) -> Float[Tensor, "batch position vocab"]:
        """Logits; keys and values go into the cache."""
        x = self.embed(tokens, cache.positions(1))[:, 0].detach().numpy()
        padding = np.zeros(len(x), np.int64) if cache.padding is None else cache.padding.numpy()
        keys, values = cache.keys.numpy(), cache.values.numpy()
        logits = step(x.copy(), self.weights, self.form, keys, values, padding, cache.length)
        cache.advance(1)
        return torch.from_numpy(logits)[:, None]


def form(config: ModelConfig) -> Form:
    """The configuration as compiled code reads it."""
    return Form(
        config.num_heads,
        config.num_kv_heads,
        ACTIVATIONS.index(config.activation),
        config.mlp == "gated",
        config.norm == "layer",
        config.norm_placement == "pre",
        config.rotary_layout == "half",
        config.norm_eps,
    )


def gathered(model: Transformer, weights: WeightFormat) -> Weights:
    """Every weight of the model, copied and stacked, matrices in the format in which they are to be read."""
    config, blocks = model.config, range(model.config.num_layers)
    learned = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}

    def stacked(*names: str) -> Array:
        parts = [[learned.get(f"blocks.{i}.{name}", _none(model)) for name in names] for i in blocks]
        return np.stack([np.concatenate(part) if part[0].size else part[0] for part in parts])

    def joined(*modules: str) -> tuple[Matrix, Array]:
        numbers = stacked(*(f"{module}.weight" for module in modules))
        return packed(numbers, weights), stacked(*(f"{module}.bias" for module in modules))

    def gains(module: str) -> tuple[Array, Array]:
        return stacked(f"{module}.weight"), stacked(f"{module}.bias")

    cos, sin = _turns(model.rotation, config, model.compute)
    return Weights(
        *gains("norm1"),
        *joined("attention.query", "attention.key", "attention.value"),
        stacked("attention.query_norm.weight"),
        stacked("attention.key_norm.weight"),
        *joined("attention.output"),
        *gains("norm2"),
        *joined(*(("mlp.gate",) if config.mlp == "gated" else ()), "mlp.up"),
        *joined("mlp.output"),
        learned.get("final_norm.weight", _none(model)),
        learned.get("final_norm.bias", _none(model)),
        packed(learned["embed.tokens.weight" if config.tied else "logits.weight"][None], weights),
        cos,
        sin,
        np.array([config.window(i) or UNBOUNDED for i in blocks], dtype=np.int64),
    )


def packed(numbers: Array, weights: WeightFormat) -> Matrix:
    """A stack of matrices (block, out, in) in the format in which it is to be read.

    int8: each row in units of its largest entry over 127, rounded to nearest. Source: Dettmers et al. 2022, section
    2.1, arXiv:2208.07339 (row-wise absolute maximum). NumPy's own memory comes in huge pages, torch's does not.
    """
    if weights == "bf16":
        half = torch.from_numpy(numbers).to(torch.bfloat16)  # nearest, ties to even
        return Matrix(half.view(torch.uint16).numpy().copy(), np.empty((len(numbers), 0), np.float32))
    if weights == "int8":
        scale = np.maximum(np.abs(numbers).max(-1), np.finfo(np.float32).tiny) / 127
        return Matrix(np.rint(numbers / scale[..., None]).astype(np.int8), scale.astype(np.float32))
    return Matrix(numbers.copy(), np.empty((len(numbers), 0), numbers.dtype))


def _none(model: Transformer) -> Array:
    return np.empty(0, model.embed.tokens.weight.detach().numpy().dtype)


def _turns(rotation: Rotation | None, config: ModelConfig, dtype: torch.dtype) -> Iterable[Array]:
    """Cosines and sines of every position, (position, pair)."""
    if rotation is None:
        return (torch.empty(0, 0, dtype=dtype).numpy(),) * 2
    return [table[:, 0].contiguous().numpy() for table in rotation.at(torch.arange(config.context_length), dtype)]
