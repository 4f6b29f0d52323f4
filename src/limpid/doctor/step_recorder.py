"""What hooks report becomes the record of a step, which is judged when the step has ended."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from limpid.doctor.attention_probe import AttentionProbe
from limpid.doctor.baseline.file import WRITTEN
from limpid.doctor.calls import Call
from limpid.doctor.contracts import LayerProbe
from limpid.doctor.description import described
from limpid.doctor.devices import HostCopies, random_state
from limpid.doctor.drawn import measured
from limpid.doctor.finding import Skipped
from limpid.doctor.history import History
from limpid.doctor.loop_facts import EARLY, facts_of
from limpid.doctor.micro_batches import micro_batches
from limpid.doctor.model_info import unwrapped
from limpid.doctor.other_calls import OtherCalls
from limpid.doctor.pass_recorder import Judge, guarded
from limpid.doctor.rule import Probe
from limpid.doctor.sampling import Sampling, Votes
from limpid.doctor.step_record import StepRecord
from limpid.doctor.update_recorder import UpdateRecorder, single_number
from limpid.doctor.watched import Watched
from limpid.doctor.weight_trail import steps_counted
from limpid.doctor.weights import fresh as looks_fresh

SPACING = ((200, 10), (500, 25), (math.inf, 100))
"""Up to this step of what is watched the one in so many is looked at closely, beside the first ones; what has long been
well changes slowly. The loss's formula is read at `every` steps."""
SCORES = 2**17
"""Entries of the scores of each attention that a look during training measures."""


class StepRecorder(UpdateRecorder):
    """Keeps the record of the step that runs, from the first forward pass to the end of the update."""

    def __init__(
        self,
        watched: Watched,
        judge: Judge,
        history: History,
        skipped: Skipped,
        first_step: int,
        every: int,
        probes: frozenset[Probe],
    ) -> None:
        super().__init__(watched, judge, history, skipped, first_step, probes)
        self.every = max(1, every)
        self.steps = first_step - 1
        self._votes = Votes()
        self._sampling = Sampling()
        self.record = StepRecord(self.steps)
        self.others = OtherCalls(self)
        self.next_step()

    # the step

    def next_step(self) -> None:
        number = self.steps + 1
        self.runs = None
        self._parts.end()
        age = number - self.first_step + 1
        self.record = StepRecord(number, copies=HostCopies(self.record.copies))
        spacing = next(spacing for last, spacing in SPACING if age <= last)
        self.record.sampled = age <= EARLY or number % spacing == 0 or self._unsettled()
        kept = self.watched.baseline is not None and number in WRITTEN
        self.record.read = age <= EARLY or number % self.every == 0 or kept
        self._stepped, self._stepping = self._stepping, []
        self.others.begins()

    def _unsettled(self) -> bool:
        """Whether to look closely at the next step: the loss is outside its scatter, or the rate was just raised."""
        rates = self.history.rates[-6:]
        raised = any(b > 2 * a > 0 for a, b in itertools.pairwise(rates))
        return raised or 0 < self.history.losses.outside <= 10

    @guarded
    def report(self, loss: Any, batch: Any, metrics: Mapping[str, Any] | None = None) -> None:
        """The loop says what it knows of the step."""
        self.history.reported = True
        record = self.record
        record.reported = True
        self._read_norm(record)
        record.micros = micro_batches(batch)
        record.loss = single_number(loss)
        said = metrics if metrics is not None else loss if isinstance(loss, dict) else {}
        record.metrics |= {str(k): number for k, v in said.items() if (number := single_number(v)) is not None}
        with self.skipped.noting("a draw"):
            record.metrics = measured(record.micros, self.watched.chat_form.ends) | record.metrics
        if loss is not None and record.loss is None and isinstance(loss, dict):
            record.loss = next((single_number(v) for k, v in loss.items() if "loss" in str(k).lower()), None)
        if record.updated or record.skipped or record.other is not None or not self.watched.optimizers:
            self.end()

    def end(self) -> None:
        """Have the step judged, and begin the next."""
        self._loss_from = None
        record = self.record
        self.steps = record.number
        if record.loss is None and record.roots:
            total = float(torch.stack([r.float().reshape(()) for r in record.roots]).sum())
            record.loss = total / (self.watched.scale or 1.0)
        self._read_norm(record)
        record.scale = self.watched.scale
        record.own_draw = self._sampling.drew(record.token_ids)
        self._count_others(record)
        with self.skipped.noting("history"):
            self.history.take(self.watched, record)
            self.history.so_far.take(record)
        if Probe.ROWS in self.probes:
            with self.skipped.noting("rows"):
                rows = self.history.rows
                known = rows.measured and rows.count > 0
                measured = [] if record.token_ids else record.measured_rows(known)
                rows.take(
                    record.token_ids, record.class_labels, record.row_numbers or record.beside_categories, measured
                )
                self.history.sample.take(record)
        if record.read and record.updated and Probe.FACTS in self.probes:
            with self.skipped.noting("facts"):
                self.history.facts = facts_of(self.watched, record, self.history)
            with self.skipped.noting("description"):
                self.history.sentences = described(self.watched, record, self.history)
        self.judge.ended(record)
        if record.updated:
            self.history.last_rates = record.rates
        if record.calls:
            self.history.previous = record.calls[-1].detached()
        self.next_step()

    def _count_others(self, record: StepRecord) -> None:
        """Whether an optimizer made the update that neither is watched nor made the one before."""
        if record.other is None or record.updated:
            return
        last, self.history.other = self.history.other, record.other
        self.history.others += last is None or last() is not record.other()

    # what hooks report

    @guarded
    def on_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        info = self.watched.info
        outer = module is info.outer
        if self.runs not in (None, module) or (self._depth and not outer):  # of what runs, or made again for gradients
            return
        if not self.gradients_on:
            if outer or module is info.called:
                self._evaluates(Call.to(info.model, args, kwargs, None if outer else unwrapped(module)))
            return
        self._votes.ended()
        if self._never_reported and (outer or not self.record.outer_called):
            self.end()
        record = self.record
        if outer:
            record.outer_called = True
        else:
            record.inner_called = True
        if not outer and record.outer_called:
            return
        called = unwrapped(module)
        part = None if called is info.model else called
        if part is not None and self._parts.is_no_part(module):
            return
        self.runs = module
        if part is not None and self._parts.goes_on(module, args, kwargs):
            if not self._parts.is_aside:
                self._look_inside(record, record.calls[-1])
            return
        if part is None:
            self._parts.end()
        elif not self._parts.begins(module):
            return
        info.is_called(called)
        self.history.passes.trained()
        if record.number == self.first_step and not record.calls and not info.shapeless:
            self.history.began_fresh = looks_fresh(info)
        if Probe.WEIGHTS_KEPT in self.probes and not record.calls and not record.updated:
            self._compare_weights(record)
        call = Call.to(info.model, args, kwargs, part)
        self.judge.called(call)
        record.events.append("forward")
        record.calls.append(call)
        if record.passes is not None and not record.updated:
            record.passes.called()
        self.history.so_far.states.called(call, record.sampled)
        self._inside = True
        if Probe.REPLAY in self.probes:
            record.rng.append(random_state(info.device))
            kind = info.device.type
            record.autocast.append(torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None)
        self._look_inside(record, call)

    def _evaluates(self, call: Call) -> None:
        """A pass without gradients."""
        training = self.watched.info.called.training
        self._trail.evaluates()
        self.history.so_far.kept.evaluates()
        self.history.passes.add(training)
        self._sampling.passed(call.ids)
        self.history.so_far.evaluations.passed(call, training, self.history.rows)
        if self.steps and training and self.watched.info.dropout_rate > 0:
            self.history.random_evaluations += self._votes.passed(call.args, call.kwargs)

    def _look_inside(self, record: StepRecord, call: Call) -> None:
        """Watch the first pass of a step, function by function."""
        info = self.watched.info
        if record.sampled and len(record.calls) == 1 and not info.compiled and not info.sharded:
            self.leave_attention()
            self._loss_from = threading.get_ident()
            if Probe.ATTENTION in self.probes:
                self._attention = AttentionProbe(SCORES)
                self._attention.__enter__()
            if Probe.ARGUMENTS in self.probes:
                self._layers = LayerProbe(call)
                self._layers.__enter__()

    def _compare_weights(self, record: StepRecord) -> None:
        """Whether the weights are still as the last update left them, and whether a step began with them before."""
        trail = self._trail
        record.after_evaluation, record.outside = trail.evaluated, trail.outside
        record.optimizer_count = steps_counted(self.watched.optimizers)
        record.moved_since, record.began_before = trail.begins(record.number, record.optimizer_count, record.sampled)
        if record.began_before is not None:
            self.history.put_back_at = record.number
