"""What each verb of the command line can be asked: its words and options, with their help."""

from __future__ import annotations

from dataclasses import dataclass, field

from limpid.config import DataConfig, ModelConfig, RunConfig, Sampling, UpdateConfig, WeightFormat


@dataclass(frozen=True)
class TrainFlags:
    """Train a model on text, or continue a run."""

    config: str | None = None
    """File of options: TOML, JSON or YAML; flags win over it."""
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
