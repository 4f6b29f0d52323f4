"""What hooks report becomes the record of a step, which is judged when the step has ended."""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from limpid.doctor import update_sample
from limpid.doctor.attention_probe import AttentionProbe
from limpid.doctor.calls import Call, micro_batches
from limpid.doctor.contracts import LayerProbe
from limpid.doctor.drawn import measured
from limpid.doctor.finding import Skipped
from limpid.doctor.graph_leaves import has_own_backward, other_leaves
from limpid.doctor.hooks import LISTENERS
from limpid.doctor.idle_units import idle_units, linear_maps
from limpid.doctor.kept_states import KeptStates
from limpid.doctor.loop_facts import EARLY, facts_of
from limpid.doctor.optimizers_used import idle_optimizers, rates_set
from limpid.doctor.pass_gradients import PassGradients
from limpid.doctor.pass_recorder import Judge, PassRecorder, guarded
from limpid.doctor.rule import Probe
from limpid.doctor.rules.gradient_flow import GRADIENT_CUT
from limpid.doctor.sampling import Sampling, Votes
from limpid.doctor.step_record import History, StepRecord
from limpid.doctor.watched import Watched
from limpid.doctor.weight_trail import WeightTrail, steps_counted
from limpid.doctor.weights import fresh as looks_fresh
from limpid.doctor.weights import local, rate_of

OFTEN = 10
"""The first steps are looked at closely, and every tenth after them; the loss's formula at `every` steps."""
SCORES = 2**20
"""Entries of the scores of each attention that a look during training measures."""


class StepRecorder(PassRecorder):
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
        super().__init__(watched, judge, history, skipped, probes)
        self.first_step, self.every = first_step, max(1, every)
        self.steps = first_step - 1
        self._taken: list[tuple[Any, update_sample.Before]] = []
        self._trail = WeightTrail(watched.sentinels())
        self._stepped: list[Tensor] = []  # what the update of the step before was given
        self._stepping: list[Tensor] = []  # and that of this one
        self._votes = Votes()
        self._sampling = Sampling()
        self._states = KeptStates()
        self._scaler_given = watched.scaler is not None
        self._maps = {} if watched.info.shapeless or watched.info.sharded else linear_maps(watched.info)
        self.next_step()

    # the step

    def next_step(self) -> None:
        number = self.steps + 1
        age = number - self.first_step + 1
        self.record = StepRecord(number)
        self.record.sampled = age <= EARLY or number % OFTEN == 0 or self._unsettled()
        self.record.read = age <= EARLY or number % self.every == 0
        self._stepped, self._stepping = self._stepping, []

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
        record.micros = micro_batches(batch)
        record.loss = _number(loss)
        said = metrics if metrics is not None else loss if isinstance(loss, dict) else {}
        record.metrics |= {str(k): number for k, v in said.items() if (number := _number(v)) is not None}
        with self.skipped.noting("a draw"):
            record.metrics = measured(record.micros, self.watched.chat_form.ends) | record.metrics
        if loss is not None and record.loss is None and isinstance(loss, dict):
            record.loss = next((_number(v) for k, v in loss.items() if "loss" in str(k).lower()), None)
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
        if record.norm is None and record.norm_tensor is not None:
            record.norm = float(record.norm_tensor)
        record.scale = self.watched.scale
        record.own_draw = self._sampling.drew(record.token_ids)
        self._count_others(record)
        with self.skipped.noting("history"):
            self.history.take(self.watched, record)
        if Probe.ROWS in self.probes:
            with self.skipped.noting("rows"):
                measured = [] if record.token_ids else record.measured_rows
                self.history.rows.take(record.token_ids, record.class_labels, record.row_numbers, measured)
                self.history.sample.take(record)
        if record.read and record.updated and Probe.FACTS in self.probes:
            with self.skipped.noting("facts"):
                self.history.facts = facts_of(self.watched, record, self.history)
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

    @property
    def _never_reported(self) -> bool:
        """Whether the loop never calls step(): the next pass then ends the step before."""
        return self.record.updated and not self.record.reported and not self.history.reported

    # what hooks report

    @guarded
    def on_forward(self, outer: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        info = self.watched.info
        if not self.gradients_on:
            if outer:
                self._trail.evaluates()
                self.history.passes.add(info.model.training)
                self._sampling.passed(Call.to(info.model, args, kwargs).ids)
            if outer and self.steps and info.model.training and info.dropout_rate > 0:
                self.history.random_evaluations += self._votes.passed(args, kwargs)
            return
        self._votes.ended()
        if outer and self._never_reported:
            self.end()
        record = self.record
        if outer:
            self.history.passes.trained()
            record.outer_called = True
        else:
            record.inner_called = True
        if not outer and record.outer_called:
            return
        if record.number == self.first_step and not record.calls and not info.shapeless:
            self.history.began_fresh = looks_fresh(info)
        if Probe.WEIGHTS_KEPT in self.probes and not record.calls and not record.updated:
            self._compare_weights(record)
        call = Call.to(info.model, args, kwargs)
        self.judge.called(call, record.number)
        record.events.append("forward")
        record.calls.append(call)
        self._inside = True
        if Probe.REPLAY in self.probes:
            record.rng.append(torch.get_rng_state())
            kind = info.device.type
            record.autocast.append(torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None)
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

    @guarded
    def on_other_update(self, optimizer: Any) -> None:
        """An update of the model's parameters by an optimizer that nobody gave to the doctor."""
        if optimizer in self.watched.optimizers:
            return
        names = self.watched.info.names
        if any(id(p) in names for group in optimizer.param_groups for p in group["params"]):
            self.record.other = weakref.ref(optimizer)

    @guarded
    def on_backward(self, root: Any, inputs: Any) -> None:
        if self._never_reported and self.record.calls:
            self.end()
        record = self.record
        self._loss_from = None
        tensor = root[0] if isinstance(root, tuple | list) and root else root
        if "backward" not in record.events:
            if Probe.LEFT_OVER in self.probes:
                self._look_for_left_over(record)
            if Probe.MODES in self.probes:
                self._look_at_modes(record)
            if record.sampled:
                record.kept = self._idle_with_gradients()
        record.events.append("backward")
        if isinstance(tensor, Tensor) and tensor.numel() == 1:
            if inputs is None and self._depth == 0 and self._begun_before(tensor):
                record.backward_again += 1
            record.roots.append(tensor.detach())
            if record.means:  # the loss functions that were called since the pass before
                one = record.means[0][1] if len(record.means) == 1 else None
                record.shares.append((record.means[0][0], tensor.detach(), one))
                record.means = []
        if record.number < self.first_step + EARLY and Probe.GRAPH in self.probes and not self.watched.info.sharded:
            record.other_leaves += other_leaves(tensor, self.watched.info.names)
        if record.number == self.first_step and Probe.BACKWARD in self.probes and not self.watched.info.sharded:
            record.own_backward |= has_own_backward(tensor)
        self._depth += 1
        if record.read and self._depth == 1 and Probe.PASSES in self.probes and not record.updated:
            record.passes = record.passes or PassGradients(self._trained())
            record.passes.begins()

    def _begun_before(self, loss: Tensor) -> bool:
        """Whether a backward pass of this step began at this very loss, and its gradients are there still."""
        same = any(root.data_ptr() == loss.data_ptr() for root in self.record.roots)
        return same and any(p.grad is not None and bool(local(p.grad).any()) for p in self.watched.sentinels())

    @guarded
    def on_backward_ended(self) -> None:
        self._depth -= 1
        if self.record.passes is not None and self._depth == 0 and not self.record.updated:
            self.record.passes.ended()

    def _trained(self) -> dict[str, nn.Parameter]:
        """What an optimizer trains, by name."""
        held = {id(p) for p in self.watched.held}
        return {n: p for n, p in self.watched.info.parameters.items() if p.requires_grad and id(p) in held}

    def _look_for_left_over(self, record: StepRecord) -> None:
        """Gradients that are there before the first backward pass of a step."""
        if record.number == self.first_step or (record.number > self.first_step + 10 and not record.sampled):
            return
        stepped = {id(p): p for p in self._stepped}  # what another optimizer holds may wait for its own step
        looked_at = self._trail.parameters if not self.watched.optimizers else stepped.values()
        if not record.sampled:
            looked_at = [p for p in self._trail.parameters if id(p) in stepped or not self.watched.optimizers]
        masters = self.watched.masters  # no backward pass adds to these
        there = [(p, p.grad) for p in looked_at if p.grad is not None and not p.grad.is_sparse and id(p) not in masters]
        kept = [(p, local(grad)) for p, grad in there if local(grad).numel()]
        for (parameter, _), norm in zip(kept, update_sample.norms_of([g for _, g in kept]), strict=True):
            record.left_over = max(record.left_over, norm)
            if norm > 0:
                record.left_in.append(self.watched.info.names.get(id(parameter), "?"))

    def _look_at_modes(self, record: StepRecord) -> None:
        info = self.watched.info
        if not info.model.training:
            record.in_eval = ["model"]
        elif record.sampled or record.number <= 20:
            record.in_eval = [name for name, module in info.dropout_modules if not module.training]

    @guarded
    def on_clip(self, parameters: Any, max_norm: float, norm: Any) -> None:
        self.record.events.append("clip")
        if self.record.passes is not None and not self.record.updated:
            self.record.passes.updating()
        self.record.clipped_to = float(max_norm)
        if isinstance(norm, Tensor):
            given = [parameters] if isinstance(parameters, Tensor) else parameters
            self.record.clips.append(({id(p) for p in given if p.grad is not None}, local(norm.detach())))
            self.record.norm_tensor = local(norm.detach())
            self._norm(self.record, [])  # some loops make no update when this is not finite

    @guarded
    def on_clip_values(self, limit: Any) -> None:
        self.record.events.append("clip")
        if self.record.passes is not None and not self.record.updated:
            self.record.passes.updating()
        self.record.values_clipped_to = float(limit)

    @guarded
    def on_state_given(self, state: Any) -> None:
        self._states.given(state)

    @guarded
    def on_state_loaded(self, state: Any) -> None:
        self.record.loaded_itself = self._states.age(state, self.watched.info.model.parameters())

    @guarded
    def on_update_begins(self, optimizer: Any) -> None:
        record = self.record
        if record.updated and record.reported and len(self.watched.optimizers) <= 1:
            return
        record.events.append("update")
        self._stepping += [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        record.rates = [rate_of(group) for group in optimizer.param_groups]
        own = {id(group) for group in optimizer.param_groups}
        self._look_for_missing(optimizer)
        record.scheduled |= rates_set(self.watched.schedulers, optimizer)
        if record.sampled:
            record.idle = self._idle_with_gradients()
            record.has_gradient |= {id(p) for p in self._stepping if p.grad is not None}
        record.group_rates |= {i: rate_of(g) for i, g in self.watched.groups if id(g) in own}
        if record.norm == 0:  # of a clip that had nothing to clip, or indeed of all
            record.norm_tensor = None
        self._norm(record, gradients)
        dense = [local(g) for g in gradients if not g.is_sparse]
        record.no_gradients = not gradients or (
            record.sampled and bool(dense) and float(update_sample.norm_of(dense)) == 0
        )
        if record.passes is not None:
            record.passes.updating()
        if record.sampled and Probe.UNITS in self.probes and not record.broken:
            record.units = idle_units(self._maps)
        if record.clips and record.sampled and Probe.CLIPPING in self.probes:
            record.unclipped = update_sample.unclipped(record.clips, optimizer)
        self.judge.updating(record, cleared="zero_grad" in record.events[_last(record.events, "backward") :])
        if record.sampled and Probe.UPDATES in self.probes:
            self._taken.append((optimizer, update_sample.before(optimizer, self.watched.info.names)))

    def _look_for_missing(self, optimizer: Any) -> None:
        """Count the updates, in the beginning, that a parameter had no gradient for."""
        if self.history.made[id(optimizer)] < GRADIENT_CUT["updates"]:
            self.history.made.update([id(optimizer)])
            held = [p for group in optimizer.param_groups for p in group["params"]]
            self.history.without.update(id(p) for p in held if p.requires_grad and p.grad is None)

    def _idle_with_gradients(self) -> set[int]:
        """Optimizers that have never stepped, and whose parameters have gradients now."""
        return {idle for idle, has in idle_optimizers(self.watched.optimizers, self.history.made) if has}

    def _norm(self, record: StepRecord, gradients: list[Tensor]) -> None:
        dense = [local(g) for g in gradients if not g.is_sparse]
        if record.norm_tensor is None and dense and Probe.GRADIENT_NORM in self.probes:
            record.norm_tensor = update_sample.norm_of(dense)
        if record.norm_tensor is not None and record.norm_tensor.device.type == "cpu":
            record.norm = float(record.norm_tensor)
            if not math.isfinite(record.norm) and not self.watched.scaling:
                self.judge.broke(record, record.roots[-1].item() if record.roots else math.nan)

    @guarded
    def on_update_ended(self, optimizer: Any) -> None:
        record = self.record
        taken, self._taken = self._taken, []
        for its, before in taken:
            if its is optimizer:
                record.update = update_sample.after(before, its)
            else:
                self._taken.append((its, before))
        record.updated = True
        self._states.updates += 1
        if Probe.WEIGHTS_KEPT in self.probes:
            self._trail.updated()
        if record.reported:
            self.end()

    @guarded
    def on_measure(self, value: Any) -> None:
        """What a schedule that follows a measure is told."""
        measure = _number(value)
        if measure is not None and math.isfinite(measure):
            self.history.measures.append(measure)

    @guarded
    def on_scaler(self, scaler: Any, name: str) -> None:
        """A scaler that was not given, where one loop alone is watched: the loop's own."""
        alone = sum(ref() is not None for ref in LISTENERS) == 1
        if self.watched.scaler is None and not self._scaler_given and alone and scaler.is_enabled():
            self.watched.scaler = scaler
        if self.watched.scaler is scaler and not self._scaler_given:
            self.on_event(name)

    @guarded
    def on_event(self, name: str) -> None:
        self.record.events.append(name)
        if name == "zero_grad" and not self.record.updated:  # a closure's, too, which the update calls several times
            self.record.left_over = 0.0  # what was left, and what was read, belonged to a pass that is not stepped with
            self.record.dropped |= set(self.record.loss_gradients)
        if name == "scaler.update" and not self.record.updated:
            self.record.skipped = True
            if self.record.reported:
                self.end()


def _last(events: list[str], name: str) -> int:
    """Where this event happened last; 0 if it did not."""
    return max((i for i, event in enumerate(events) if event == name), default=0)


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        return float(value.detach()) if value.numel() == 1 else float(value.detach().float().mean())
    if isinstance(value, int | float):
        return float(value)
    return float(value) if type(value).__module__ == "numpy" and getattr(value, "size", 0) == 1 else None
