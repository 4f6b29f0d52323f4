"""The model as a source of probabilities that are the same, bit for bit, whenever the same tokens went before."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float32

from limpid.config import ModelConfig, WeightFormat
from limpid.config.options import to_dict
from limpid.data.tokenizer import Tokenizer
from limpid.errors import ConfigError
from limpid.generation import Decoder
from limpid.generation.cpu.kernels.functions import relative_probabilities
from limpid.model import Cache, Transformer
from limpid.model.linear import merge

Array = np.ndarray

KEPT = 4
"""When the context is full, its last quarter is read again and the rest forgotten: a third more work."""
PROBE = 16
"""Tokens whose predictions tell whether another machine computes the same bits."""
NOT_PREDICTING = (
    "dropout", "init_std", "scaled_residual_init", "head", "lora_rank", "lora_alpha", "lora_scaling", "lora_targets",
    "lora_dropout", "use_dora", "init_lora_weights", "base_precision",
)  # fmt: skip


class Predictor:
    """Probabilities of the next token, one token at a time.

    Every prediction is made by the decoder for one position, which rounds every operation in a written order: the same
    bits whatever the number of threads, the processor, and the compiler's choices.
    """

    def __init__(self, model: Transformer, start: int | None, weights: WeightFormat = "auto") -> None:
        self.decoder = Decoder(model, weights)
        if self.decoder.position_decoder is None:
            raise ConfigError(f"the model computes in {model.compute}, whose sums have no fixed order: take float32")
        self._rotation_tables = self.decoder.position_decoder.weights.cos, self.decoder.position_decoder.weights.sin
        self.start = 0 if start is None else start
        self.context = model.config.context_length
        self.kept = self.context // KEPT
        self._cache = Cache(model.config, 1, self.context, self.decoder.compute, None)
        self._history: list[int] = []
        self.reset()

    def reset(self) -> None:
        """Forget all tokens but the start token."""
        self._cache.length = 0
        self._history = []
        self.append(self.start)

    def append(self, token: int) -> None:
        """Append a token to what the model has read."""
        if self._cache.length == self.context:
            self._cache.length = 0
            for earlier in self._history[len(self._history) - self.kept :]:
                self._step(earlier)
            self._history = self._history[len(self._history) - self.kept :]
        self._history.append(token)
        self._step(token)

    def weights(self) -> Float32[Array, " vocab"]:
        """Of each token to come next, in proportion to its probability; the largest is 1.

        Raises  CheckpointError when the model's logits are not numbers
        """
        if not np.isfinite(self._logits).all():
            raise self.decoder.model.diverged()
        return np.asarray(relative_probabilities(self._logits))

    def _step(self, token: int) -> None:
        with torch.inference_mode():
            logits = self.decoder(torch.tensor([[token]]), self._cache)
        self._logits: Array = logits[0, 0].numpy().astype(np.float32, copy=False)

    def probe(self) -> bytes:
        """8 bytes that change with any bit of the predictions after some tokens, or of later rotations."""
        self.reset()
        digest = hashlib.blake2b(digest_size=8)
        for table in self._rotation_tables:
            digest.update(table.tobytes())
        size = self.decoder.config.vocab_size
        for number in range(PROBE):
            digest.update(self.weights().tobytes())
            self.append((number * 7919 + 13) % size)
        self.reset()
        return digest.digest()


def model_hash(model: Transformer, tokenizer: Tokenizer, start: int | None) -> bytes:
    """16 bytes that change with anything predictions or tokens depend on, wherever the model lies."""
    config, weights = merge(model.config, dict(model.named_parameters()))
    shape = {name: value for name, value in to_dict(_as_version_1(config)).items() if name not in NOT_PREDICTING}
    if model.config.attention_residual:
        del shape["attention_residual"]
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([shape, start, tokenizer.to_json()], sort_keys=True).encode())
    for name, parameter in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(parameter.detach().contiguous().numpy().tobytes())
    return digest.digest()


def _as_version_1(config: ModelConfig) -> ModelConfig:
    """The configuration with its sizes filled in as files of version 1 have them in their hash."""
    original = 0 if config.rotary_scaling == "none" else config.sizes.rotary_original_context
    return replace(config.resolved(), rotary_original_context=original)
