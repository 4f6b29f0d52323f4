"""What hooks report becomes sketches of the first steps and a line of every step, for a baseline."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from limpid.doctor.baseline import module_calls, trail
from limpid.doctor.baseline.file import Baseline
from limpid.doctor.baseline.sketcher import StepSketcher, is_compiled, is_pass, states_of_random, tensors_of
from limpid.doctor.baseline.trail import Line
from limpid.doctor.loop_listener import LoopListener

if TYPE_CHECKING:
    from limpid.doctor.contracts import Contract
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.step_recorder import StepRecorder

SKETCHED = 3
"""First steps that are sketched: rounding grows behind them."""
COVERED = (
    *("cross_entropy", "binary_cross_entropy_with_logits", "kl_div"),
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
)
"""Losses that are told of before they run."""


def unseen(method: Callable[..., None]) -> Callable[..., None]:
    """Look on without gradients, and never while the doctor itself uses the model; an error is noted, not raised."""

    @functools.wraps(method)
    def call(self: LoopSketcher, *args: Any, **kwargs: Any) -> None:
        recorder = self.recorder
        if recorder.is_paused or recorder.skipped.too_many or self.number > trail.LAST:
            return
        learns = torch.is_grad_enabled()
        with recorder.skipped.noting("baseline"), torch.no_grad():
            method(self, learns, *args, **kwargs)

    return call


class LoopSketcher:
    """Follows a loop's steps by itself: one ends when another forward pass begins behind its update, or is judged."""

    def __init__(self, recorder: StepRecorder, baseline: Baseline, first_step: int) -> None:
        self.recorder, self.watched, self.baseline = recorder, recorder.watched, baseline
        self.first_step, self.number = first_step, first_step
        self._begin()
        if not is_compiled(self.watched.info):
            module_calls.listen(self)

    def close(self) -> None:
        module_calls.leave(self)

    def _begin(self) -> None:
        self.line = Line()
        sketched = self.number < self.first_step + SKETCHED
        self.sketcher = StepSketcher(self.watched) if sketched else None
        if not sketched:
            module_calls.leave(self)
        self.inside: nn.Module | None = None  # what runs, of what is told of as a pass
        self.depth = 0  # of backward passes
        self.updated = self.stands_for_all = False
        self.least = 0  # of the digests of passes
        self._result: Any = None  # of the last loss function

    def finish(self, record: StepRecord | None = None) -> None:
        """The step has ended; `record` where it is judged already."""
        line = self.line
        if record is not None:
            line.loss, line.norm = record.loss, record.true_norm if record.true_norm is not None else record.norm
        step = None if self.sketcher is None else self.sketcher.finish()
        self.baseline.take(self.number, self.first_step, step, line)
        self.number += 1
        self._begin()

    @unseen
    def ended(self, learns: bool, record: StepRecord) -> None:
        """Before a step is judged."""
        if record.number == self.number and (self.updated or record.skipped):
            self.finish(record)

    @unseen
    def reported(self, learns: bool, batch: Any) -> None:
        """Before the loop's report is."""
        if self.sketcher is not None:
            self.sketcher.reported(batch)
        if not self.line.passes:
            self.line.batch = trail.digest(tensor for _, tensor in tensors_of(batch, numpy=True))

    def wants_calls(self) -> bool:
        """Whether a call of a module is a part of a pass that is learned from, and of a step that is sketched."""
        asleep = self.recorder.is_paused or self.recorder.skipped.too_many
        return self.sketcher is not None and not asleep and not self.depth and torch.is_grad_enabled()

    def before_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What has to be known after it."""
        with self.recorder.skipped.noting("baseline"), torch.no_grad():
            if self.updated and id(module) in self.sketcher_now.modules:
                self.finish(self._record)
            if self.sketcher is not None:
                return self.sketcher, self.sketcher.before_call(module, args, kwargs)
        return None

    def after_call(self, module: nn.Module, known: Any, output: Any) -> None:
        if known is not None and known[1] is not None:
            with self.recorder.skipped.noting("baseline"), torch.no_grad():
                known[0].after_call(module, known[1], output)

    @property
    def sketcher_now(self) -> StepSketcher:
        """Of a step that is sketched."""
        assert self.sketcher is not None
        return self.sketcher

    @unseen
    def on_forward(self, learns: bool, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not learns or self.depth or self.inside is not None or not is_pass(self.watched.info, module):
            return
        if self.updated:
            self.finish(self._record)
        self.inside = module
        line, info = self.line, self.watched.info
        if not line.passes:
            line.random, line.start = states_of_random(), trail.of_weights(info)
            line.evaluating = sum(not module.training for module in info.model.modules())
            line.trained = sum(p.numel() for p in info.parameters.values() if p.requires_grad and not is_lazy(p))
        line.passes += 1
        digest = trail.digest(tensor for _, tensor in tensors_of([*args, kwargs]))
        line.batch ^= digest
        self.stands_for_all = line.passes == 1 or digest < self.least  # in whatever order the passes come
        self.least = digest if self.stands_for_all else self.least
        if self.sketcher is not None:
            self.sketcher.begins(args, kwargs)

    @property
    def _record(self) -> StepRecord | None:
        """The recorder's step, where it is this one still."""
        record = self.recorder.record
        return record if record.number == self.number else None

    @unseen
    def on_output(self, learns: bool, module: nn.Module, output: Any) -> None:
        if self.inside is not module:
            return
        self.inside = None
        if self.stands_for_all:
            found = next((t for _, t in tensors_of(output) if t.is_floating_point() and t.ndim), None)
            self.line.outputs = None if found is None else trail.of_output(found)
        if self.sketcher is not None:
            self.sketcher.gave(output)

    def _compared(self, function: str, given: Any, target: Any) -> None:
        if self.sketcher is not None and not self.depth and isinstance(given, Tensor):
            self.sketcher.compared(function, given, target)

    @unseen
    def on_loss(self, learns: bool, given: Any, target: Any, ignored: Any = None) -> None:
        if learns:
            self._compared("cross_entropy", given, target)

    @unseen
    def on_difference(self, learns: bool, given: Any, target: Any) -> None:
        if learns:
            self._compared("the loss", given, target)

    @unseen
    def on_divergence(self, learns: bool, given: Any, target: Any) -> None:
        if learns:
            self._compared("kl_div", given, target)

    @unseen
    def on_binary(self, learns: bool, given: Any, target: Any) -> None:
        if learns:
            self._compared("binary_cross_entropy_with_logits", given, target)

    def wants_arguments(self) -> bool:
        """Whether arguments of losses are looked at now."""
        return self.sketcher is not None and not self.recorder.is_paused

    @unseen
    def on_arguments(
        self, learns: bool, contract: Contract, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Other losses of torch's, once each: a function may have several contracts."""
        if learns and contract.name.endswith("loss") and contract.name not in COVERED and result is not self._result:
            self._result = result
            given = [value for value in contract.given(args, kwargs).values() if isinstance(value, Tensor)]
            self._compared(contract.name, given[0] if given else None, given[1] if len(given) > 1 else None)

    @unseen
    def on_backward(self, learns: bool, root: Any, inputs: Any) -> None:
        if self.updated and not self.depth:
            self.finish(self._record)
        if self.sketcher is not None and not self.depth:
            self.sketcher.ends_in(root)
        self.depth += 1

    @unseen
    def on_backward_ended(self, learns: bool) -> None:
        self.depth = max(0, self.depth - 1)

    @unseen
    def on_update_begins(self, learns: bool, optimizer: Any) -> None:
        if self.line.start is None:
            self.line.random, self.line.start = states_of_random(), trail.of_weights(self.watched.info)
        self.line.rates += [float(group.get("lr") or 0.0) for group in optimizer.param_groups]
        if self.sketcher is not None:
            self.sketcher.update_begins(optimizer)

    @unseen
    def on_update_ended(self, learns: bool, optimizer: Any) -> None:
        self.updated = True
        self.line.end = trail.of_weights(self.watched.info)
        if self.sketcher is not None:
            self.sketcher.update_ended(optimizer)


class Both:
    """Tells a sketcher first, then a recorder, of all that hooks report."""

    def __init__(self, sketcher: LoopSketcher, recorder: LoopListener) -> None:
        self.sketcher, self.recorder = sketcher, recorder

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return getattr(self.recorder, name)
        first, then = getattr(self.sketcher, name, None), getattr(self.recorder, name)
        if first is None:
            return then

        def told(*args: Any) -> None:
            first(*args)
            then(*args)

        return told

    def wants_arguments(self) -> bool:
        """Whether one of them wants any."""
        return self.sketcher.wants_arguments() or self.recorder.wants_arguments()

    def on_arguments(self, contract: Contract, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """To each that wants them."""
        for one in (self.sketcher, self.recorder):
            if one.wants_arguments():
                one.on_arguments(contract, args, kwargs, result)
