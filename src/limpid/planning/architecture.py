"""What a published transformer is made of, as far as counting goes: wider than what limpid can train."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal

from limpid.config import ModelConfig
from limpid.config.options import Checked, require
from limpid.planning.number_formats import ADDRESSABLE
from limpid.planning.recurrent import Recurrent

Norm = Literal["layer", "layer_no_bias", "rms", "none"]
QKNorm = Literal["none", "head", "head_layer", "heads", "all"]


@dataclass(frozen=True)
class Norms(Checked):
    """Which norms there are, and what they learn."""

    norm: Norm = "layer"
    """Gain and bias, gain only (centred or not), or nothing learned."""
    norms_per_layer: int = 2
    final_norm: bool = True
    embedding_norm: bool = False
    qk_norm: QKNorm = "none"
    """Of queries and keys: gains that heads share (head_layer: with biases), per head, or over all heads."""


@dataclass(frozen=True)
class Biases(Checked):
    """Which products have a bias."""

    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False


@dataclass(frozen=True)
class Embedding(Checked):
    """What the residual stream begins with besides the token's vector."""

    learned_positions: int = 0
    """Rows of the position table."""
    token_types: int = 0
    embedding_width: int = 0
    """Width of the embedding where it is not d_model: two matrices then lead in and out."""


@dataclass(frozen=True)
class Output(Checked):
    """How the last vectors become logits."""

    head: bool = True
    """Whether there is an output matrix at all; encoders have none."""
    tied: bool = True
    """The output matrix is the embedding."""
    pooler: bool = False
    """BERT's dense layer over the first position."""
    labels: int = 0
    """Numbers that a head gives in the place of logits or beside them: 1 for a reward model or a value function."""


@dataclass(frozen=True)
class SlidingWindow(Checked):
    """Attention layers that look back over a window only."""

    window: int
    """Positions."""
    windowed_layers: int


@dataclass(frozen=True)
class Experts(Checked):
    """A mixture of experts in place of the MLP."""

    num_experts: int
    experts_per_token: int
    d_ff_expert: int
    shared_d_ff: int = 0
    """Width of the expert that every token goes through."""
    shared_gate: bool = False
    router_bias: bool = False
    dense_layers: int = 0
    """Blocks whose MLP is a plain one, d_ff wide, beside blocks of experts."""


@dataclass(frozen=True)
class LatentAttention(Checked):
    """Keys and values compressed into one vector per token (DeepSeek)."""

    kv_latent: int
    """Rank of the compressed keys and values; their shared rotary part comes on top."""
    query_latent: int
    """Rank of the compressed queries; 0 where they are not."""
    d_rotary: int
    """Rotary features of a query or key; d_head counts the others."""
    d_value: int
    """Width of a value head."""


@dataclass(frozen=True)
class Architecture(Checked):
    """Sizes and parts of a model. Every size has one name in all parts, the one that equations use."""

    name: str
    vocab_size: int
    d_model: int
    num_layers: int
    """Decoder blocks, or the blocks of an encoder that stands alone."""
    num_heads: int
    num_kv_heads: int
    d_head: int
    d_ff: int
    """Width of a plain MLP; 0 where blocks have none."""
    context_length: int = 0
    """Longest sequence it was made for, tokens."""
    gated: bool = False
    encoder_layers: int = 0
    """Blocks of the encoder that the decoder attends to."""
    relative_positions: bool = False
    """Transformer-XL's: a projection of distances, and two vectors per head, in every block."""
    sinks: bool = False
    """One learned score per head that takes up attention."""
    attention_gate: bool = False
    """What attention gives is multiplied by a gate of its own, from the block's input."""
    relative_buckets: int = 0
    """Distances that have a learned score per head, in a table that all blocks of a stack share (T5)."""
    recurrent_layers: int = 0
    """Blocks that carry a state instead of attending."""
    recurrent: Recurrent | None = None
    norms: Norms = field(default_factory=Norms)
    biases: Biases = field(default_factory=Biases)
    embedding: Embedding = field(default_factory=Embedding)
    output: Output = field(default_factory=Output)
    sliding_window: SlidingWindow | None = None
    experts: Experts | None = None
    latent_attention: LatentAttention | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in self.sizes.items():
            require(0 <= value < ADDRESSABLE, f"{self.name}: {name} is {value:.3g}, expected a size below 2^64")
        if self.experts is not None:
            require(
                self.experts.experts_per_token <= self.experts.num_experts,
                f"{self.name}: {self.experts.experts_per_token} experts per token, but there are only "
                f"{self.experts.num_experts}",
            )

    @property
    def sizes(self) -> dict[str, int]:
        """Every size and switch by its name: what equations are evaluated on."""
        parts = [self, *(getattr(self, part) for part in (*PARTS, "recurrent"))]
        return {name: int(value) for part in parts if part is not None for name, value in vars(part).items()
                if isinstance(value, int)}  # fmt: skip

    @property
    def attention_layers(self) -> int:
        """Blocks of the decoder that attend to earlier positions."""
        return self.num_layers - self.recurrent_layers

    @property
    def parallel(self) -> bool:
        """Whether attention and MLP read the same norm, side by side."""
        return self.norms.norms_per_layer == 1 and self.attention_layers > 0

    @property
    def expert_layers(self) -> int:
        """Blocks whose MLP is a choice of experts."""
        return 0 if self.experts is None else self.num_layers - self.experts.dense_layers


SIZES = ("vocab_size", "d_model", "num_layers", "num_heads")
"""Sizes that every model has."""
PARTS: dict[str, Any] = {
    "norms": Norms, "biases": Biases, "embedding": Embedding, "output": Output, "sliding_window": SlidingWindow,
    "experts": Experts, "latent_attention": LatentAttention,
}  # fmt: skip


def architecture(name: str = "model", **sizes: Any) -> Architecture:
    """An architecture from sizes and switches by name, each put into its part; what is left out is absent.

    num_kv_heads is num_heads when left out, d_head d_model / num_heads.
    Raises  ConfigError for a size that is missing or does not fit the others
    """
    for size in SIZES:
        require(sizes.get(size, 0) >= 1, f"{name}: {size} is {sizes.get(size, 0)}, expected at least 1")
    sizes.setdefault("d_ff", 0)
    for size, value in sizes.items():
        require(not isinstance(value, int) or value >= 0, f"{name}: {size} is {value}, expected 0 or more")
    d_model, num_heads = sizes["d_model"], sizes["num_heads"]
    if not sizes.get("d_head"):
        require(
            d_model % num_heads == 0,
            f"{name}: d_model {d_model} does not divide into num_heads {num_heads} equal heads: "
            "give the width of a head",
        )
        sizes["d_head"] = d_model // num_heads
    sizes["num_kv_heads"] = sizes.get("num_kv_heads") or num_heads
    parts: dict[str, Any] = {}
    for part, kind in PARTS.items():
        own = {entry.name: sizes.pop(entry.name) for entry in fields(kind) if entry.name in sizes}
        first = fields(kind)[0]  # its main size, where a model may lack the part
        parts[part] = kind(**own) if first.default is not MISSING or own.get(first.name) else None
    return Architecture(name, **sizes, **parts)


def of_config(config: ModelConfig, name: str = "model") -> Architecture:
    """The architecture of a model that limpid trains."""
    windows = [config.window(block) for block in range(config.num_layers)]
    return architecture(
        name,
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.sizes.num_kv_heads,
        d_head=config.sizes.d_head,
        d_ff=config.sizes.d_ff,
        context_length=config.context_length,
        gated=config.mlp == "gated",
        norm="rms" if config.norm == "rms" else "layer",
        final_norm=config.norm_placement == "pre",
        qk_norm="head" if config.qk_norm else "none",
        learned_positions=config.context_length if config.positions == "learned" else 0,
        head=config.head != "score",
        tied=config.tied and config.head != "score",
        labels=int(config.head != "vocabulary"),
        qkv_bias=config.attention_bias,
        out_bias=config.attention_output_bias,
        mlp_bias=config.mlp_bias,
        window=config.attention_window or 0,
        windowed_layers=sum(window is not None for window in windows),
    )
