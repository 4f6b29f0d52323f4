"""Which parts of a model a loop calls itself, where it never calls the whole: heard in its first passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from limpid.doctor.baseline import module_calls
from limpid.doctor.loop_facts import EARLY

if TYPE_CHECKING:
    from limpid.doctor.hooks import Hooks
    from limpid.doctor.step_recorder import StepRecorder


class CalledParts:
    """Hooks every part that is called while no other one runs, until a step has ended or the whole is called."""

    def __init__(self, recorder: StepRecorder) -> None:
        self.recorder = recorder
        self.hooks: Hooks | None = None  # with which what is found is hooked
        info = recorder.watched.info
        self.parts = {id(module) for module in info.model.modules()} - {id(info.model)}
        if not hasattr(info.outer, "_orig_mod") and getattr(info.model, "_compiled_call_impl", None) is None:
            module_calls.listen(self)  # nobody listens while a model is compiled as a whole: that would be compiled in

    def ended(self) -> None:
        """A step has ended: a loop whose passes were seen calls the same in the next."""
        if self.recorder.record.calls or self.recorder.steps >= self.recorder.first_step + EARLY:
            self.close()

    def close(self) -> None:
        module_calls.leave(self)
        self.hooks = None

    def wants_calls(self) -> bool:
        """Whether a pass that is learned from may begin, or go on, outside of all that is hooked."""
        recorder = self.recorder
        if recorder.record.outer_called:
            self.close()
        known = recorder.is_paused or recorder.skipped.too_many or recorder.runs is not None
        return not known and self.hooks is not None and torch.is_grad_enabled()

    def before_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Hook it: the hooks then tell of this very call."""
        if id(module) in self.parts and self.hooks is not None:
            with self.recorder.skipped.noting("parts that are called"):
                self.hooks.part(module)

    def after_call(self, module: nn.Module, known: Any, output: Any) -> None: ...
