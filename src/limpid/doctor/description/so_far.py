"""What is counted at every step, for the sentences on the run as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from limpid.doctor.description.alike import Alike
from limpid.doctor.description.batches import Batches
from limpid.doctor.description.choices import Choices
from limpid.doctor.description.course import Course, fifths
from limpid.doctor.description.evaluations import Evaluations
from limpid.doctor.description.fits import Fits
from limpid.doctor.description.given_labels import TaughtClasses
from limpid.doctor.description.held import HeldModels
from limpid.doctor.description.kept import KeptWeights
from limpid.doctor.description.next_tokens import NextTokens
from limpid.doctor.description.own_backwards import OwnBackwards
from limpid.doctor.description.places import Neighbours, Places
from limpid.doctor.description.rows import Ends
from limpid.doctor.description.same_rows import SameRows
from limpid.doctor.description.scales import Scales
from limpid.doctor.description.states import States
from limpid.doctor.description.stretches import Stretches
from limpid.doctor.description.target_values import TargetValues
from limpid.doctor.description.tried import Tried
from limpid.doctor.description.updates import moved_by_rate
from limpid.doctor.description.words import counted, number

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.update_sample import UpdateSample


@dataclass
class SoFar:
    """Counts of the steps until now."""

    updates: int = 0
    skipped: int = 0
    clips: int = 0  # updates whose gradient was clipped
    reached: int = 0  # those of them in which the limit was reached
    evaluated: int = 0  # updates before which the model was run without gradients
    tried: Tried | None = None  # passes of the doctor's own, when the model was examined first
    own_backwards: OwnBackwards = field(default_factory=OwnBackwards)  # held against forward passes, then
    places: Places | None = None  # whether attention tells places of one token apart, then
    neighbours: Neighbours | None = None  # which places it does not tell from the next, then
    states_before: tuple[str, ...] | None = None  # what optimizers held before the first update; None until then
    scales: Scales | None = None  # sizes of what tables give and blocks are given, then
    moved_with_order: float = 0.0  # how far outputs lie from those of the same rows in another order, of the largest
    alike: Alike = field(default_factory=Alike)  # weights that began as copies of others
    choices: Choices = field(default_factory=Choices)  # among sequences of tokens
    taught: TaughtClasses = field(default_factory=TaughtClasses)  # of outputs that are classes
    states: States = field(default_factory=States)  # of recurrent layers
    called: bool = False  # whether a forward pass of the model with gradients was seen
    losses: tuple[float, float] | None = None  # the first and the last
    held: HeldModels = field(default_factory=HeldModels)  # other models beside it
    evaluations: Evaluations = field(default_factory=Evaluations)  # passes without gradients
    ends: Ends = field(default_factory=Ends)  # of rows of tokens
    next_tokens: NextTokens = field(default_factory=NextTokens)  # of rows
    stretches: Stretches = field(default_factory=Stretches)  # of tokens, in the rows so far
    batches: Batches = field(default_factory=Batches)  # of measured numbers
    same_rows: SameRows = field(default_factory=SameRows)  # as the model is given them
    target_values: TargetValues = field(default_factory=TargetValues)  # of measured numbers
    fits: Fits = field(default_factory=Fits)  # of targets to inputs
    course: Course = field(default_factory=Course)  # of rates, norms and losses
    kept: KeptWeights = field(default_factory=KeptWeights)  # whether weights stay as they were left
    moved_by_rate: float | None = None  # of the first update: how far matrices moved over the rate
    begun: str = ""  # sizes of the weights at the first update

    def take(self, record: StepRecord) -> None:
        """Add a step."""
        self.updates += record.updated
        self.skipped += record.skipped
        self.evaluated += record.after_evaluation
        self.ends.take(record)
        self.stretches.take(record)
        self.next_tokens.take(record)
        self.choices.take(record)
        self.batches.take(record)
        self.same_rows.take(record)
        self.target_values.take(record)
        self.fits.take(record)
        self.course.take(record)
        self.taught.take(record)
        self.states.take(record)
        self.called |= bool(record.calls)
        self.evaluations.trained(record)
        if record.loss is not None:
            self.losses = (record.loss if self.losses is None else self.losses[0]), record.loss
        if record.clipped_to is not None:
            self.clips += 1
            self.reached += record.norm is not None and record.norm > record.clipped_to

        if self.updates <= 1 and not self.begun and record.judged_update is not None:
            self.begun = _sizes(record.judged_update)
            self.moved_by_rate = moved_by_rate(record.judged_update)

    def told(self, history: History) -> Iterator[str]:
        """In sentences."""
        skipped = f", {number(self.skipped)} left out because of infinities" if self.skipped else ""
        clipped = f"; the limit of clipping reached in {number(self.reached)}" if self.clips else ""
        yield f"{counted(self.updates, 'update')}{skipped}{clipped}"
        if self.begun:
            yield f"before the first of them {self.begun}"
        losses = history.losses.all
        if history.loss_went_below_zero and self.losses is not None:
            yield f"loss {self.losses[0]:.4g} at first, {self.losses[1]:.4g} now"
        elif len(losses) > 1:
            yield f"loss {losses[0]:.4g} at first, {losses[-1]:.4g} now{fifths(losses)}"
        yield from self.batches.told()
        yield from self.same_rows.told(bool(history.rows.count))
        yield from self.target_values.told()
        yield from self.fits.told()
        for index, rate in sorted(history.group_rates.items())[:6]:
            span = f"{rate.low:.3g}" if rate.low == rate.high else f"between {rate.low:.3g} and {rate.high:.3g}"
            changes = (
                f", now {rate.last:.3g}; changed in {number(rate.changes)} updates{self.course.rates_of(index)}"
                if rate.changes
                else ", never changed"
            )
            yield f"rate of group {index}: {span}{changes}"
        if norms := fifths(self.course.norms):
            yield f"norm of the gradient {self.course.norms[0]:.3g} at first{norms}"
        yield (
            f"the watched model was run without gradients before {number(self.evaluated)} updates"
            if self.evaluated
            else "the watched model was never run without gradients"
        )
        yield from self.evaluations.told()
        yield from self.kept.told(self.course)
        if history.random_evaluations:
            yield f"{counted(history.random_evaluations, 'pass', 'passes')} without gradients in training mode"


def _sizes(update: UpdateSample) -> str:
    """Root mean squares of the weights, matrices and vectors apart."""
    said = []
    for kind, dims in (("matrices", (2, 3, 4, 5)), ("vectors", (0, 1))):
        sizes = sorted(weight for weight, count in zip(update.weight, update.dims, strict=True) if count in dims)
        if sizes:
            said.append(f"{kind} had rms {sizes[0]:.3g} to {sizes[-1]:.3g}, the median {sizes[len(sizes) // 2]:.3g}")
    return ", ".join(said)
