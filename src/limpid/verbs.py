"""What each verb of the command line can be asked: its words and options, with their help."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from limpid.config import DataConfig, ModelConfig, RunConfig, Sampling, UpdateConfig, WeightFormat


@dataclass(frozen=True)
class TrainFlags:
    """Train a model on text, or continue a run."""

    config: str | None = None
    """File of options: TOML, JSON or YAML; flags win over it."""
    recipe: str | None = None
    """Named set of options to start from: fast (Muon, normed queries and keys, squared relu); file and flags win."""
    minutes: float | None = None
    """Train for so long on this machine, by the fast recipe: measures it, and chooses the size unless it is given."""
    name: str | None = None
    """Name of the run under runs/, or a path; the next free number when left out."""
    resume: str | None = None
    """Run to continue, bit for bit; with --max-steps it is extended."""
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    update: UpdateConfig = field(default_factory=UpdateConfig)
    run: RunConfig = field(default_factory=RunConfig)


@dataclass(frozen=True)
class TraceFlags:
    """Open one step: redo it in NumPy float64 by hand-written derivatives, and compare all of it."""

    what: str = field(default="last", metadata={"positional": "RUN"})
    """Run, recorded step (.safetensors), or Hugging Face folder (with --text)."""
    step: int | None = None
    """Which step of the run, 1 being the first; the last one when left out."""
    text: str | None = None
    """Take one step of this model on this text."""
    quantity: str | None = None
    """Show one quantity, gradient, moment or parameter in full: a name, or TransformerLens's or Hugging Face's."""
    everything: bool = False
    """Do not fold blocks that look alike."""
    json: bool = False
    """Print the step as one JSON document."""
    output: str | None = None
    """Where to keep the recorded step of --text."""
    worked: bool = False
    """Open the worked model instead: 3,456 parameters, every number of its step."""


@dataclass(frozen=True)
class ExplainFlags:
    """Explain one number of a step, like 'blocks.0.attention.scores[0, 1, 5, 3]': its making, gradient, update."""

    words: tuple[str, ...] = field(default=(), metadata={"positional": "RUN ENTRY"})
    """Run or recorded step (`last` when left out), and the entry; without an index, its largest one."""
    step: int | None = None
    """Which step of the run, 1 being the first; the last one when left out."""
    worked: bool = False
    """Explain the worked model's step instead of a run's."""
    json: bool = False
    """Print one JSON object."""


@dataclass(frozen=True)
class CompareFlags:
    """Rounding or bug? Compare two ways to the same numbers, quantity by quantity, within computed bounds.

    A way is a model, then `:` and words for how it runs. Paths: plain (every quantity formed), fast (as it trains),
    compiled, cached (one position at a time), sampler (as it generates), transformers. Precisions: fp64, fp32, fp16,
    bf16. Adapters: lora=DIR beside the weights, merged=DIR added in. processes=N shares the batch among N. So
    `limpid compare last last:transformers`, `limpid compare last:fp32 last:bf16`, `limpid compare A B`.
    """

    words: tuple[str, ...] = field(default=(), metadata={"positional": "A B"})
    """Two ways; each a run, `last` or a Hugging Face folder, with :WORDS for path and precision."""
    text: str | None = None
    """Compare on this text instead of random tokens."""
    backward: bool = True
    """Compare gradients too."""
    json: bool = False
    """Print one JSON document."""


@dataclass(frozen=True)
class InspectFlags:
    """Structure inside a trained model, on one text; with --landscape, the curvature of its loss."""

    what: str = field(default="last", metadata={"positional": "MODEL"})
    """Run, name under runs/, `last`, or Hugging Face folder (with --text)."""
    text: str | None = None
    """The text to look at; the start of a run's held-out text when left out."""
    position: int = -1
    """Whose next-token logit is taken apart: 0 is the first position, -1 the last."""
    token: str | None = None
    """Which token's logit; the likeliest when left out."""
    word: tuple[str, ...] = ()
    """One: its neighbours in the embedding. Three, a b c: what is to c as b is to a."""
    landscape: bool = False
    """Sharpness, spectrum, loss curves and surface, gradient noise, and what keeps gradients alive; takes longer."""
    output: str | None = None
    """Folder for pictures and inspect.json; inspect/ inside a run, MODEL-inspect under runs/ otherwise."""
    json: bool = False
    """Print everything as one JSON document."""


@dataclass(frozen=True)
class DoctorFlags:
    """What is wrong with a run, finished or running, ours or not: the cause, its number, what to change.

    Reads run folders, trainer_state.json, TensorBoard events, W&B exports, nanoGPT-style logs, CSV and JSON lines.
    """

    what: str = field(default="last", metadata={"positional": "RUN"})
    """Run, name under runs/, `last`, or any file or folder of logs."""
    preflight: bool = False
    """Examine the run's model, optimizer and next batch instead of its curves."""
    explain: str | None = None
    """One rule: equation, source, threshold, cost; `all` lists the rules."""
    json: bool = False
    """Print one JSON document."""


@dataclass(frozen=True)
class EquationsFlags:
    """Every equation of the mathematics, generated from the code that computes it."""

    words: tuple[str, ...] = field(default=(), metadata={"positional": "WORD"})
    """A name shows one equation in full; other words search names, purposes and sources."""
    branch: str | None = None
    """Only of one branch: linear algebra, probability, calculus, optimisation, information theory."""
    stage: str | None = None
    """Only of one stage of the step: embedding, norm, attention, mlp, logits, loss, backward, update, …"""
    paper: str | None = None
    """Only from sources that hold this text."""
    measure: bool = False
    """Compute now: finite differences, PyTorch, and the published numbers that each reproduces."""
    errata: bool = False
    """Where well-known texts are wrong or loose, with the numbers that show it."""
    json: bool = False
    """Print one JSON document."""


@dataclass(frozen=True)
class PlanFlags:
    """What a model costs: parameters, FLOPs, memory, time, money, and how far its training is from compute-optimal.

    `limpid plan fit RUNS…` fits a scaling law to runs, `limpid plan sweep` trains the runs for one.
    Numbers may be written 70B, 1.4T, 32k, 1e21.
    """

    what: str | None = field(default=None, metadata={"positional": "WHAT"})
    """Published name (gpt2, llama-3-8b), run, `last`, Hugging Face folder, config.json, TOML; the default model."""
    compute: float | None = None
    """Training FLOPs: which size and how many tokens are best."""
    params: float | None = None
    """Parameters: for how many tokens this size is the best; with --tokens, how far off they are."""
    tokens: float | None = None
    """Tokens to train on."""
    devices: int = 1
    """Devices that train together."""
    device: str | None = None
    """Their kind (a100, h100, h200, b200, rtx-4090, mi300x, …), or `here` to measure this machine."""
    memory: float | None = None
    """GB (10^9 bytes) of one device; --device knows its own."""
    flops: float | None = None
    """FLOP/s of one device's matrix products; --device knows its own."""
    price: float | None = None
    """Dollars per device and hour."""
    utilisation: float | None = None
    """Share of the peak that the model's own FLOPs reach (MFU); 0.4, or what a run measured, when left out."""
    batch_size: int | None = None
    """Sequences of one micro-batch on one replica."""
    context_length: int | None = None
    """Tokens of a sequence; the model's own when left out."""
    gradient_accumulation_steps: int = 1
    """Micro-batches per step."""
    precision: str | None = None
    """fp32, bf16, fp16 (mixed, with fp32 masters), bf16_pure, fp64; bf16 for published models."""
    zero: int = 0
    """ZeRO stage: 1 divides the optimizer's memory among replicas, 2 gradients too, 3 weights too (FSDP)."""
    tensor: int = 1
    """Devices that share each matrix (tensor parallel, with sequence parallel)."""
    pipeline: int = 1
    """Stages of a pipeline."""
    recompute: Literal["none", "selective", "full"] = "none"
    """What is computed again instead of kept: nothing, attention's weights, or each whole block."""
    formed: bool = False
    """Attention keeps its weights instead of running fused."""
    why: str | None = None
    """Show one figure with its equation, the numbers put in, and its source."""
    explain_engine: bool = False
    """Say how limpid would compute this model's training on this machine, and the number that decided each choice."""
    json: bool = False
    """Print one JSON document."""


@dataclass(frozen=True)
class PlanFitFlags:
    """Fit L(N, D) = E + A/N^α + B/D^β to runs, with bootstrap intervals."""

    runs: tuple[str, ...] = field(default=(), metadata={"positional": "RUNS"})
    """Runs, folders of runs, or CSV/JSONL with parameters, tokens (or compute), loss."""
    compute: float | None = None
    """Predict the best size, tokens and loss for this many FLOPs."""
    delta: float = 1e-3
    """Where the Huber loss on log loss turns straight; larger trusts every run more."""
    resamples: int = 200
    """Draws of the bootstrap."""
    level: float = 0.95
    """Probability that an interval is to hold the truth with."""
    seed: int = 0
    """Of the draws."""
    output: str | None = None
    """Folder for pictures: the fit, and iso-FLOP curves."""
    json: bool = False
    """Print one JSON document."""


@dataclass(frozen=True)
class PlanSweepFlags:
    """Train the runs for a scaling law within a time budget, and fit it: several sizes per budget of compute."""

    paths: tuple[str, ...] = field(default=(), metadata={"positional": "PATH"})
    """Text to train on, as for `limpid train`; none is the Python standard library's own text."""
    minutes: float = 10.0
    """Time for all runs together, minutes."""
    budgets: int = 3
    """Budgets of compute, each four times the one before."""
    sizes: int = 4
    """Sizes per budget, around where the best one is expected."""
    name: str = "sweep"
    """Folder under runs/ for the runs; a sweep that was broken off goes on where it stopped."""
    seed: int = 0
    """Of weights, batches and resampling."""
    compute: float | None = None
    """Predict the best size, tokens and loss for this many FLOPs."""
    json: bool = False
    """Print one JSON document."""


@dataclass(frozen=True)
class GenerateFlags:
    """Continue one or more prompts with a run, at its newest checkpoint, or a Hugging Face folder."""

    what: str = field(metadata={"positional": "MODEL"})
    """Run, name under runs/, `last`, or Hugging Face folder."""
    prompts: tuple[str, ...] = field(default=(), metadata={"positional": "PROMPT"})
    """Texts to continue, all at once; none starts a new document."""
    weights: WeightFormat = "auto"
    """Format in which matrices are read at each token: fp32, bf16 (twice as fast), int8; auto loses nothing."""
    json: bool = False
    """Print one JSON object per prompt: text, tokens, why it ended."""
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True)
class ChatFlags:
    """Talk to a model."""

    what: str = field(metadata={"positional": "MODEL"})
    """Run, name under runs/, `last`, or Hugging Face folder."""
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True)
class EvaluateFlags:
    """Loss, perplexity, bits per byte, accuracy and calibration on a text, each with an interval; or answers to tasks.

    Intervals respect that tokens which follow each other are alike. Without a text, a run reads what it held out.
    `limpid evaluate A TEXT --against B` says which model is better, by how much, and how sure that is.
    """

    what: str = field(metadata={"positional": "MODEL"})
    """Run, name under runs/, `last`, or Hugging Face folder."""
    paths: tuple[str, ...] = field(default=(), metadata={"positional": "TEXT"})
    """Files, folders, globs, or - for standard input; plain text, JSON lines, parquet."""
    against: str | None = None
    """Another model, read on the same text and compared in pairs; its tokenizer may differ."""
    tasks: tuple[str, ...] = ()
    """JSONL file of questions (may be given several times): query choices gold, ARC, MMLU, HellaSwag, PIQA."""
    context: int | None = None
    """Tokens that a prediction may see; the model's context when left out."""
    stride: int | None = None
    """Tokens that each window adds; half the context when left out, the context is fastest."""
    convention: Literal["sliding", "transformers"] = "sliding"
    """sliding scores every token; transformers cuts as Hugging Face's guide to perplexity does."""
    max_tokens: int | None = None
    """Read about this many tokens, in documents drawn at random."""
    text_field: str = "text"
    """Field of a JSON line or parquet row that holds the text."""
    confidence: float = 0.95
    """How often intervals are to hold the truth."""
    seed: int = 0
    """Resampling and --max-tokens draw from it."""
    output: str | None = field(default=None, metadata={"short": "o"})
    """Folder for reliability.png; evaluate/ inside a run when left out, none for a Hugging Face folder."""
    json: bool = False
    """Print one JSON document."""


@dataclass(frozen=True)
class CompressFlags:
    """Compress a file of any bytes with a model's predictions: as many bits as the model is surprised by it.

    The original comes back bit for bit on a processor of the same kind, with the same model. Size beside the
    cross-entropy, and beside gzip, xz and zstd, is reported.
    """

    what: str = field(metadata={"positional": "MODEL"})
    """Run, name under runs/, `last`, or Hugging Face folder."""
    file: str = field(default="-", metadata={"positional": "FILE"})
    """File to compress; - for standard input."""
    output: str | None = field(default=None, metadata={"short": "o"})
    """File to write, - for standard output; FILE.limpid when left out."""
    weights: WeightFormat = "auto"
    """Format in which matrices are read: fp32, bf16 (faster), int8; recorded in the file; auto loses nothing."""
    force: bool = field(default=False, metadata={"short": "f"})
    """Replace a file that exists."""
    json: bool = False
    """Print one JSON object."""


@dataclass(frozen=True)
class DecompressFlags:
    """Give back a file that limpid compressed."""

    file: str = field(default="-", metadata={"positional": "FILE"})
    """File to decompress; - for standard input."""
    model: str | None = None
    """The model that it was compressed with; the one that the file names when left out."""
    output: str | None = field(default=None, metadata={"short": "o"})
    """File to write, - for standard output; FILE without .limpid when left out."""
    force: bool = field(default=False, metadata={"short": "f"})
    """Replace a file that exists."""
    json: bool = False
    """Print one JSON object."""
