"""Decoding: several positions go through the model, a single one of every row through its compiled twin."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from limpid.model.cache import Cache
from limpid.model.transformer import Transformer

FORMATS = (torch.float32, torch.float64)


class Decoder:
    """A transformer whose weights no longer change, with a copy of them laid out for decoding.

    Same values as `Transformer` but for rounding. Other formats than float32 and float64 go through the model alone.
    """

    def __init__(self, model: Transformer) -> None:
        self.model, self.config, self.compute = model.eval(), model.config, model.compute
        self.one_position = None
        if self.compute in FORMATS and model.embed.tokens.weight.dtype == self.compute:
            from limpid.model.one_position import OnePosition

            self.one_position = OnePosition(model)

    @classmethod
    def of(cls, model: Transformer | Decoder) -> Decoder:
        """`model` itself where it is one already."""
        return model if isinstance(model, Decoder) else cls(model)

    def __call__(
        self, tokens: Int[Tensor, "batch position"], cache: Cache, last_only: bool = True
    ) -> Float[Tensor, "batch position vocab"]:
        """Logits of `tokens`, which continue what the cache holds.

        Raises  IndexError beyond the context, where no position was learned or tabulated
        """
        unused = 0 if cache.padding is None else int(cache.padding.min())
        last = cache.length - unused + tokens.shape[1] - 1
        if last >= self.config.context_length:
            raise IndexError(f"position {last} lies outside the context of {self.config.context_length}")
        if tokens.shape[1] == 1 and self.one_position is not None:
            return self.one_position(tokens, cache)
        logits: Tensor = self.model(tokens, cache, last_only)
        return logits
