"""What a published transformer is made of, as far as counting goes: wider than what limpid can train."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from limpid.config import ModelConfig
from limpid.config.options import check_words, require

Norm = Literal["layer", "layer_no_bias", "rms", "none"]


@dataclass(frozen=True)
class Architecture:
    """Sizes and pieces of a model. The defaults are GPT-2's form without sizes; 0 means that a piece is absent."""

    name: str = "model"
    vocab_size: int = 0
    d_model: int = 0
    num_layers: int = 0
    """Decoder blocks, or the blocks of an encoder that stands alone."""
    num_heads: int = 0
    num_kv_heads: int = 0
    d_head: int = 0
    d_ff: int = 0
    context_length: int = 0
    """Longest sequence it was made for, tokens."""
    gated: bool = False
    norm: Norm = "layer"
    """Gain and bias, gain only (centred or not), or nothing learned."""
    norms_per_layer: int = 2
    final_norm: bool = True
    embedding_norm: bool = False
    qk_norm: Literal["none", "head", "head_layer", "heads", "all"] = "none"
    """Norms of queries and keys: gains that heads share (head_layer: with biases), per head, or over all heads."""
    learned_positions: int = 0
    """Rows of the position table."""
    relative_positions: bool = False
    """Transformer-XL's: a projection of distances, and two vectors per head, in every block."""
    token_types: int = 0
    tied: bool = True
    """The output matrix is the embedding."""
    head: bool = True
    """Whether there is an output matrix at all; encoders have none."""
    head_bias: bool = False
    pooler: bool = False
    """BERT's dense layer over the first position."""
    embedding_width: int = 0
    """Width of the embedding where it is not d_model: two matrices then lead in and out."""
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    num_experts: int = 0
    experts_per_token: int = 0
    d_ff_expert: int = 0
    shared_d_ff: int = 0
    """Width of the expert that every token goes through."""
    shared_gate: bool = False
    router_bias: bool = False
    dense_layers: int = 0
    """Blocks whose MLP is a plain one beside blocks of experts."""
    encoder_layers: int = 0
    """Blocks of the encoder that the decoder attends to."""
    kv_latent: int = 0
    """Rank of the compressed keys and values (latent attention); their shared rotary part comes on top."""
    query_latent: int = 0
    d_rotary: int = 0
    """Rotary features of a query or key under latent attention; d_head counts the others."""
    d_value: int = 0
    """Width of a value head where it is not d_head."""
    value_layers: int = 0
    window: int = 0
    """Positions that windowed layers look back over."""
    windowed_layers: int = 0
    sinks: bool = False
    """One learned score per head that takes up attention."""

    def __post_init__(self) -> None:
        check_words(self)
        for name in ("vocab_size", "d_model", "num_layers", "num_heads", "d_ff"):
            require(getattr(self, name) >= 1, f"{self.name}: {name} is {getattr(self, name)}, expected at least 1")
        fill = object.__setattr__
        if not self.num_kv_heads:
            fill(self, "num_kv_heads", self.num_heads)
        if not self.d_head:
            require(
                self.d_model % self.num_heads == 0,
                f"{self.name}: d_model {self.d_model} does not divide into num_heads {self.num_heads} equal heads: "
                "give the width of a head",
            )
            fill(self, "d_head", self.d_model // self.num_heads)
        if not self.d_value:
            fill(self, "d_value", self.d_head)
        require(
            self.experts_per_token <= self.num_experts,
            f"{self.name}: {self.experts_per_token} experts per token, but there are only {self.num_experts}",
        )

    @property
    def sizes(self) -> dict[str, int]:
        """Every size by its name: what equations are evaluated on."""
        return {
            entry.name: int(getattr(self, entry.name))
            for entry in fields(self)
            if isinstance(getattr(self, entry.name), int)
        }

    @property
    def expert_layers(self) -> int:
        """Blocks whose MLP is a choice of experts."""
        return self.num_layers - self.dense_layers if self.num_experts else 0


def of_config(config: ModelConfig, name: str = "model") -> Architecture:
    """The architecture of a model that limpid trains."""
    windows = [config.window(block) for block in range(config.num_layers)]
    return Architecture(
        name=name,
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        d_head=config.d_head,
        d_ff=config.d_ff,
        context_length=config.context_length,
        gated=config.mlp == "gated",
        norm="rms" if config.norm == "rms" else "layer",
        final_norm=config.norm_placement == "pre",
        qk_norm="head" if config.qk_norm else "none",
        learned_positions=config.context_length if config.positions == "learned" else 0,
        tied=config.tied,
        qkv_bias=config.attention_bias,
        out_bias=config.attention_output_bias,
        mlp_bias=config.mlp_bias,
        window=config.attention_window or 0,
        windowed_layers=sum(window is not None for window in windows),
    )
