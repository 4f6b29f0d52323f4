"""What every viewer reads: one step, and one entry of it, as typed documents.

`python -m limpid.tracing` writes their JSON Schema. Numbers that are not finite are the words nan, inf and -inf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from limpid.tracing.notebook import entry_page, page
from limpid.tracing.stations import Station
from limpid.tracing.verdict import Check, Kind, NotFinite

VERSION = 4


@dataclass(frozen=True)
class Statistics:
    """An array in five numbers; what is not finite is counted, not averaged."""

    mean: float
    rms: float
    smallest: float
    largest: float
    not_finite: int


@dataclass(frozen=True)
class QuantityDocument:
    """One quantity of the forward pass: what made it, its numbers, its gradient, and how well both agree."""

    name: str
    station: Station
    block: int | None
    axes: tuple[str, ...]
    unit: str
    shape: tuple[int, ...]
    format: str
    operation: str
    inputs: tuple[str, ...]
    path: Literal["fast", "plain"]  # on which it was formed and checked; fast is the one that trains
    arithmetic: str  # from which its limits follow
    equation: str  # LaTeX
    adjoint: tuple[str, ...]  # LaTeX, a line per input
    branch: str
    source: str
    statistics: Statistics
    flops: int
    grad_norm: float | None
    forward: Check
    backward: Check | None
    drift: float  # of the whole chain from the tokens: ‖engine - exact‖ / ‖exact‖ in u of the compute format
    error: float | None  # what its rounding adds to the loss, to first order; none off the path that trains


@dataclass(frozen=True)
class ParameterDocument:
    """One parameter: its gradient as training used it, and its update."""

    name: str
    station: Station
    block: int | None
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    decayed: bool
    grad_norm: float  # before clipping
    relative_change: float  # ‖after - before‖ / ‖before‖
    gradient: Check | None  # on the plain path
    checks: tuple[Check, ...]  # what training used, moments, update


@dataclass(frozen=True)
class StationDocument:
    """One stage of the step: its quantities in order; those of backward and update are all of them."""

    station: Station
    block: int | None
    title: str
    quantities: tuple[str, ...]
    parameters: tuple[str, ...]
    flops: int


@dataclass(frozen=True)
class LabelDocument:
    """One token that the model was to predict."""

    row: int
    position: int
    text: str
    nats: float


@dataclass(frozen=True)
class LossDocument:
    """The loss accounted for: which formula, over which tokens, with which weight."""

    value: float  # nats per label, the engine's
    exact: float
    error: float  # by which rounding moved it, to first order: what the quantities' errors add up to
    perplexity: float
    objective: str  # next_token, dpo, …
    formula: str  # LaTeX
    labels: int
    positions: int
    weight: float  # of one label, in next-token prediction
    micro_batches: tuple[dict[str, Any], ...]
    rows: tuple[tuple[tuple[str, float | None], ...], ...]  # text and nats of every position; null where no label is
    most_surprising: tuple[LabelDocument, ...]


@dataclass(frozen=True)
class RuleDocument:
    """One update rule and what it moved."""

    rule: str
    equations: tuple[str, ...]  # LaTeX
    source: str
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class UpdateDocument:
    """Clipping, learning rate and rules."""

    rules: tuple[RuleDocument, ...]
    number: int
    learning_rate: float
    grad_norm_before_clip: float
    max_grad_norm: float | None
    clip_scale: float
    optimizer_values: int  # numbers that the rules remember
    checks: tuple[Check, ...]  # norm, rate, whether the step was taken


@dataclass(frozen=True)
class Count:
    """How many checks of a kind there are, and how many hold."""

    kind: Kind
    holds: int
    checks: int


@dataclass(frozen=True)
class VerdictDocument:
    """What is to be said of the whole step."""

    agrees: bool  # nothing is wrong; a step skipped for its loss scale alone is not wrong
    verdict: Literal["holds", "not finite", "beyond", "not checked"]
    origin: NotFinite | None  # where numbers first stop being finite
    not_finite: tuple[NotFinite, ...]  # every such place
    first_disagreement: Check | None
    checks: int
    within_bounds: int
    not_checked: int
    counts: tuple[Count, ...]
    fast: int  # quantities formed and checked on the path that trains
    plain: int  # on the plain path: those that fused kernels never form, or all of an older record
    worst: Check


@dataclass(frozen=True)
class WrittenCheck:
    """The step against one thing that its run wrote down."""

    check: Check
    written_in: str  # a file, or what it follows from
    way_out: str  # empty where it holds


@dataclass(frozen=True)
class RunDocument:
    """Whether this is the step that the run took: its batch, what was logged, the checkpoints on both sides."""

    run: str
    checks: tuple[WrittenCheck, ...]
    not_compared: tuple[str, ...]  # what could not be compared, and why


@dataclass(frozen=True, repr=False)
class StepDocument:
    """One step, redone in float64 and compared, without its arrays."""

    version: int
    run: str
    step: int
    config: dict[str, Any]
    precision: dict[str, str]
    loss_scale: float
    written: RunDocument | None  # None where the step lies in no run
    verdict: VerdictDocument
    stations: tuple[StationDocument, ...]
    quantities: tuple[QuantityDocument, ...]
    loss: LossDocument
    parameters: tuple[ParameterDocument, ...]
    update: UpdateDocument

    def __repr__(self) -> str:
        return f"StepDocument(step {self.step:,} of {self.run}: {self.verdict.verdict}, loss {self.loss.value:.6g})"

    def _repr_html_(self) -> str:
        return page(self)


@dataclass(frozen=True)
class Place:
    """An entry by its address, and its number."""

    name: str
    index: tuple[int, ...]
    address: str
    value: float
    note: str = ""


@dataclass(frozen=True)
class Term:
    """What one entry contributed: value = factor × its number. A product of two entries has a term for each of them."""

    source: Place
    factor: float | None  # None where the source is 0
    value: float


@dataclass(frozen=True)
class DerivationDocument:
    """One entry, or what one operation passed back to it, written out."""

    operation: str
    quantity: str
    equation: str  # LaTeX
    symbols: str  # with this entry's indices
    numbers: str  # the same with numbers
    value: float
    terms: tuple[Term, ...]  # the strongest, strongest first


@dataclass(frozen=True, repr=False)
class EntryDocument:
    """Everything there is to say about one entry."""

    name: str
    index: tuple[int, ...]
    address: str
    value: float
    note: str
    station: Station
    made: DerivationDocument | None  # None where it was given: a parameter, the batch
    roundings_off: float | None  # engine - derived, in roundings of the format that it or its sums are kept in
    came_from: tuple[Place, ...]
    went_to: tuple[str, ...]
    gradient: float | None
    passed: tuple[DerivationDocument, ...]
    to_tokens: tuple[Place, ...]  # the strongest way back, entry by entry
    to_loss: tuple[Place, ...]  # the strongest way on: gradients, from here to the loss
    weighed_by: tuple[Place, ...]  # what was formed before the step and weighs the gradient on the ways to the loss
    update: tuple[str, ...]

    def __repr__(self) -> str:
        gradient = "" if self.gradient is None else f", gradient {self.gradient:.8g}"
        return f"EntryDocument({self.address} = {self.value:.8g}{gradient})"

    def _repr_html_(self) -> str:
        return entry_page(self)


@dataclass(frozen=True)
class ArrayDocument:
    """One array of the step: what it is, its numbers in short, a corner of them."""

    name: str
    tensor: str  # its name in the record
    shape: tuple[int, ...]
    format: str
    statistics: Statistics
    norm: float
    corner: tuple[tuple[float, ...], ...]  # of the last two axes, at the first place of all others
    hidden: tuple[tuple[bool, ...], ...] | None  # which entries of the corner the mask hides
    update: UpdateEntryDocument | None  # of a parameter


@dataclass(frozen=True)
class UpdateEntryDocument:
    """The update of a parameter's entry with the largest gradient, written out."""

    index: tuple[int, ...]
    gradient: float  # before clipping
    lines: tuple[str, ...]
    engine: float
