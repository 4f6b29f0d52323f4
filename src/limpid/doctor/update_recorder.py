"""What hooks report of an update, and of what belongs to it, becomes part of the record of the step."""

from __future__ import annotations

import math
import weakref
from typing import Any

from torch import Tensor

from limpid.doctor import update_sample
from limpid.doctor.backward_recorder import BackwardRecorder
from limpid.doctor.description.zeros import zeros
from limpid.doctor.finding import Skipped
from limpid.doctor.history import History
from limpid.doctor.idle_units import idle_units
from limpid.doctor.kept_states import KeptStates
from limpid.doctor.optimizers_used import rates_set
from limpid.doctor.pass_recorder import Judge, guarded
from limpid.doctor.rule import Probe
from limpid.doctor.rules.frozen import PARAMETERS_FROZEN
from limpid.doctor.rules.gradient_flow import GRADIENT_CUT
from limpid.doctor.step_record import StepRecord
from limpid.doctor.watched import Watched
from limpid.doctor.weight_trail import FEW
from limpid.doctor.weights import local, rate_of, sample
from limpid.doctor.wrapped_functions import LISTENERS


class UpdateRecorder(BackwardRecorder):
    """Updates of optimizers, what schedules and scalers do beside them, and weights that are loaded back."""

    def __init__(
        self,
        watched: Watched,
        judge: Judge,
        history: History,
        skipped: Skipped,
        first_step: int,
        probes: frozenset[Probe],
    ) -> None:
        super().__init__(watched, judge, history, skipped, first_step, probes)
        self._stepping: list[Tensor] = []  # what the update of this step was given
        self._taken: list[tuple[Any, update_sample.Before]] = []
        self._states = KeptStates()
        self._not_cleared: dict[int, float] = {}  # of earlier steps' gradients, the norm in each parameter
        self._scaler_given = watched.scaler is not None

    @guarded
    def on_update_begins(self, optimizer: Any) -> None:
        record = self.record
        if record.updated and record.reported and len(self.watched.optimizers) <= 1:
            return
        again = _last(record.events, "backward") < _last(record.events, "update")
        if record.updated and again and Probe.WEIGHTS_KEPT in self.probes:
            record.moved_between_updates |= self._trail.has_moved()
        record.events.append("update")
        self._look_for_whose_were_left(record, optimizer)
        self._looks_itself = isinstance(getattr(optimizer, "found_inf", None), Tensor)
        if record.sampled or record.read:
            getattr(optimizer, "scale_gradients", lambda: None)()  # limpid's own clips in the update
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
        if record.read and not record.updated and Probe.FACTS in self.probes:
            with self.skipped.noting("zeros of gradients"):
                record.zeros = zeros(self.watched.info)
        if record.clips and record.sampled and Probe.CLIPPING in self.probes:
            record.unclipped = update_sample.unclipped(record.clips, optimizer)
        self.judge.updating(record, cleared="zero_grad" in record.events[_last(record.events, "backward") :])
        with self.skipped.noting("weights between updates"):
            self.history.so_far.kept.others.found()
        if record.sampled and Probe.UPDATES in self.probes:
            self._taken.append((optimizer, update_sample.before(optimizer, self.watched.info.names)))

    def _look_for_whose_were_left(self, record: StepRecord, optimizer: Any) -> None:
        """Gradients of earlier steps that this update uses: those that another optimizer holds may be cleared yet."""
        if len(self.watched.optimizers) < 2 or optimizer not in self.watched.optimizers:
            return
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not record.updated:
            self._not_cleared, record.left_in, record.left_over = record.left_in, {}, 0.0
        record.left_in |= {one: norm for one, norm in self._not_cleared.items() if one in own}
        record.left_over = max(record.left_in.values(), default=0.0)

    def _look_for_missing(self, optimizer: Any) -> None:
        """Count the updates, in the beginning, that a parameter had no gradient for."""
        if self.history.made[id(optimizer)] < max(GRADIENT_CUT["updates"], PARAMETERS_FROZEN["updates"]):
            self.history.made.update([id(optimizer)])
            held = [p for group in optimizer.param_groups for p in group["params"]]
            self.history.without.update(id(p) for p in held if p.requires_grad and p.grad is None)
            self.history.frozen_at.update(id(p) for p in held if not p.requires_grad and p.grad is None)

    @guarded
    def on_update_ended(self, optimizer: Any) -> None:
        record = self.record
        taken, self._taken = self._taken, []
        for its, before in taken:
            if its is optimizer:
                made = update_sample.after(before, its)
                record.updates_by = [*(one for one in record.updates_by if one[0] is not its), (its, made)]
            else:
                self._taken.append((its, before))
        record.updated = True
        self._states.updates += 1
        if Probe.LEFT_OVER in self.probes and record.number <= self.first_step + 10:
            kept = [p for p in self._trail.parameters if p.grad is not None and not p.grad.is_sparse]
            self._stepped_with = [(p, sample(p.grad, FEW).clone()) for p in kept if p.grad is not None]
        if Probe.WEIGHTS_KEPT in self.probes:
            self._trail.updated()
            with self.skipped.noting("weights between updates"):
                self.history.so_far.kept.updated(self.watched, record.number, record.sampled)
        if record.reported:
            self.end()

    @guarded
    def on_measure(self, value: Any) -> None:
        """What a schedule that follows a measure is told."""
        measure = single_number(value)
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
        if name == "zero_grad":
            self._not_cleared = {}
        if name == "zero_grad" and not self.record.updated:  # a closure's, too, which the update calls several times
            self.record.left_over = 0.0  # what was left, and what was read, belonged to a pass that is not stepped with
            self.record.dropped |= set(self.record.loss_gradients)
        if name == "scaler.update" and not self.record.updated:
            self.record.skipped = True
            if self.record.reported:
                self.end()

    @guarded
    def on_state_given(self, state: Any) -> None:
        self._states.given(state)

    @guarded
    def on_state_loaded(self, state: Any) -> None:
        self.record.loaded_itself = self._states.age(state, self.watched.info.model.parameters())

    @guarded
    def on_other_update(self, optimizer: Any) -> None:
        """An update by an optimizer that nobody gave to the doctor, of the model's parameters or of another's."""
        if optimizer in self.watched.optimizers:
            return
        names = self.watched.info.names
        if any(id(p) in names for group in optimizer.param_groups for p in group["params"]):
            self.record.other = weakref.ref(optimizer)
        else:
            self.record.beside += 1
            self.history.beside += 1


def _last(events: list[str], name: str) -> int:
    """Where this event happened last; 0 if it did not."""
    return max((i for i, event in enumerate(events) if event == name), default=0)


def single_number(value: Any) -> float | None:
    """What a loop gives as a number: of several their mean; None where it is none."""
    if isinstance(value, Tensor):
        return float(value.detach()) if value.numel() == 1 else float(value.detach().float().mean())
    if isinstance(value, int | float):
        return float(value)
    return float(value) if type(value).__module__ == "numpy" and getattr(value, "size", 0) == 1 else None
