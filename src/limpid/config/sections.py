"""The configuration: frozen dataclasses that are at once the TOML file, the flags and the run's record."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

from limpid.config.domain import Count, Fraction, NotNegative, Positive, Share, Whole, Within
from limpid.config.options import Checked, require

Precision = Literal["auto", "bf16", "fp16", "fp32", "fp64"]
Switch = Literal["auto", "on", "off"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]
OptimizerName = Literal["adamw", "muon", "adam", "momentum", "sgd"]
ReportTo = Literal["none", "tensorboard", "wandb", "trackio"]
ScheduleName = Literal["cosine", "cosine_restarts", "polynomial", "linear", "constant", "warmup_stable_decay"]


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
    """The change is alpha / rank times B A x."""
    lora_targets: tuple[str, ...] = ()
    """Linear maps of the blocks that have factors, by name or pattern (attention.*, mlp.up); none is all of them."""

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
    def lora_scale(self) -> float:
        """s in y = W x + s B A x. Source: Hu et al. 2021, section 4.1, arXiv:2106.09685."""
        return self.lora_alpha / self.lora_rank

    def resolved(self) -> ModelConfig:
        """The same model with every size given; none of them follows a change any more."""
        return replace(self, **self.sizes._asdict())

    def window(self, block: int) -> int | None:
        """How many positions block `block` looks back over (itself included), or None for all."""
        if self.windowed_blocks is None or block in self.windowed_blocks:
            return self.attention_window
        return None


BytesAndMore = Annotated[int, Within("[257, inf)", "256 bytes and the end-of-text token come first")]


@dataclass(frozen=True, repr=False)
class DataConfig(Checked):
    """Where the text comes from and how it becomes tokens."""

    paths: tuple[str, ...] = field(default=(), metadata={"positional": "PATH"})
    """Files, folders, globs, hf:NAME:CONFIG:SPLIT, or - for standard input; none is Python's standard library."""
    text_field: str = "text"
    """Field of a JSON record, or column of a table or parquet file, that holds the text or the messages of a chat."""
    tokenizer: str = "bpe"
    """bpe (byte-level, trained on the corpus), bytes, characters, or the path of a tokenizer.json."""
    tokenizer_vocab_size: BytesAndMore | None = None
    """Vocabulary of a trained BPE, tokens; none chooses from the size of the corpus."""
    validation_fraction: Annotated[float, Within("(0, 1)", "for example 0.1")] = 0.1
    """Share of the documents (of the text, when there is only one) held out."""
    validation: tuple[str, ...] = ()
    """Text to validate on, which is never trained on; once for each. NAME=PATH has a loss of its own, by that name."""
    weights: tuple[Positive, ...] = ()
    """One per path: its share of the rows, however long it is; none takes every document as often."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not self.weights or len(self.weights) == len(self.paths),
            f"weights are {len(self.weights)} and paths {len(self.paths)}: give one weight per path, in their order",
        )
        for given in self.validation:
            require(bool(_named(given)[1]), f"validation is {given}: expected a file or folder, or NAME=PATH")
        for name in self.validation_sets:
            require(
                name != "ema" and not name.endswith("_ema"),
                f"validation names a set {name}, which in metrics.jsonl is the average of the weights: rename it",
            )

    @property
    def validation_paths(self) -> tuple[str, ...]:
        """What to validate on, without names."""
        return tuple(path for _, path in map(_named, self.validation))

    @property
    def validation_sets(self) -> dict[str, tuple[int, ...]]:
        """Names of the sets to validate on, in order, and which of the paths each holds; those without one are ""."""
        names = [name for name, _ in map(_named, self.validation)]
        return {one: tuple(i for i, name in enumerate(names) if name == one) for one in dict.fromkeys(names)}


def _named(given: str) -> tuple[str, str]:
    """The name and the path of NAME=PATH; a path alone has none, and ./a=b.txt is one."""
    name, is_named, path = given.partition("=")
    return (name, path) if is_named and re.fullmatch(r"[\w.-]+", name) else ("", given)


USUAL_WARMUP = 20
"""Steps of warm-up of a run that is long enough for them."""


@dataclass(frozen=True, repr=False)
class UpdateConfig(Checked):
    """How gradients become new parameters."""

    optimizer: OptimizerName = "adamw"
    """Update rule; muon makes the steps of matrices inside blocks orthogonal, and moves all else by adamw."""
    learning_rate: NotNegative = 2e-3
    """Peak learning rate."""
    beta1: Fraction = 0.9
    """Decay of the first moment (and of momentum)."""
    beta2: Fraction = 0.95
    """Decay of the second moment."""
    eps: NotNegative = 1e-8
    """ε added to √v̂, in the unit of a gradient."""
    weight_decay: NotNegative = 0.1
    """λ: decoupled on matrices for adamw; λθ joins the gradient of matrices for the other rules."""
    frozen: tuple[str, ...] = ()
    """Parameters that stay as they are, by name or pattern (blocks.0.*, embed.*): for runs that start from a model."""
    max_grad_norm: Annotated[float, Within("(0, inf)", "none never clips")] | None = 1.0
    """Gradients are scaled down to this global norm; none never clips."""
    ema_decay: Fraction = 0.0
    """Decay of the moving average of the weights, which RUN@ema names, such as 0.999; 0 keeps none."""
    schedule: ScheduleName = "cosine"
    """Shape of the learning rate after warm-up."""
    warmup_steps: Whole | None = None
    """Steps of linear warm-up from 0; 20 when left out, and at most a tenth of the run."""
    min_learning_rate_ratio: Share = 0.1
    """Final learning rate as a share of the peak."""
    schedule_cycles: Count = 1
    """cosine_restarts: how many cosines follow one another."""
    schedule_power: Positive = 2.0
    """polynomial: exponent of the decay."""
    decay_fraction: Share = 0.2
    """warmup_stable_decay: share of the run over which the rate decays at the end."""

    def warmup(self, max_steps: int) -> int:
        """Steps of warm-up in a run of so many steps."""
        return min(USUAL_WARMUP, max_steps // 10) if self.warmup_steps is None else self.warmup_steps


@dataclass(frozen=True, repr=False)
class RunConfig(Checked):
    """How long, how often, and with which numbers."""

    max_steps: Count = 400
    """Updates in the whole run; raise it on resume to extend."""
    batch_size: Count = 16
    """Rows of one micro-batch, each context_length tokens."""
    gradient_accumulation_steps: Count = 1
    """Micro-batches per update; the loss is averaged over all their labels at once."""
    seed: Whole = 0
    """Initial weights, batches and dropout are functions of it."""
    precision: Precision = "auto"
    """Arithmetic of matrix products; auto measures whether bf16 pays on this machine."""
    init_from: str | None = None
    """Hugging Face folder or run to take the initial weights, sizes and tokenizer from."""
    logging_steps: Count = 10
    """Steps between lines on the console (every step is in metrics.jsonl)."""
    eval_steps: Whole = 100
    """Steps between evaluations on the validation split; 0 never."""
    eval_batches: Count = 8
    """Validation batches per evaluation, always the same ones."""
    early_stopping: Whole = 0
    """Evaluations without a lower validation loss after which training ends; 0 never. RUN@best names the best one."""
    sample_steps: Whole = 0
    """Steps between samples of text, kept in samples.jsonl; 0 only at the end, where somebody looks on."""
    sample_prompt: tuple[str, ...] = ("",)
    """Text that samples continue; several times for several. An empty one begins a document."""
    save_steps: Whole = 100
    """Steps between checkpoints; 0 only at the end."""
    save_total_limit: Whole = 3
    """How many periodic checkpoints are kept, besides the one with the lowest validation loss; 0 keeps all."""
    record_steps: tuple[Count, ...] = ()
    """Steps that are recorded for `limpid trace` while training."""
    report_to: tuple[ReportTo, ...] = ()
    """Where else metrics and samples go, several with commas: wandb is Weights & Biases."""
    compile: Switch = "auto"
    """Fuse the blocks' passes over arrays with torch.compile; auto when the run is long enough to pay for compiling."""
    gradient_checkpointing: Switch = "auto"
    """Compute each block's activations again in the backward pass instead of keeping them; auto when memory asks."""
    doctor: bool = True
    """Watch the run and name what is wrong, in findings.jsonl and on the console; it changes no number."""
    threads: Annotated[int, Within("[0, 8192]", "Linux runs on no more processors")] = 0
    """Processor threads; 0 leaves PyTorch's choice. A resumed run keeps them: sums depend on it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            "none" not in self.report_to or {*self.report_to} == {"none"},
            f"report_to is {','.join(self.report_to)}: name trackers, or none alone",
        )
        trackers = dict.fromkeys(name for name in self.report_to if name != "none")
        object.__setattr__(self, "report_to", tuple(trackers))


@dataclass(frozen=True, repr=False)
class TrainConfig(Checked):
    """Everything that a run depends on."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    update: UpdateConfig = field(default_factory=UpdateConfig)
    run: RunConfig = field(default_factory=RunConfig)


WeightFormat = Literal["auto", "fp32", "bf16", "int8"]
StoredAs = Literal["fp32", "fp16", "bf16", "q8_0"]
"""Formats of matrices in files for other programs; q8_0 is llama.cpp's: 32 integers of 8 bits and a scale."""


DEFAULT_TEMPERATURE = 0.8
SMALLEST_NORMAL = 2.0**-126
"""Of float32."""


@dataclass(frozen=True, repr=False)
class Sampling(Checked):
    """How text is continued."""

    max_new_tokens: Count = field(default=200, metadata={"short": "n"})
    """Tokens to add at most."""
    temperature: Annotated[float, Within("[0, inf)", "0 is greedy")] | None = field(
        default=None, metadata={"short": "t"}
    )
    """Logits are divided by it; 0 takes the likeliest token each time; none is 0.8."""
    top_k: Whole = field(default=0, metadata={"short": "k"})
    """Only the k likeliest tokens may be drawn; 0 all of them."""
    top_p: Annotated[float, Within("(0, 1]", "1 allows every token")] = 1.0
    """Nucleus: only the fewest likeliest tokens whose probabilities reach p together."""
    min_p: Annotated[float, Within("[0, 1]", "0 allows every token")] = 0.0
    """Only tokens at least min_p times as likely as the likeliest."""
    repetition_penalty: Positive = 1.0
    """Logits of tokens that occurred are divided by it (multiplied, where negative)."""
    num_beams: Count = 1
    """Beam search over this many continuations instead of drawing."""
    length_penalty: Annotated[float, Within("[-16, 16]", "a length to a larger power leaves float64")] = 1.0
    """A beam's log-probability is divided by its length to this power."""
    stop: tuple[str, ...] = field(default=(), metadata={"escapes": True})
    """Text that ends the continuation, and is cut off; \\n is a line break; may be given several times."""
    seed: Whole = 0
    """Draws are a function of it and of the prompt's place in the batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(all(self.stop), "stop is an empty text: every continuation would end before it begins")
        drawing = {"temperature": None, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        ignored = [name for name, unset in drawing.items() if getattr(self, name) != unset]
        require(
            self.num_beams == 1 or not ignored,
            f"num_beams is {self.num_beams}: beam search draws nothing, so {' and '.join(ignored)} would do nothing; "
            "leave one or the other out",
        )
        require(
            self.num_beams > 1 or self.length_penalty == 1,
            f"length_penalty is {self.length_penalty}: it weighs beams against each other; give --num-beams too",
        )

    @property
    def heat(self) -> float:
        """The temperature that is drawn at."""
        return DEFAULT_TEMPERATURE if self.temperature is None else self.temperature

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken: at temperature 0, and at those that float32 cannot tell from it."""
        return self.heat < SMALLEST_NORMAL

    @property
    def plain(self) -> bool:
        """Whether every token may be drawn as the model has it."""
        return self.top_k == 0 and self.top_p == 1 and self.min_p == 0 and self.repetition_penalty == 1
