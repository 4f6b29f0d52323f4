"""A model ready to decode: several positions go through the model, a single one of every row through compiled code."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from limpid.config import WeightFormat
from limpid.errors import ConfigError
from limpid.model.cache import Cache
from limpid.model.linear import merge
from limpid.model.observe import Observe
from limpid.model.transformer import Transformer

COMPILED_FORMATS = (torch.float32, torch.float64)


def resolve_format(model: Transformer, weights: WeightFormat) -> WeightFormat:
    """The format in which to read a model's matrices.

    Raises  ConfigError for a narrow format beside float64
    """
    if model.compute == torch.float64:
        if weights in ("bf16", "int8"):
            raise ConfigError(f"weights are to be read as {weights}, but the model computes in fp64: take fp32")
        return "fp32"
    if weights != "auto":
        return weights
    _, merged = merge(model.config, dict(model.named_parameters()))
    matrices = [tensor for tensor in merged.values() if tensor.ndim == 2]
    whole = all(torch.equal(matrix, matrix.to(torch.bfloat16).to(matrix.dtype)) for matrix in matrices)
    return "bf16" if whole else "fp32"


def in_format_of_weights(model: Transformer) -> Transformer:
    """The model with the same weights, computing in their format where that is wider and a processor holds them."""
    kept = model.embed.tokens.weight
    if kept.dtype == model.compute or kept.dtype not in COMPILED_FORMATS or kept.device.type != "cpu":
        return model
    wide = Transformer(model.config, kept.dtype)
    wide.load_state_dict(model.state_dict(), assign=True)
    return wide


class Decoder:
    """A transformer whose weights no longer change, with a copy of them laid out for decoding.

    Same values as `Transformer` but for rounding. A model that computes in 16 bits beside float32 weights decodes in
    float32, for which there is compiled code; one whose weights have 16 bits goes through the model alone.
    """

    def __init__(self, model: Transformer, weights: WeightFormat = "auto") -> None:
        """Weights are read as they are, as bf16 or as int8; auto takes bf16 where that changes none of them."""
        model = in_format_of_weights(model)
        self.model, self.config, self.compute = model.eval(), model.config, model.compute
        self.position_decoder = None
        kept = model.embed.tokens.weight
        self.device = kept.device
        if self.compute in COMPILED_FORMATS and kept.dtype == self.compute and kept.device.type == "cpu":
            from limpid.generation.cpu.position import PositionDecoder

            self.position_decoder = PositionDecoder(model, resolve_format(model, weights))

    @classmethod
    def of(cls, model: Transformer | Decoder) -> Decoder:
        """A decoder of `model`, which may be one already."""
        return model if isinstance(model, Decoder) else cls(model)

    def cache(self, batch: int, capacity: int, padding: Int[Tensor, " batch"] | None = None) -> Cache:
        """Room for keys and values, where the weights lie."""
        return Cache(self.config, batch, capacity, self.compute, padding, self.device)

    def __call__(
        self,
        tokens: Int[Tensor, "batch position"],
        cache: Cache,
        last_only: bool = True,
        observe: Observe | None = None,
    ) -> Float[Tensor, "batch _ vocab"]:
        """Logits of `tokens`, which continue what the cache holds; on the processor, where the next one is drawn.

        Raises  IndexError beyond the context, where no position was learned or tabulated
        """
        unused = 0 if cache.padding is None else int(cache.padding.min())
        last = cache.length - unused + tokens.shape[1] - 1
        if last >= self.config.context_length:
            raise IndexError(f"position {last} lies outside the context of {self.config.context_length}")
        if tokens.shape[1] == 1 and self.position_decoder is not None:
            return self.position_decoder(tokens, cache, observe)
        logits: Tensor = self.model(tokens.to(self.device), cache, last_only, observe=observe)
        return logits.cpu()
