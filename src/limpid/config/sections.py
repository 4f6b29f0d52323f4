"""The configuration: frozen dataclasses that are at once the TOML file, the flags and the run's record."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

from limpid.config.domain import Count, Fraction, NotNegative, Positive, Share, Whole, Within
from limpid.config.model import ModelConfig
from limpid.config.options import Checked, require
from limpid.config.parallel import typed
from limpid.config.tuning import TuneConfig

Precision = Literal["auto", "bf16", "fp16", "fp32", "fp64"]
Switch = Literal["auto", "on", "off"]
OptimizerName = Literal["adamw", "muon", "adam", "momentum", "sgd"]
ReportTo = Literal["none", "tensorboard", "wandb", "trackio"]
ScheduleName = Literal["cosine", "cosine_restarts", "polynomial", "linear", "constant", "warmup_stable_decay"]


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
    leave_out: str | None = None
    """File of documents to pass over, as `limpid data duplicates` and `limpid data decontaminate` write it."""

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
    parallel: str = ""
    """How processes of torchrun divide a step, with commas: replicate=N, shard=N, tensor=N, pipeline=N; all shard."""
    timeout: Count = 1800
    """Seconds that processes of one run wait for each other before it ends and names the one that they waited for."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            "none" not in self.report_to or {*self.report_to} == {"none"},
            f"report_to is {','.join(self.report_to)}: name trackers, or none alone",
        )
        typed(self.parallel)
        trackers = dict.fromkeys(name for name in self.report_to if name != "none")
        object.__setattr__(self, "report_to", tuple(trackers))


@dataclass(frozen=True, repr=False)
class TrainConfig(Checked):
    """Everything that a run depends on."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    update: UpdateConfig = field(default_factory=UpdateConfig)
    run: RunConfig = field(default_factory=RunConfig)
    tune: TuneConfig | None = None
    """What the run tunes a model to; none trains on plain text."""
