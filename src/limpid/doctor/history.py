"""What earlier steps were like: what the next one is judged against."""

from __future__ import annotations

import itertools
import math
import weakref
from array import array
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from limpid.doctor.calls import Call
from limpid.doctor.description import Line, SoFar
from limpid.doctor.graph_leaves import OtherLeaf
from limpid.doctor.levels import GroupRate, LogitLevel
from limpid.doctor.logs.table import Curves, preferred
from limpid.doctor.loop_facts import LoopFacts
from limpid.doctor.plain_passes import PlainPasses
from limpid.doctor.ranks import RankHistory
from limpid.doctor.returning_rows import ReturningRows
from limpid.doctor.row_history import RowHistory
from limpid.doctor.row_sample import RowSample
from limpid.doctor.rules.gradients import GRADIENT_EXPLODES
from limpid.doctor.rules.loss_curve import LOSS_SPIKE
from limpid.doctor.rules.mixture import STAGE
from limpid.doctor.step_record import StepRecord
from limpid.doctor.streams import Stream
from limpid.doctor.update_sample import UpdateSample
from limpid.doctor.watched import Watched
from limpid.doctor.weight_copies import Followers, WeightCopy

WARM_UP = 16
"""Updates in which a rate may rise by leaps."""
KEPT = 64
"""Looks back at what is sampled."""
MOST_POINTS = 2048
"""Of each of the loop's own metrics: all of them are looked at every few steps."""


@dataclass
class TakingPart:
    """Which parameters the losses reach, from look to look, by identity."""

    always: set[int] = field(default_factory=set)  # had a gradient at each of the last looks
    looks: int = 0  # how many
    evaluated: bool = False  # whether the model was evaluated since the last of them
    gone: set[int] = field(default_factory=set)  # had none at the next
    since: int = 0  # looks since then


@dataclass
class History:
    """What earlier steps were like; `take` adds one."""

    curves: Curves = field(default_factory=lambda: Curves("", "the loop's own metrics", most=MOST_POINTS))
    losses: Stream = field(default_factory=Stream)
    norms: Stream = field(default_factory=Stream)
    loss_was_added: bool = False  # whether the last step had a loss that counts
    loss_went_below_zero: bool = False
    rates: array[float] = field(default_factory=lambda: array("d"))  # the largest of each update
    group_rates: dict[int, GroupRate] = field(default_factory=dict)  # by group
    top_rate: float = 0.0  # the largest of them
    moves: int = 0  # how many of them are above 0
    last_rates: list[float] = field(default_factory=list)  # of the parameter groups, at the last update
    schedule_steps: list[int] = field(default_factory=list)  # of each of the first 64 steps
    schedule_advanced: bool = False  # at any step
    updates: list[tuple[int, UpdateSample]] = field(default_factory=list)
    scores: list[tuple[int, float, int]] = field(default_factory=list)  # step, largest, which attention
    levels: list[tuple[int, LogitLevel]] = field(default_factory=list)
    losses_called: set[str] = field(default_factory=set)  # functions of PyTorch that return one
    rows: RowHistory = field(default_factory=RowHistory)
    sample: RowSample = field(default_factory=RowSample)
    returning: ReturningRows = field(default_factory=ReturningRows)
    ranks: RankHistory = field(default_factory=RankHistory)
    facts: LoopFacts | None = None  # of the last step that was read
    sentences: tuple[Line, ...] = ()  # on the same
    so_far: SoFar = field(default_factory=SoFar)
    previous: Call | None = None  # the last forward pass of the step before
    reported: bool = False  # whether the loop ever called step()
    broke_at: int | None = None
    others: int = 0  # optimizers that changed the model while the watched one did not
    other: weakref.ref[Any] | None = None  # the last of them
    made: Counter[int] = field(default_factory=Counter)  # first updates, by optimizer
    without: Counter[int] = field(default_factory=Counter)  # those of them without a gradient, by parameter
    frozen_at: Counter[int] = field(default_factory=Counter)  # those that could not have one, by parameter
    passes: PlainPasses = field(default_factory=PlainPasses)
    random_evaluations: int = 0  # forward passes without gradient in training mode, with dropout
    other_leaves: dict[int, OtherLeaf] = field(default_factory=dict)  # by identity
    followers: Followers = field(default_factory=Followers)  # whose outputs may be what is learned
    plays: bool = False  # whether the loss depends on parameters that another optimizer trains
    beside: int = 0  # updates of another model's parameters
    own_update: str = ""  # what the loop's updates have of its own, in words
    # what single rules remember
    next_token_classes: int = 0  # size of the vocabulary, where the loss teaches tokens
    decay_done: dict[int, float] = field(default_factory=lambda: defaultdict(float))  # Σ η λ so far, by group
    gains_begun: float | None = None  # mean size of the decayed gains of norms when first seen
    moved_against_rounding: int = 0  # elements
    spacings: float = 0.0  # of the format that small updates have added up to
    rounding_seen: int = 0  # the step at which that was counted last
    eval_since: int | None = None
    left_in_eval: bool = False  # whether training went over to evaluation mode with the first evaluation
    count: float = 0.0  # steps that the optimizer counts
    restarts: int = 0  # times that this count went back and the rate jumped with it
    steps_apart: Counter[bool] = field(default_factory=Counter)  # by whether weights moved without an evaluation
    idle: dict[tuple[str, str], tuple[int, Tensor]] = field(default_factory=dict)  # matrix, side: looks, units
    drops: bool = False  # whether the loop sets gradients to 0 and leaves the others as they are
    idle_looks: Counter[int] = field(default_factory=Counter)  # at gradients of optimizers that never stepped
    scheduled: dict[int, list[tuple[tuple[float, ...], tuple[float, ...]]]] = field(
        default_factory=lambda: defaultdict(list)
    )  # what each schedule set and what was used, as long as these differ
    followed: set[int] = field(default_factory=set)  # schedules whose rate some update had
    trained: set[str] = field(default_factory=set)  # parameters that some update had a gradient of
    taking_part: TakingPart = field(default_factory=TakingPart)
    learned: set[str] = field(default_factory=set)  # parameters that required a gradient at some update
    stood: set[str] = field(default_factory=set)  # parameters that had no gradient at some update
    frozen: set[str] | None = None  # those that require none, at the last look
    stage: int | None = None  # the look that found others
    jump: int | None = None  # the last step at whose beginning the rate was another by a factor of two
    turns: bool = False  # whether some of these learned later
    raises_likelihood: bool = False  # whether the optimizers maximise, and the loss is a mean of log p
    taught_downhill: bool = False  # whether any step made its targets likelier
    began_fresh: bool = False  # whether the weights were as they were drawn at the first pass
    own_at_first: dict[str, float] = field(default_factory=dict)  # sums of parameters, where the optimizer holds others
    own_token: tuple[bool, bool, bool] | None = None  # whether outputs depend on their own token, later, earlier ones
    last_targets: tuple[int, float] | None = None  # how many, and the mean of their cubes
    put_back_at: int = 0  # the last step that began with weights with which an earlier one had begun
    steps_begun: dict[int, tuple[float, float]] = field(default_factory=dict)  # largest rate and loss, by step
    lost_by_return: int = 0  # returns to earlier weights that nothing measured speaks for
    copies: list[WeightCopy] | None = None  # of the model, once looked for
    measures: list[float] = field(default_factory=list)  # that a schedule was told
    token_counts: Counter[int] = field(default_factory=Counter)  # of sampled steps, but for the edges of rows
    label_counts: Counter[int] = field(default_factory=Counter)  # rows, by class
    label_weights: dict[int, float] = field(default_factory=dict)  # of a row in the mean, by class
    teaches_classes: bool = False  # whether the loss is a mean cross-entropy of one class for each row
    class_rows: dict[float, list[int]] = field(
        default_factory=lambda: defaultdict(lambda: [0, 0])
    )  # all, with gradient
    class_weights: dict[int, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))  # rows, weight
    never_advanced: bool = False
    references: dict[object, float] = field(default_factory=dict)  # log-probability of an answer when first seen, nats
    returned: deque[float] = field(default_factory=lambda: deque(maxlen=64))  # its change since then, over its rounding
    one_kind: int = 0  # rows in a row with one truth value as their label
    kind: bool | None = None  # which
    rows_compared: bool = False  # whether the loss, where dropout is on, is none of each row by itself
    equal_pairs: int = 0  # pairs in a row whose answers are the same
    stops: dict[str, int] = field(default_factory=dict)  # answers, and what of them teaches to stop
    skips: deque[bool] = field(default_factory=lambda: deque(maxlen=400))
    streaks: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    def take(self, watched: Watched, record: StepRecord) -> None:
        """Add a step, before rules judge it."""
        if record.has_rates:
            rate, before = max(record.group_rates.values()), self.rates[-1] if self.rates else 0.0
            if len(self.rates) >= WARM_UP and 0 < STAGE * min(rate, before) <= max(rate, before):
                self.jump = record.number
            self.rates.append(rate)
            self.top_rate = max(self.top_rate, self.rates[-1])
            self.moves += self.rates[-1] > 0
            for index, rate in record.group_rates.items():
                self.group_rates.setdefault(index, GroupRate(rate)).add(rate)
        if watched.schedulers:  # stepped after step() was called, a step's own count can lag by one
            advances = record.events.count("schedule")
            self.schedule_advanced |= advances > 0
            if len(self.schedule_steps) < KEPT:
                self.schedule_steps.append(advances)
        self.followers.take(watched.info.core, record.besides.values())
        self._take_loss(record)
        self._take_norm(watched, record)
        self._take_metrics(record)
        if record.judged_update is not None:
            self.updates.append((record.number, record.judged_update))
            del self.updates[:-KEPT]
            for _, update in self.updates[-3:-2]:
                update.start.clear()
        if record.attentions:
            index = max(range(len(record.attentions)), key=lambda i: record.attentions[i].largest)
            self.scores.append((record.number, record.attentions[index].largest, index))
            del self.scores[1:-KEPT]  # where it began, and where it is
        if record.level is not None and math.isfinite(record.level.log_z):
            self.levels.append((record.number, record.level))
            del self.levels[1:-KEPT]
        for gradient in record.downhill[:1]:  # not a teacher's probabilities, nor a multiple: their loss may be near 0
            tokens = gradient.ids is not None and gradient.misfit < 0.3 and 0.9 < record.sum_of_weights < 1.1
            self.next_token_classes = gradient.shape[-1] if tokens else 0

    def _take_loss(self, record: StepRecord) -> None:
        # of a loss that is no cross-entropy the logarithm, on which streams are judged, may not exist
        self.loss_was_added = record.loss is not None and math.isfinite(record.loss) and record.loss > 0
        self.loss_went_below_zero |= record.loss is not None and record.loss < 0
        if self.loss_was_added and record.loss is not None:
            self.losses.add(record.loss, LOSS_SPIKE["z"])

    def _take_metrics(self, record: StepRecord) -> None:
        if not record.metrics:
            return
        entry: dict[str, float | None] = {**record.metrics, "loss": record.loss}
        if record.has_rates:
            entry["learning_rate"] = max(record.group_rates.values())
        self.curves.add(record.number, preferred({name: value for name, value in entry.items() if value is not None}))

    def _take_norm(self, watched: Watched, record: StepRecord) -> None:
        if record.norm is None or not math.isfinite(record.norm):
            return
        scaled = watched.scaling and "scaler.unscale_" not in record.events
        record.true_norm = record.norm / (record.scale or 1.0) if scaled else record.norm
        if record.true_norm > 0:
            self.norms.add(record.true_norm, GRADIENT_EXPLODES["z"])

    def losses_before(self, last: int | None = None) -> list[float]:
        """Losses of earlier steps that count, or the last ones of them."""
        end = len(self.losses.all) - self.loss_was_added
        return self.losses.all[0 if last is None else max(0, end - last) : end].tolist()

    def losses_and(self, record: StepRecord, last: int | None = None) -> list[float]:
        """The same, and the loss of this step whatever it is."""
        return [*self.losses_before(last), *([record.loss] if record.loss is not None else [])]

    @property
    def loss_has_level(self) -> bool:
        """Whether a rise can be measured by where the loss began.

        A surprise begins at ln V. A policy's surrogate, or a distance from a copy of the model, begins at 0 whatever
        the model knows: it cannot but rise, or goes either way.
        """
        return not self.loss_went_below_zero and (self.next_token_classes > 0 or not self.losses.begins_at_zero)

    @property
    def rate_was_raised(self) -> bool:
        """Whether the rate was raised within the last 10 steps: a bump then is the schedule's."""
        return any(b > 1.5 * a > 0 for a, b in itertools.pairwise(self.rates[-12:]))

    def in_a_row(self, what: str, happened: bool) -> int:
        """Count how often in a row something has happened."""
        self.streaks[what] = self.streaks[what] + 1 if happened else 0
        return self.streaks[what]

    def times(self, what: str) -> int:
        """Count one more time that something has happened."""
        self.counts[what] += 1
        return self.counts[what]
