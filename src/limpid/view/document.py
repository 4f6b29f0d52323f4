"""What the page is sent, as typed documents; `python -m limpid.view` writes their JSON Schema and TypeScript's types.

Numbers that are not finite are the words nan, inf and -inf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from limpid.doctor.finding import Finding
from limpid.history.summary import State
from limpid.jsonable import Finite
from limpid.metrics import Sample
from limpid.operations.document import RecordingDocument
from limpid.tracing.document import EntryDocument, StepDocument
from limpid.tracing.stations import Station

Missing = Literal["record", "document", "exact"]
"""What has to be made first, by a job: the recorded step, its document, or an array redone in float64."""
SliceKind = Literal["value", "gradient", "exact", "difference", "share"]
JobState = Literal["running", "done", "failed"]
Bounds = Literal["here", "to come", "none"]
"""Of what rounding allows: known, made by a job when asked for, or not to be had."""


@dataclass(frozen=True)
class ErrorDocument:
    """Why there is no answer, in one line."""

    error: str
    missing: Missing | None = None


@dataclass(frozen=True)
class Points:
    """A curve in few points."""

    x: tuple[Finite, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class RunRow:
    """A run as the list shows it: read from the ends of its files, so that long runs cost no more than short ones."""

    name: str
    state: State
    why: str  # it cannot be read, or ended
    step: int
    max_steps: int
    loss: float | None  # nats per token, of the last step
    eval_loss: float | None  # nats per token, of the last evaluation near the end of the file
    num_tokens: int | None
    tokens_per_second: float | None
    last_written: Finite  # seconds since 1970
    tags: tuple[str, ...]
    note: str
    findings: int  # of the doctor, without notices
    curve: Points  # the loss at some steps


@dataclass(frozen=True)
class RunList:
    """Every run of a folder, the one that was written to last first."""

    folder: str
    runs: tuple[RunRow, ...]
    recordings: tuple[str, ...]  # of the calls of a step, beside the runs


@dataclass(frozen=True)
class RunOverview:
    """One run: how it stands, what it was configured to be, what is left of it."""

    row: RunRow
    parameters: int | None
    best_eval_loss: float | None  # nats per token
    config: dict[str, dict[str, Any]]  # by section
    columns: tuple[str, ...]  # of its metrics
    recorded: tuple[int, ...]  # steps
    opened_first: int | None  # the first step that can be opened: replayed where it was not recorded
    opened_last: int | None
    checkpoints: tuple[int, ...]  # the steps that they were saved after
    best_checkpoint: int | None
    findings: tuple[Finding, ...]
    samples: tuple[Sample, ...]  # the newest
    after: str  # where its events go on


@dataclass(frozen=True)
class Column:
    """One column of metrics, in few enough points to draw: the extremes of each stretch, and what is not finite."""

    x: tuple[Finite, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] | None  # of the 95 % interval of a mean
    high: tuple[float, ...] | None
    step: tuple[int, ...]  # that each point is of
    count: int  # points that these were chosen from


@dataclass(frozen=True)
class MetricsDocument:
    """Columns of a run's metrics along one axis."""

    run: str
    along: Literal["step", "tokens", "time"]
    columns: dict[str, Column]
    after: str  # where its events go on


@dataclass(frozen=True)
class StateDocument:
    """How far a run is."""

    state: State
    step: int
    max_steps: int


@dataclass(frozen=True)
class JobDocument:
    """Work that takes long, and how far it is."""

    job: str
    what: str
    state: JobState
    doing: str
    done: int
    total: int | None
    error: str


@dataclass(frozen=True)
class ArrayPlace:
    """An array of a recorded step that slices and tiles can be asked of."""

    shape: tuple[int, ...]
    format: str
    axes: tuple[str, ...]
    kinds: tuple[SliceKind, ...]


@dataclass(frozen=True)
class StepView:
    """A recorded step: its document, its equations to show, and what arrays it has."""

    step: StepDocument
    mathml: dict[str, str]  # by the LaTeX that the document has
    arrays: dict[str, ArrayPlace]
    tokens: tuple[tuple[str, ...], ...]  # the text of every token that the model read, by row
    words: dict[str, str]  # the text of every id in the batch
    record_bytes: int


@dataclass(frozen=True)
class LensToken:
    """A token that would come next."""

    id: int
    text: str
    probability: float


@dataclass(frozen=True)
class LensCell:
    """What the residual stream says of the next token at one position after one block."""

    likeliest: tuple[LensToken, ...]  # the likeliest first
    target: float | None  # probability of the token that comes; None where there is no label
    rank: int | None  # of the token that comes: 1 is the likeliest
    kl: float  # nats, KL(the model's own prediction ‖ this one)


@dataclass(frozen=True)
class LensRow:
    """The residual stream after one block, read out."""

    name: str  # of the stream there
    title: str
    cells: tuple[LensCell, ...]  # by position


@dataclass(frozen=True)
class LensView:
    """What would be predicted if the residual stream ended after each block: the logit lens of one row of the batch."""

    row: int
    first: int  # position
    positions: int  # of the whole row
    targets: tuple[str | None, ...]  # the text that comes after each position
    layers: tuple[LensRow, ...]


@dataclass(frozen=True)
class StepPoint:
    """A number of one recorded step."""

    step: int
    value: float


@dataclass(frozen=True)
class OverSteps:
    """An entry, or the norm of an array, over the recorded steps of a run that have it."""

    run: str
    name: str
    is_norm: bool
    points: tuple[StepPoint, ...]
    left: int  # recorded steps that were not read yet: asked again, they are


@dataclass(frozen=True)
class PlacedFinding:
    """A finding of the doctor, and where in a step it points."""

    number: int  # among the findings of the run
    finding: Finding
    station: str  # its title
    name: str | None  # an array of the step
    index: tuple[int, ...]  # of an entry; empty where it names none


@dataclass(frozen=True)
class FindingsView:
    """The doctor's findings of a run that point into one of its steps."""

    findings: tuple[PlacedFinding, ...]


@dataclass(frozen=True)
class EntryView:
    """One entry explained, with its equations to show."""

    entry: EntryDocument
    mathml: dict[str, str]


@dataclass(frozen=True)
class PlayToken:
    """A token that a model was given, and how likely it was after those before it."""

    id: int
    text: str
    probability: Finite | None  # None of the first


@dataclass(frozen=True)
class Choice:
    """A token that may come next."""

    id: int
    text: str
    logit: Finite
    probability: Finite


@dataclass(frozen=True)
class PlayDocument:
    """What a model says of the next token. Temperature, top-k and top-p are moved in the page, on the exact logits."""

    model: str
    prompt: tuple[PlayToken, ...]
    next: tuple[Choice, ...]  # the likeliest, the likeliest first
    rest: Finite  # probability of all others
    entropy: Finite  # bits
    logits: str  # base64 of float32, little-endian: of the whole vocabulary
    attention: tuple[tuple[tuple[Finite, ...], ...], ...] | None  # block, head, position: of the last token
    context_length: int


@dataclass(frozen=True)
class PlanFigure:
    """One planned number with what it follows from."""

    name: str
    value: Finite
    unit: str
    shown: str
    equation: str
    readable: str
    numbers: dict[str, Finite]  # that the equation uses
    source: str
    note: str
    why: tuple[str, ...]  # equation, numbers put in, result and source, a line each


@dataclass(frozen=True)
class PlanSection:
    """Figures that belong together."""

    title: str
    figures: tuple[PlanFigure, ...]


@dataclass(frozen=True)
class PlanDocument:
    """What a model costs."""

    name: str
    sections: tuple[PlanSection, ...]
    fits: bool | None  # None where no memory was given
    advice: tuple[str, ...]
    notes: tuple[str, ...]
    limited: str  # the figure that has to fit


@dataclass(frozen=True)
class PlanLayout:
    """One way to divide a step among the devices."""

    zero: int
    tensor: int
    pipeline: int
    recompute: str
    gradient_accumulation_steps: int
    replicas: int
    memory: Finite  # bytes of one device
    fits: bool | None  # None where no memory was given
    step: Finite | None  # seconds of one step; None where the device's speed is not known
    per_row: Finite | None  # seconds that a sequence takes, all devices together


@dataclass(frozen=True)
class PlanLayouts:
    """Every way, those that fit first, the fastest of them first."""

    layouts: tuple[PlanLayout, ...]


@dataclass(frozen=True)
class PlanOption:
    """One field of the form."""

    name: str
    kind: Literal["number", "whole", "word", "choice"]
    default: Any
    choices: tuple[str, ...]
    about: str


@dataclass(frozen=True)
class PlanLaw:
    """L(N, D) = E + A / N^alpha + B / D^beta, nats per token: what curves of equal loss are drawn from."""

    name: str
    source: str
    E: Finite
    A: Finite
    B: Finite
    alpha: Finite
    beta: Finite


@dataclass(frozen=True)
class PlanForm:
    """What may be asked of the planner."""

    names: tuple[str, ...]  # published models
    devices: tuple[str, ...]
    options: tuple[PlanOption, ...]
    laws: tuple[PlanLaw, ...]


@dataclass(frozen=True)
class OptionDifference:
    """An option that two runs do not have in common."""

    name: str  # section.name
    a: Any
    b: Any


@dataclass(frozen=True)
class ComparedRow:
    """One array of both."""

    name: str
    station: Station
    block: int | None
    kind: Literal["forward", "backward", "update", "weight"]
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    relative: float  # ‖a - b‖ / ‖b‖
    largest: float  # |a - b| of the entry where it is largest
    index: tuple[int, ...]  # of that entry
    a: float
    b: float
    bound: float | None  # of rounding alone, there, in a; None where nothing was redone
    share: float | None  # the largest |a - b| / bound of all entries
    not_finite: int  # entries of which one or the other is not finite, and they differ


@dataclass(frozen=True)
class Losses:
    """Nats per label of both."""

    a: float
    b: float


@dataclass(frozen=True)
class ComparedDocument:
    """Two recorded steps, checkpoints or runs, held against each other."""

    a: str
    b: str
    kind: Literal["steps", "checkpoints", "runs"]
    options: tuple[OptionDifference, ...]
    same_batch: bool | None
    loss: Losses | None
    rows: tuple[ComparedRow, ...]
    bounds: Bounds
    alone: tuple[str, ...]  # arrays that only one has, or with other shapes


@dataclass(frozen=True)
class GivenDocument:
    """One result that a notebook's kernel holds: which it is, the others are null."""

    plan: PlanDocument | None = None
    finding: Finding | None = None
    comparison: ComparedDocument | None = None
    notes: tuple[str, ...] = ()  # what else is to be said of it


@dataclass(frozen=True)
class ChangedRow:
    """One array before and after what was changed."""

    name: str
    station: Station
    block: int | None
    kind: Literal["forward", "backward", "update"]
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    relative: float  # ‖after - before‖ / ‖before‖
    largest: float
    index: tuple[int, ...]
    before: float
    after: float
    not_finite: int


@dataclass(frozen=True)
class BeforeAfter:
    """One number before and after what was changed."""

    before: float
    after: float


@dataclass(frozen=True)
class WhatIfDocument:
    """A recorded step done again in float64, once as it was and once with something changed."""

    result: str  # slices of it are asked for by this name
    loss: BeforeAfter
    grad_norm: BeforeAfter
    rows: tuple[ChangedRow, ...]


@dataclass(frozen=True)
class EquationDocument:
    """One equation of the catalogue."""

    name: str
    kind: str
    purpose: str
    signature: str
    equation: str  # LaTeX
    adjoint: tuple[str, ...]  # LaTeX, a line per input
    branch: str
    stages: tuple[str, ...]
    source: str
    file: str
    line: int


@dataclass(frozen=True)
class EquationsView:
    """The whole catalogue, with MathML of every line."""

    equations: tuple[EquationDocument, ...]
    mathml: dict[str, str]


DOCUMENTS = (
    RunList, RunOverview, MetricsDocument, StateDocument, StepView, EntryView, EquationsView, JobDocument,
    ErrorDocument, PlayDocument, PlanDocument, PlanForm, PlanLayouts, ComparedDocument, WhatIfDocument, LensView,
    OverSteps, FindingsView, GivenDocument, RecordingDocument,
)  # fmt: skip
