"""What hooks report of backward passes and clipping becomes part of the record of the step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from limpid.doctor import update_sample
from limpid.doctor.devices import on_host
from limpid.doctor.finding import Skipped
from limpid.doctor.graph_leaves import has_own_backward, other_leaves
from limpid.doctor.history import History
from limpid.doctor.idle_units import idle_units, linear_maps
from limpid.doctor.loop_facts import EARLY
from limpid.doctor.optimizers_used import idle_optimizers
from limpid.doctor.pass_gradients import PassGradients
from limpid.doctor.pass_recorder import Judge, PassRecorder, guarded
from limpid.doctor.rule import Probe
from limpid.doctor.step_record import StepRecord
from limpid.doctor.watched import Watched
from limpid.doctor.weight_trail import FEW, WeightTrail
from limpid.doctor.weights import local, sample


class BackwardRecorder(PassRecorder):
    """Losses that backward passes begin with, gradients that they find and leave, and how these are clipped."""

    def __init__(
        self,
        watched: Watched,
        judge: Judge,
        history: History,
        skipped: Skipped,
        first_step: int,
        probes: frozenset[Probe],
    ) -> None:
        super().__init__(watched, judge, history, skipped, probes)
        self.first_step = first_step
        self._trail = WeightTrail(watched.sentinels())
        self._maps = {} if watched.info.shapeless or watched.info.sharded else linear_maps(watched.info)
        self._read: Tensor | None = None  # the norm that was read last
        self._looks_itself = False  # whether an update is told on the device that a gradient is not finite, and rests
        self._stepped: list[Tensor] = []  # what the update of the step before was given
        self._stepped_with: list[tuple[Tensor, Tensor]] = []  # and a few elements of some of the gradients
        self._left: list[tuple[Tensor, Tensor]] = []  # gradients that are there as a pass begins, and elements of them

    @guarded
    def on_backward(self, root: Any, inputs: Any) -> None:
        if self._never_reported and self.record.calls:
            self.end()
        record = self.record
        self._loss_from, self._losses = None, 0
        self._parts.end()
        tensor = root[0] if isinstance(root, tuple | list) and root else root
        if Probe.LEFT_OVER in self.probes and ("backward" not in record.events or record.passed_by):
            self._look_for_left_over(record)
        if "backward" not in record.events:
            if Probe.MODES in self.probes:
                self._look_at_modes(record)
            with self.skipped.noting("weights between updates"):
                self.history.so_far.kept.begins(self.watched)
                self.history.so_far.held.begins(record.read)
                self.history.so_far.alike.begins(self.watched.info)
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
        if self._depth == 0 and isinstance(tensor, Tensor) and (ways := self._ways()) is not None:
            with self.skipped.noting("the gradient's way"), self.paused():
                ways.begins(tensor, not record.gradient_hooks)
        self._depth += 1
        if record.read and self._depth == 1 and Probe.PASSES in self.probes and not record.updated:
            record.passes = record.passes or PassGradients(self._trained())
            record.passes.begins(tensor)

    def _begun_before(self, loss: Tensor) -> bool:
        """Whether a backward pass of this step began at this very loss, and its gradients are there still."""
        same = any(root.data_ptr() == loss.data_ptr() for root in self.record.roots)
        return same and any(p.grad is not None and bool(local(p.grad).any()) for p in self.watched.sentinels())

    @guarded
    def on_backward_ended(self) -> None:
        self._depth -= 1
        if self._depth == 0 and self._left:
            self._look_for_what_was_added(self.record)
        if self._depth == 0 and self.record.ways is not None:
            self.record.ways.ended()
        if self._depth == 0 and self.record.number == self.first_step and Probe.BACKWARD in self.probes:
            self.record.arrived |= {id(p) for p in self.watched.info.parameters.values() if p.grad is not None}
        if self._depth == 0 and self.record.sampled and Probe.UNITS in self.probes and not self.record.updated:
            self.record.idle_after_pass = idle_units(self._maps)
        if self.record.passes is not None and self._depth == 0 and not self.record.updated:
            self.record.passes.ended()

    def _trained(self) -> dict[str, nn.Parameter]:
        """What an optimizer trains, by name."""
        held = {id(p) for p in self.watched.held}
        return {n: p for n, p in self.watched.info.parameters.items() if p.requires_grad and id(p) in held}

    def _idle_with_gradients(self) -> set[int]:
        """Optimizers that have never stepped, and whose parameters have gradients now."""
        return {idle for idle, has in idle_optimizers(self.watched.optimizers, self.history.made) if has}

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
                record.left_in[id(parameter)] = norm
        now = [(sample(p.grad, FEW), some) for p, some in self._stepped_with if p.grad is not None]
        record.left_changed = any(bool(left.any()) and not torch.equal(left, some) for left, some in now)
        self._left = [(p, sample(grad, FEW).clone()) for p, grad in kept] if record.left_over else []

    def _look_for_what_was_added(self, record: StepRecord) -> None:
        """Whether the pass added to what was left; a pass of another model adds nothing to it."""
        now = [(sample(p.grad, FEW), some) for p, some in self._left if p.grad is not None]
        record.passed_by = all(torch.equal(some, before) for some, before in now)
        if record.passed_by:
            record.left_over, record.left_in, record.left_changed = 0.0, {}, False
        self._left = []

    def _look_at_modes(self, record: StepRecord) -> None:
        info = self.watched.info
        if not info.model.training:
            record.in_eval = ["model"]
        elif record.sampled or record.number <= 20:
            record.in_eval = [
                name for name, module in info.dropout_modules if not module.training and info.learns(name)
            ]

    @guarded
    def on_clip(self, parameters: Any, max_norm: float, norm: Any) -> None:
        self.record.events.append("clip")
        if self.record.passes is not None and not self.record.updated:
            self.record.passes.updating()
        self.record.clipped_to = float(max_norm)
        norm = torch.tensor(norm) if isinstance(norm, float) else norm
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

    def _norm(self, record: StepRecord, gradients: list[Tensor]) -> None:
        dense = [local(g) for g in gradients if not g.is_sparse]
        if record.norm_tensor is None and dense and Probe.GRADIENT_NORM in self.probes:
            record.norm_tensor = update_sample.norm_of(dense)
        if record.norm_tensor is None:
            return
        # on a device this is the one wait of a step; behind an update that does not look itself it would be too late
        later = self._looks_itself and not record.sampled and not on_host(record.norm_tensor)
        if not later or (record.clips and not record.clips[-1][0]):  # or of a clip that had nothing
            self._read_norm(record)

    def _read_norm(self, record: StepRecord) -> None:
        """Know the norm; where it is no number, the weights are still those that made it so."""
        if record.norm_tensor is None or record.norm_tensor is self._read:
            return
        self._read, record.norm = record.norm_tensor, float(record.norm_tensor)
        if not math.isfinite(record.norm) and not self.watched.scaling:
            self.judge.broke(record, record.roots[-1].item() if record.roots else math.nan)
