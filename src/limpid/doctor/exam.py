"""The examination before the first step: what can be measured on a model, an optimizer and one batch.

Every measurement is made once, when a rule first asks for it, and leaves the training as it was.
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from limpid.adjoints.adjoint import Adjoint
from limpid.doctor.calls import Call, find_logits, find_rows
from limpid.doctor.finding import OWN_PASSES, Finding, Skipped
from limpid.doctor.forward_probe import AttentionExam, Flow, flow, left_to_chance, shortcut_gains
from limpid.doctor.loss_gradient import LossGradient
from limpid.doctor.micro_batches import Micro, call_for, micro_batches, nothing_to_learn
from limpid.doctor.replay import nan_replay
from limpid.doctor.replay.step_replay import RecordedPass
from limpid.doctor.row_probe import RowProbe
from limpid.doctor.shield import Obstacle, Shield
from limpid.doctor.trial_pass import TrialPass, held_against_forward, try_once
from limpid.doctor.undisturbed import seeded, undisturbed
from limpid.doctor.watched import Watched
from limpid.doctor.weights import fresh as looks_fresh

OTHERS = 8
"""Rows that are looked at for another token."""
ROWS, POSITIONS = 4, 128
"""Probes use the first rows and positions of the batch: exact properties need no more."""


@dataclass
class Exam(Watched):
    """One examination: what is watched, what was given beside it, and what is measured when asked."""

    batch: Any = None
    call: Call | None = None  # as the user's loop makes it, once seen
    loss: Callable[..., Any] | None = None
    loss_function: Callable[..., Any] | None = None
    later: bool = False  # whether it is made again, at a later step
    seen_norms: dict[str, float | None] = field(default_factory=dict)  # of gradients of a real step, where one was seen
    seen_loss_gradients: list[LossGradient] = field(default_factory=list)
    arrived: set[int] = field(default_factory=set)  # parameters whose gradient the loop took away before the update
    own_backward: bool = False  # whether a real step went through a Function of somebody's own
    skipped: Skipped = field(default_factory=Skipped)  # what could not be checked, and why

    @property
    def model(self) -> nn.Module:
        return self.info.model

    # what the loop gives and does

    @cached_property
    def shield(self) -> Shield:
        return Shield(self.model)

    @cached_property
    def may_call(self) -> bool:
        """Whether the doctor may call the model: one process holds it, and all that a pass changes can be put back."""
        seen = "" if self.call is None else self.call.obstacle
        why = "" if self.info.sharded else seen or self.shield.obstacle
        if why:
            self.skipped.note(OWN_PASSES, why)
        return not why and not self.info.sharded

    @cached_property
    def micros(self) -> list[Micro]:
        """The batch as given, or what the loop's own call shows of it."""
        if self.batch is not None or self.call is None:
            return micro_batches(self.batch)
        call = self.call
        return [Micro(call.ids, call.labels, call.mask, call.kwargs if "labels" in call.kwargs else call.args)]

    @cached_property
    def usual_call(self) -> Call | None:
        """How the loop calls the model on the first micro-batch."""
        if self.call is not None:
            return self.call.detached()
        if self.trial is not None and self.trial.calls:
            call = self.trial.calls[0]
            if call.obstacle:
                self.skipped.note(OWN_PASSES, call.obstacle)
            return None if call.obstacle else call
        return call_for(self.model, self.micros[0], self.info.device) if self.micros else None

    @cached_property
    def trial(self) -> TrialPass | None:
        """One forward and backward pass of the user's own loss."""
        if self.batch is None or not self.micros or not self.may_call:
            return None
        with self.skipped.noting("the loss"):
            try:
                return try_once(self.info, self.batch, self.micros, self.loss, self.loss_function)
            except Obstacle as why:
                self.skipped.note("the formula of the loss", str(why))
        return None

    @property
    def refused(self) -> str:
        """What the user's own forward pass or loss raised."""
        return self.skipped.get("the forward pass") or self.skipped.get("the loss") or ""

    @property
    def loss_gradients(self) -> list[LossGradient]:
        """The gradients of the logits, one per micro-batch: of the trial, or of a real step."""
        if self.call is not None:
            return self.seen_loss_gradients
        return [] if self.trial is None else self.trial.loss_gradients

    @property
    def gradient_norms(self) -> dict[str, float | None]:
        """Of each parameter's gradient, None without one: of the trial, or of a real step."""
        return self.trial.norms if self.call is None and self.trial is not None else self.seen_norms

    @cached_property
    def adjoints(self) -> list[Adjoint]:
        """Backward passes by hand, held against their forward passes: of the trial, or of a call that a loop made."""
        if self.trial is not None or not self.own_backward or self.usual_call is None or not self.may_call:
            return [] if self.trial is None else self.trial.adjoints
        with self.skipped.noting("backward passes by hand"):
            return held_against_forward(self.model, self.few_rows or self.usual_call, self.shield)
        return []

    @property
    def has_nothing_to_learn(self) -> bool:
        """Whether every gradient is 0 because of what the batch holds: no advantage, or no target that is learned."""
        return nothing_to_learn(self.micros) and not any(self.gradient_norms.values())

    @property
    def trial_shows_no_graph(self) -> bool:
        """Whether the loss depends on no parameter."""
        return self.call is None and self.trial is not None and self.trial.no_graph

    @cached_property
    def rates(self) -> list[float] | None:
        """The largest rate at each update to the planned end."""
        return self.rates_to_come(min(self.planned, 100_000)) if self.planned else None

    @cached_property
    def _rates_by_group(self) -> dict[int, list[float]]:
        """Of each group with a schedule, by identity, the rate at each update to the planned end."""
        by_group: dict[int, list[float]] = {}
        for scheduler in self.schedulers if self.planned else ():
            optimizer = getattr(getattr(scheduler, "scheduler", scheduler), "optimizer", None)
            rates = self.rates_of_groups(scheduler, min(self.planned or 0, 100_000))
            if rates and optimizer is not None:
                groups = zip(optimizer.param_groups, zip(*rates, strict=True), strict=True)
                by_group |= {id(group): list(own) for group, own in groups}
        return by_group

    def rates_of(self, group: dict[str, Any]) -> list[float]:
        """The rate of a group at each planned update; as it is now, where no schedule says more."""
        return self._rates_by_group.get(id(group)) or [float(group.get("lr") or 0.0)] * (self.planned or 1)

    @cached_property
    def fresh(self) -> bool:
        """Whether the weights are still as they were drawn."""
        return not self.pretrained and looks_fresh(self.info)

    @cached_property
    def row_probe(self) -> RowProbe:
        """The usual call with its rows in another order and company."""
        return RowProbe(self)

    # forward passes of a few rows

    @cached_property
    def probe(self) -> Call | None:
        """A few rows of the usual call, on token ids."""
        call = self.usual_call
        if call is None or call.ids is None or self.info.translates or not self.may_call:
            return None
        return call.without_loss().rows(slice(0, ROWS), POSITIONS)

    @cached_property
    def plain(self) -> Tensor | None:
        """Logits of the probe in evaluation mode, (row, position, vocabulary)."""
        return self.logits(self.probe)

    @cached_property
    def in_training(self) -> Tensor | None:
        """The same in training mode."""
        return self.logits(self.probe, training=True)

    @cached_property
    def plain_again(self) -> Tensor | None:
        """The same with other random numbers."""
        return None if self.plain is None else self.logits(self.probe, seed=1)

    def logits(self, call: Call | None, training: bool = False, seed: int = 0) -> Tensor | None:
        """Logits of a call, in float32; None where there are none."""
        return self._found(find_logits, call, training, seed)

    def logits_once(self, call: Call, training: bool = False) -> Tensor | None:
        """The same, those of the probe as they were computed before."""
        if call is not self.probe:
            return self.logits(call, training)
        return self.in_training if training else self.plain

    def output(self, call: Call, training: bool = False) -> Tensor | None:
        """What comes of a call, one number or more for each row, in float32."""
        return self._found(find_rows, call, training, 0)

    def _found(self, find: Callable[[Any], Tensor | None], call: Call | None, training: bool, seed: int) -> Any:
        if call is None or (self.refused and call is not self.probe):
            return None
        with self.skipped.noting("the forward pass"), undisturbed(self.shield):
            self.model.train(training)
            seeded(seed)
            found = find(call.make(self.model))
            return None if found is None else found.detach().float()
        return None

    @cached_property
    def vocab(self) -> int | None:
        """Number of words the model can say."""
        return int(self.plain.shape[-1]) if self.plain is not None and self.plain.ndim >= 2 else self.info.table_rows

    @cached_property
    def rounding(self) -> float:
        """How far two ways to the same logits may lie apart: 32 units of round-off of the largest."""
        if self.plain is None:
            return math.inf
        finite = self.plain[torch.isfinite(self.plain)]
        formats = {p.dtype for p in self.info.parameters.values() if p.is_floating_point()}
        formats |= self.attention.probe.formats | {gradient.dtype for gradient in self.loss_gradients[:1]}
        unit = max((torch.finfo(kind).eps / 2 for kind in formats if kind.itemsize > 1), default=2.0**-24)
        return 32 * unit * max(1.0, float(finite.abs().max()) if finite.numel() else 1.0)

    def moved(self, call: Call, other: Call, training: bool = False) -> Tensor | None:
        """How far each logit vector moves between two calls, (row, position)."""
        first, second = self.logits_once(call, training), self.logits(other, training)
        if first is None or second is None or first.shape != second.shape or first.ndim != 3:
            return None
        return (first - second).abs().nan_to_num(0.0).amax(-1)

    def other_ids(self, ids: Tensor) -> Tensor:
        """A different token at every position: another row's there, or one from those that occur."""
        made = ids
        for row in range(1, min(len(ids), OTHERS)):  # columns may be categories, each with a table of its own
            made = torch.where(made == ids, ids.roll(row, 0), made)
        if not bool((made == ids).any()):
            return made
        vocab = max(int(ids.max()) + 1, 2)
        shifted = ids.roll(1, -1).roll(1, 0)
        return torch.where(made == ids, torch.where(shifted == ids, (ids + 1) % vocab, shifted), made)

    @property
    def few_rows(self) -> Call | None:
        """A few rows of the usual call, whatever it is given; None where the doctor may not call the model."""
        call = self.usual_call
        if call is None or not self.may_call:
            return None
        return call if call.ids is None else call.rows(slice(0, ROWS), POSITIONS)

    @cached_property
    def flow(self) -> Flow | None:
        """Which modules the probe calls, and what each passes on."""
        call = self.few_rows
        return None if call is None else flow(self.info, self.shield, call)

    @cached_property
    def left_to_chance(self) -> set[str]:
        """Modules that a pass may leave out, as its random numbers say."""
        call = self.few_rows
        return set() if call is None else left_to_chance(self.info, self.shield, call)

    @cached_property
    def shortcuts(self) -> dict[str, float]:
        """How much of a small change of a block's input comes out unchanged, by block: 1 with a shortcut."""
        return {} if self.probe is None else shortcut_gains(self.info, self.shield, self.probe)

    @cached_property
    def attention(self) -> AttentionExam:
        return AttentionExam(self)

    def opened(self, loss: float) -> Finding:
        """Why the loss of the first batch is not finite."""
        call = self.usual_call
        recorded = None if call is None else RecordedPass(self.info, call, self.micros[0])
        return nan_replay.explained(self.info, recorded, None, loss)


Function = Callable[[Exam], Iterator[Finding]]


def examine(exam: Exam, functions: list[Function]) -> list[Finding]:
    """Every function; one that breaks is skipped, and says so."""
    findings: list[Finding] = []
    with _without_collection():
        for function in functions:
            with exam.skipped.noting(function.__name__.replace("_", "-")):
                findings.extend(function(exam))
    return findings


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """A full collection takes a tenth of a second, and most of what an examination makes is gone when it ends."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
