"""Which models that are no part of the watched one a loop calls, heard in steps that are described."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from limpid.doctor.baseline import module_calls
from limpid.doctor.description.beside import Beside
from limpid.doctor.rule import Probe

if TYPE_CHECKING:
    from limpid.doctor.step_recorder import StepRecorder


class OtherCalls:
    """Hears calls that none of the watched model and no other such call makes."""

    def __init__(self, recorder: StepRecorder) -> None:
        self.recorder = recorder
        info = recorder.watched.info
        self._model = info.model
        self._own = {id(one) for model in (info.outer, info.model) for one in model.modules()}
        self._depth = 0  # of others that run
        self._hears = Probe.FACTS in recorder.probes and not info.compiled  # to listen would be compiled in
        self._listens = False

    def begins(self) -> None:
        """A step begins, which is described or not."""
        self._depth, wanted = 0, self._hears and self.recorder.record.read
        if wanted != self._listens:
            (module_calls.listen if wanted else module_calls.leave)(self)
            self._listens = wanted

    def close(self) -> None:
        module_calls.leave(self)
        self._hears = self._listens = False

    def wants_calls(self) -> bool:
        recorder = self.recorder
        return not (recorder.is_paused or recorder.skipped.too_many or recorder.runs is not None)

    def before_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Beside | bool:
        """What is known of the model's calls; else whether others that are called now are called by it."""
        if self._depth or not self._is_other(module):
            inside = self._depth > 0 or id(module) in self._own
            self._depth += inside
            return inside
        self._depth += 1
        with self.recorder.skipped.noting("other models that are called"):
            known = self.recorder.record.besides.setdefault(id(module), Beside(module))
            known.called(args, kwargs)
            return known
        return True

    def after_call(self, module: nn.Module, known: Beside | bool, output: Any) -> None:
        self._depth -= bool(known)
        if isinstance(known, Beside):
            with self.recorder.skipped.noting("other models that are called"):
                known.returned(output)

    def _is_other(self, module: nn.Module) -> bool:
        """Whether it has weights, and is neither the watched model, nor a part of it that learns, nor around it."""
        parameters = list(module.parameters())
        if id(module) in self._own:
            return module is not self._model and bool(parameters) and not any(p.requires_grad for p in parameters)
        return bool(parameters) and not any(one is self._model for one in module.modules())
