"""The model's section of the configuration: which mathematics, in which sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Literal, NamedTuple

from limpid.config.domain import Count, Fraction, NotNegative, Positive, Whole
from limpid.config.options import Checked, require

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]
Head = Literal["vocabulary", "score", "vocabulary_and_value"]


LowRankScaling = Literal["rank", "sqrt_rank"]
BasePrecision = Literal["fp32", "bf16", "int8"]


def divisor(scaling: LowRankScaling, rank: int) -> float:
    """What the alpha of low-rank factors is divided by."""
    return math.sqrt(rank) if scaling == "sqrt_rank" else rank


class Sizes(NamedTuple):
    """The sizes that follow from others unless they are given."""

    d_head: int
    num_kv_heads: int
    d_ff: int
    rotary_original_context: int


@dataclass(frozen=True, repr=False)
class ModelConfig(Checked):
    """A decoder: which mathematics, in which sizes. The default is Llama's."""

    vocab_size: Whole = 0
    """Rows of the embedding, tokens; 0 takes the tokenizer's."""
    context_length: Count = 128
    """Longest sequence the model attends over, tokens."""
    d_model: Count = 192
    """Width of the residual stream."""
    num_layers: Count = 4
    """Blocks, one after the other."""
    num_heads: Count = 6
    """Query heads per block."""
    num_kv_heads: Count | None = None
    """Key and value heads per block; none is as many as query heads, 1 is multi-query attention."""
    d_head: Count | None = None
    """Width of one head; none is d_model / num_heads."""
    d_ff: Count | None = None
    """Hidden width of the MLP; none is 4 d_model, or 8/3 d_model rounded up to a multiple of 32 when gated."""
    norm: Literal["rms", "layer"] = "rms"
    """Root-mean-square norm (gain only) or layer norm (gain and bias)."""
    norm_placement: Literal["pre", "post", "after_mlp"] = "pre"
    """Norm before each sublayer (with a final norm), after each residual sum, or after the MLP's residual sum only."""
    attention_residual: bool = True
    """Whether attention writes into the residual stream, or takes its place."""
    norm_eps: NotNegative = 1e-5
    """ε inside the root, in the unit of x²."""
    qk_norm: bool = False
    """RMS norm of every query and key head before the positions."""
    positions: Literal["rotary", "learned", "sinusoidal", "none"] = "rotary"
    """How a token learns where it stands."""
    rotary_base: Positive = 10000.0
    """Base of the rotary (and sinusoidal) wavelengths."""
    rotary_layout: Literal["half", "interleaved"] = "half"
    """Which features rotate together: (i, i + d_head/2) or (2i, 2i + 1)."""
    rotary_scaling: Literal["none", "linear", "llama3", "yarn"] = "none"
    """How the rotary frequencies are stretched to contexts longer than those trained on."""
    rotary_factor: Positive = 1.0
    """How much longer the stretched context is."""
    rotary_original_context: Whole | None = None
    """Context before stretching, tokens; none is context_length / rotary_factor."""
    rotary_low: Positive = 1.0
    """llama3: rotations over the original context below which a frequency is divided; yarn: beta_slow."""
    rotary_high: Positive = 4.0
    """llama3: rotations above which a frequency is kept; yarn: beta_fast."""
    rotary_attention_factor: NotNegative = 0.0
    """yarn: factor on queries and keys after rotation; 0 is 0.1 ln(rotary_factor) + 1."""
    attention_window: Count | None = None
    """A position attends to itself and the window - 1 positions before it; none is all of them."""
    windowed_blocks: tuple[Whole, ...] | None = None
    """Blocks that the window applies to; none is every block."""
    attention_bias: bool = False
    """Biases of the query, key and value projections."""
    attention_output_bias: bool = False
    """Bias of attention's output projection."""
    mlp: Literal["gated", "plain"] = "gated"
    """f(x W_gate) ⊙ (x W_up) W_output, or f(x W_up) W_output."""
    activation: Activation = "silu"
    """The MLP's f; gated with silu is SwiGLU."""
    mlp_bias: bool = False
    """Biases of the MLP's projections."""
    head: Head = "vocabulary"
    """What the last hidden state becomes: a logit for each token; one number, as of a reward model; or logits and,
    beside them, the value of what was read so far, as PPO learns it."""
    tied: bool = True
    """The output matrix is the token embedding."""
    dropout: Fraction = 0.0
    """Probability that an entry of the embeddings, attention weights or sublayer outputs is dropped in training."""
    init_std: NotNegative = 0.02
    """Standard deviation of initial weights."""
    scaled_residual_init: bool = True
    """Divide the init of the two matrices that write to the residual stream by √(2 num_layers)."""
    lora_rank: Whole = 0
    """Rank of the factors B A beside the linear maps, which alone are trained then; 0 is none."""
    lora_alpha: Positive = 16.0
    """The change is alpha / rank times B A x, or alpha / √rank times."""
    lora_scaling: LowRankScaling = "rank"
    """What alpha is divided by: rank, or sqrt_rank, with which gradients keep their size at large ranks (rsLoRA)."""
    use_dora: bool = False
    """Learn the length of each row of W + s B A apart from its direction (DoRA)."""
    init_lora_weights: Literal["zero", "pissa"] = "zero"
    """How factors begin: B at zero, or both at the largest singular values of W, which keeps the rest (PiSSA)."""
    lora_dropout: Fraction = 0.0
    """Probability that an entry of what the factors read is dropped in training; the maps themselves read all of it."""
    lora_targets: tuple[str, ...] = ()
    """Linear maps of the blocks that have factors, by name or pattern (attention.*, mlp.up); none is all of them."""

    base_precision: BasePrecision = "fp32"
    """How the frozen matrices of the blocks are held beside low-rank factors, which stay in float32 (QLoRA)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.d_head is not None or self.d_model % self.num_heads == 0,
            f"d_model {self.d_model} does not divide into num_heads {self.num_heads} equal heads: "
            "change one of them or give d_head",
        )
        sizes = self.sizes
        require(
            self.num_heads % sizes.num_kv_heads == 0,
            f"num_kv_heads {sizes.num_kv_heads} does not divide num_heads {self.num_heads}: each group of query heads "
            "shares one key head",
        )
        if self.positions == "rotary":
            require(
                sizes.d_head % 2 == 0, f"rotary positions turn pairs of features, so d_head {sizes.d_head} must be even"
            )
        if self.positions == "sinusoidal":
            require(
                self.d_model % 2 == 0, f"sinusoidal positions come in pairs, so d_model {self.d_model} must be even"
            )
        require(
            self.rotary_scaling not in ("llama3", "yarn") or self.rotary_low < self.rotary_high,
            f"rotary_low {self.rotary_low} is not below rotary_high {self.rotary_high}: between them the frequencies "
            "go over from divided to kept",
        )
        for pattern in self.lora_targets:
            require(bool(self.lora_rank), f"lora_targets names {pattern}, but lora_rank is 0: give it too")
            require(
                any(fnmatchcase(name, pattern) for name in self.linear_maps),
                f"lora_targets names {pattern!r}, which no linear map is called: they are "
                f"{', '.join(self.linear_maps)}",
            )
        for block in self.windowed_blocks or ():
            require(
                block < self.num_layers,
                f"windowed_blocks names block {block}, but blocks are 0 … {self.num_layers - 1}",
            )

    @cached_property
    def sizes(self) -> Sizes:
        """What the sizes that were left open come to; worked out here, never stored, so that they follow a change."""
        hidden = 32 * -(-8 * self.d_model // 96) if self.mlp == "gated" else 4 * self.d_model
        original = self.context_length if self.rotary_scaling == "none" else self.context_length / self.rotary_factor
        return Sizes(
            d_head=self.d_head or self.d_model // self.num_heads,
            num_kv_heads=self.num_kv_heads or self.num_heads,
            d_ff=self.d_ff or hidden,
            rotary_original_context=self.rotary_original_context or max(1, int(original)),
        )

    @property
    def linear_maps(self) -> tuple[str, ...]:
        """Names of a block's linear maps."""
        gate = ("mlp.gate",) if self.mlp == "gated" else ()
        attention = ("query", "key", "value", "output")
        return (*(f"attention.{name}" for name in attention), *gate, "mlp.up", "mlp.output")

    def adapted(self, linear_map: str) -> bool:
        """Whether a linear map of the blocks, such as attention.query, has low-rank factors beside it."""
        return bool(self.lora_rank) and any(fnmatchcase(linear_map, pattern) for pattern in self.lora_targets or ("*",))

    @property
    def drops(self) -> bool:
        """Whether a step of training depends on masks that are drawn."""
        return bool(self.dropout or (self.lora_rank and self.lora_dropout))

    @property
    def lora_scale(self) -> float:
        """s in y = W x + s B A x. Source: Hu et al. 2021, section 4.1, arXiv:2106.09685; with the root of the rank
        Kalajdzievski 2023, eq. 5, arXiv:2312.03732."""
        return self.lora_alpha / divisor(self.lora_scaling, self.lora_rank)

    def without_factors(self) -> ModelConfig:
        """The same model without low-rank factors."""
        return replace(
            self,
            lora_rank=0,
            lora_alpha=ModelConfig.lora_alpha,
            lora_scaling="rank",
            use_dora=False,
            init_lora_weights="zero",
            lora_dropout=0.0,
            lora_targets=(),
            base_precision="fp32",
        )

    def without_value(self) -> ModelConfig:
        """The same model without a value function beside its vocabulary."""
        return replace(self, head="vocabulary") if self.head == "vocabulary_and_value" else self

    def resolved(self) -> ModelConfig:
        """The same model with every size given; none of them follows a change any more."""
        return replace(self, **self.sizes._asdict())

    def window(self, block: int) -> int | None:
        """How many positions block `block` looks back over (itself included), or None for all."""
        if self.windowed_blocks is None or block in self.windowed_blocks:
            return self.attention_window
        return None
