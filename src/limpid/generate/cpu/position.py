"""A model that decodes one position of every row in one compiled call."""

from __future__ import annotations

import getpass
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from jaxtyping import Float, Int
from torch import Tensor

from limpid.config import WeightFormat
from limpid.generate.cpu.kernels import decode_position
from limpid.generate.cpu.weights import options_of, stack_weights
from limpid.model.cache import Cache
from limpid.model.transformer import Transformer


class PositionDecoder:
    """Logits of one more position of every row. Making the first one on a machine compiles the kernels: seconds."""

    def __init__(self, model: Transformer, weights: WeightFormat) -> None:
        self.embed, self.weights, self.options = model.embed, stack_weights(model, weights), options_of(model.config)
        with FileLock(compile_lock()):
            self(torch.zeros(1, 1, dtype=torch.int64), Cache(model.config, 1, 1, model.compute, None))

    def __call__(self, tokens: Int[Tensor, "batch 1"], cache: Cache) -> Float[Tensor, "batch 1 vocab"]:
        """Logits; keys and values go into the cache."""
        x = self.embed(tokens, cache.positions(1))[:, 0].detach().numpy()
        padding = np.zeros(len(x), np.int64) if cache.padding is None else cache.padding.numpy()
        keys, values = cache.keys.numpy(), cache.values.numpy()
        logits = decode_position(x.copy(), self.weights, self.options, keys, values, padding, cache.length)
        cache.advance(1)
        return torch.from_numpy(logits)[:, None]


def compile_lock() -> Path:
    """A file to lock: two processes that compile at once would overwrite each other's entries in numba's cache."""
    user = getattr(os, "getuid", getpass.getuser)()
    return Path(tempfile.gettempdir()) / f"limpid-compile-{user}.lock"
