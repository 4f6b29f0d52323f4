"""Attention: each position gathers the values of those before it, weighted by how well its query meets their keys."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from limpid.config import ModelConfig
from limpid.model.cache import Cache
from limpid.model.dropout import Dropout
from limpid.model.embedding import Angles, rotate
from limpid.model.kernels.attention import attention, causal_mask, short_attention
from limpid.model.kernels.native_attention import native_attention, serves
from limpid.model.linear import linear
from limpid.model.norm import RMSNorm
from limpid.model.observe import FAST, Mode, Part


class Attention(Part):
    """Multi-head attention; heads may share keys and values, look back over a window, norm queries and keys.

    Sources: Vaswani et al. 2017, eq. 1, arXiv:1706.03762; shared heads, Shazeer 2019, arXiv:1911.02150 and
    Ainslie et al. 2023, arXiv:2305.13245; window, Beltagy et al. 2020, arXiv:2004.05150;
    normed queries and keys, Henry et al. 2020, arXiv:2010.04245.
    """

    def __init__(self, config: ModelConfig, block: int) -> None:
        super().__init__(f"blocks.{block}.attention")
        self.config, self.block = config, block
        self.window = config.window(block)
        query, key = config.num_heads * config.sizes.d_head, config.sizes.num_kv_heads * config.sizes.d_head
        d_model, d_head, bias = config.d_model, config.sizes.d_head, config.attention_bias
        self.query = linear(config, f"{self.name}.query", d_model, query, bias, d_head)
        self.key = linear(config, f"{self.name}.key", d_model, key, bias, d_head)
        self.value = linear(config, f"{self.name}.value", d_model, key, bias, d_head)
        self.query_norm = RMSNorm(config.sizes.d_head, config.norm_eps) if config.qk_norm else None
        self.key_norm = RMSNorm(config.sizes.d_head, config.norm_eps) if config.qk_norm else None
        self.output = linear(
            config, f"{self.name}.output", query, d_model, config.attention_output_bias, d_head_in=d_head
        )
        self.weights_dropout = Dropout(f"{self.name}.weights_dropped", config.dropout)
        self.dropout = Dropout(f"{self.name}.dropped", config.dropout)

    def forward(
        self,
        x: Float[Tensor, "batch position d_model"],
        angles: Angles | None,
        mask: Float[Tensor, "query key"] | None = None,
        cache: Cache | None = None,
        mode: Mode = FAST,
    ) -> Float[Tensor, "batch position d_model"]:
        heads = (*x.shape[:2], -1, self.config.sizes.d_head)
        projected = (self.query(x, mode), self.key(x, mode), self.value(x, mode))
        query, key, value = (
            self.report(mode, name, y.view(heads)) for name, y in zip(("query", "key", "value"), projected, strict=True)
        )
        if self.query_norm is not None and self.key_norm is not None:
            query = self.report(mode, "query_norm", self.query_norm(query, mode))
            key = self.report(mode, "key_norm", self.key_norm(key, mode))
        if angles is not None:
            query = self.report(mode, "query_rotated", rotate(query, angles, self.config.rotary_layout, mode))
            key = self.report(mode, "key_rotated", rotate(key, angles, self.config.rotary_layout, mode))
        mixed = self.report(mode, "mixed", self.mixed(query, key, value, mask, cache, mode))
        return self.dropout(self.report(mode, "output", self.output(mixed.flatten(-2), mode)), mode)

    def mixed(
        self,
        query: Float[Tensor, "batch position head d_head"],
        key: Float[Tensor, "batch position kv_head d_head"],
        value: Float[Tensor, "batch position kv_head d_head"],
        mask: Float[Tensor, "query key"] | None,
        cache: Cache | None,
        mode: Mode,
    ) -> Float[Tensor, "batch position head d_head"]:
        """Values by their weights, in the kernel that is the fastest here."""
        plain = mode.plain or (self.training and self.config.dropout > 0)
        if cache is None and not plain and serves(query.device.type, query.dtype, query.shape[-1]):
            return native_attention(query, key, value, self.window)
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        if cache is not None:
            key, value = cache.extend(self.block, key, value)
        visible = None if cache is None else cache.visible(query.shape[2], self.window)
        if plain:
            mixed = self.plain_attention(query, key, value, visible, mode)
        elif mask is None:
            mixed = attention(query, key, value, visible, self.window)
        else:
            mixed = short_attention(query, key, value, mask)
        return mixed.transpose(1, 2)

    def plain_attention(
        self,
        query: Float[Tensor, "batch head query d_head"],
        key: Float[Tensor, "batch kv_head key d_head"],
        value: Float[Tensor, "batch kv_head key d_head"],
        visible: Bool[Tensor, "..."] | None,
        mode: Mode = FAST,
    ) -> Float[Tensor, "batch head query d_head"]:
        """The same as the fused kernels with every quantity formed: scores, weights, mixed."""
        batch, _, positions, d_head = query.shape
        kv_heads = key.shape[1]  # of this process, where heads are spread over several
        grouped = query.view(batch, kv_heads, -1, positions, d_head)  # query heads of each key head
        scores = grouped @ key[:, :, None].transpose(-1, -2) / math.sqrt(d_head)
        scores = self.report(mode, "scores", scores.flatten(1, 2))
        if visible is None:
            visible = causal_mask(positions, self.window, query.device)
        weights = scores.masked_fill(~visible, -math.inf).softmax(-1, dtype=self.softmax_dtype(scores.dtype))
        weights = self.report(mode, "weights", weights.to(scores.dtype))
        weights = self.weights_dropout(weights, mode)
        mixed = weights.view(batch, kv_heads, -1, positions, key.shape[2]) @ value[:, :, None]
        return mixed.flatten(1, 2)

    @staticmethod
    def softmax_dtype(dtype: torch.dtype) -> torch.dtype:
        """Exponentials and their sum are formed in at least float32."""
        return torch.promote_types(dtype, torch.float32)
