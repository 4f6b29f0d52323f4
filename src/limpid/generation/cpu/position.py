"""A model that decodes one position of every row in one compiled call."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from filelock import FileLock, Timeout
from jaxtyping import Float, Int
from numba import typeof
from torch import Tensor

from limpid.config import WeightFormat
from limpid.generation.cpu.embedding import VectorsOf
from limpid.generation.cpu.kernels import decode
from limpid.generation.cpu.kernels.decode import decode_position
from limpid.generation.cpu.pace import Pace
from limpid.generation.cpu.seen import Seen, matrices, no_room, quantities, room_for
from limpid.generation.cpu.weights import Options, Weights, options_of, rotation_tables, stack_weights
from limpid.maths.operation import Array
from limpid.model.cache import Cache
from limpid.model.observe import FAST, Mode, Observe
from limpid.model.transformer import Transformer
from limpid.terminal import say

FIRST_POSITIONS = 1024
"""Positions whose angles are worked out at least."""


UNSAID_SECONDS = 10.0
"""A wait that nobody has to be told of: kernels that are compiled already are loaded in less."""


MOST_SECONDS = 120.0
"""More than compiling takes. Two that compile at once lose entries of numba's cache, and compile again later."""


class Given(NamedTuple):
    """The arguments of `decode_position`."""

    x: Array
    weights: Weights
    options: Options
    keys: Array
    values: Array
    padding: Array
    length: int
    seen: Seen
    workers: int


ALONE_BELOW = 1 << 16
"""Entries of the largest matrices of a model below which a second core takes longer to wake than to help."""


class PositionDecoder:
    """Logits of one more position of every row. Making the first one on a machine compiles the kernels: seconds."""

    def __init__(self, model: Transformer, weights: WeightFormat) -> None:
        self.config, self.vectors_of, self.weights_read = model.config, VectorsOf(model.embed), weights
        self.weights, self.options = stack_weights(model, weights), options_of(model.config)
        self.rotation, self.dtype, self.context = model.rotation, model.compute, model.config.context_length
        self.nothing = no_room(self.weights.norm1.dtype)
        self.pace = Pace(1)
        self._compile(Cache(model.config, 1, 1, model.compute, None))
        largest = max(array[0].size for array in self.weights if isinstance(array, np.ndarray) and array.size)
        self.pace = Pace(1) if largest < ALONE_BELOW else Pace.here()

    def _compile(self, cache: Cache) -> None:
        """Have the kernels for arrays of these formats; nobody is waited for where this process has them."""
        given = self._given(torch.zeros(1, 1, dtype=torch.int64), cache, None)
        if tuple(map(typeof, given)) not in decode.decode_position.overloads:
            with alone_compiling():
                self.pace.timed(decode_position, given)

    def __call__(
        self, tokens: Int[Tensor, "batch 1"], cache: Cache, observe: Observe | None = None
    ) -> Float[Tensor, "batch 1 vocab"]:
        """Logits; keys and values go into the cache. The observer is shown what every kernel made."""
        mode = FAST if observe is None else Mode(observe=observe)
        given = self._given(tokens, cache, observe)
        made = self.pace.timed(decode_position, given)
        cache.advance(1)
        if observe is not None:
            for name, array in quantities(given.seen, self.options):
                observe(name, torch.from_numpy(array)[:, None])
        return mode.report("logits", torch.from_numpy(made)[:, None])

    def _given(self, tokens: Int[Tensor, "batch 1"], cache: Cache, observe: Observe | None) -> Given:
        """What the kernels are called with."""
        if cache.padding is None:
            padding, positions = np.zeros(len(tokens), np.int64), np.array([cache.length])
        else:
            padding = cache.padding.numpy()
            positions = np.maximum(cache.length - padding[:, None], 0)
        x = self.vectors_of(tokens, positions, observe)
        keys, values = cache.keys.numpy(), cache.values.numpy()
        weights = self._weights(cache)
        seen = self.nothing if observe is None else room_for(weights, self.options, x, keys.shape[4])
        workers = self.pace.threads if observe is None else 1  # what is kept is copied between stages
        return Given(x, weights, self.options, keys, values, padding, cache.length, seen, workers)

    def matrices(self) -> dict[str, Float[Array, "out in"]]:
        """Every matrix as it is read, exact; the one that makes logits as logits.weight."""
        return dict(matrices(self.weights, self.config))

    def _weights(self, cache: Cache) -> Weights:
        """The weights, with angles of as many positions as the cache has room for: a context may be far longer."""
        if self.rotation is not None and self.weights.cos.shape[0] <= cache.length:
            positions = min(self.context, max(FIRST_POSITIONS, 2 * cache.keys.shape[3]))
            cos, sin = rotation_tables(self.rotation, positions, self.dtype)
            self.weights = self.weights._replace(cos=cos, sin=sin)
        return self.weights


@contextlib.contextmanager
def alone_compiling() -> Iterator[None]:
    """Be the one process that may compile the kernels; a terminal is told that another one is waited for.

    One that is suspended would be waited for in vain: after a while this one compiles beside it.
    """
    lock = FileLock(compile_lock())
    try:
        lock.acquire(timeout=UNSAID_SECONDS)
    except Timeout:
        if sys.stderr.isatty():  # in a pipe it would stand among the errors
            say("waiting for another process that compiles the decoder: once per installation", file=sys.stderr)
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=MOST_SECONDS)
    try:
        yield
    finally:
        lock.release()


def compile_lock() -> Path:
    """A file to lock: processes that compile at once would overwrite each other's entries in numba's cache.

    The cache lies beside the kernels, so that another installation need not wait.
    """
    user = getattr(os, "getuid", getpass.getuser)()
    here = hashlib.blake2b(decode.__file__.encode(), digest_size=8).hexdigest()
    return Path(tempfile.gettempdir()) / f"limpid-compile-{user}-{here}.lock"
