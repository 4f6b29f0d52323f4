"""The passes of one run of a loop's loss, of the whole model or of its parts, heard as they are made."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from limpid.doctor.baseline import module_calls
from limpid.doctor.calls import Call, find_logits
from limpid.doctor.loss_gradient import LossGradient, read_call
from limpid.doctor.model_info import ModelInfo, unwrapped
from limpid.doctor.pass_of_parts import PassOfParts


class HeardPasses:
    """Hears calls of modules; the gradient of each pass's logits is read in the backward pass that follows."""

    def __init__(self, info: ModelInfo, read: Callable[[LossGradient], None]) -> None:
        self.info, self.read = info, read
        self.calls: list[Call] = []
        self._modules = {id(module) for module in info.model.modules()}
        self._parts = PassOfParts(info)
        self._depth = 0  # of modules that run
        self._whole = False  # whether the whole model has been called: its parts are then asides
        self._read: set[int] = set()  # passes whose gradient is known: of several parts the last is read first

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Hear what is called inside; of a compiled model the whole alone, by hooks: to listen would be compiled in."""
        if not self.info.compiled:
            module_calls.listen(self)
        model, known = self.info.model, []
        handles = [] if not self.info.compiled else [
            model.register_forward_pre_hook(lambda m, a, k: known.append(self.before_call(m, a, k)), with_kwargs=True),
            model.register_forward_hook(lambda m, a, k, out: self.after_call(m, known.pop(), out), with_kwargs=True),
        ]  # fmt: skip
        try:
            yield
        finally:
            module_calls.leave(self)
            for handle in handles:
                handle.remove()

    def wants_calls(self) -> bool:
        return torch.is_grad_enabled()

    def before_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
        """Whether what comes of the call is looked at; None of a module that is none of the model's."""
        if id(module) not in self._modules:
            return None
        self._depth += 1
        return self._depth == 1 and self._begins(module, args, kwargs)

    def after_call(self, module: nn.Module, known: bool | None, output: Any) -> None:
        if known is None:
            return
        self._depth -= 1
        if not known:
            return
        if self._parts:
            self.calls[-1], comes_of_it = self._parts.gave(self.calls[-1], module, output)
            if not comes_of_it:
                return
        self._look_at(find_logits(output))

    def forget(self) -> None:
        """The gradients that were read before the backward pass are of looks on the way to the loss."""
        self._read.clear()

    def _begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        part = None if module is self.info.model else unwrapped(module)
        if part is not None:
            if self._whole or self._parts.is_no_part(module):
                return False
            if self._parts.goes_on(module, args, kwargs):
                return not self._parts.is_aside
            if not self._parts.begins(module):
                return False
        self._whole |= part is None
        self.info.is_called(self.info.model if part is None else part)
        self.calls.append(Call.to(self.info.model, args, kwargs, part))
        return True

    def _look_at(self, logits: Tensor | None) -> None:
        if logits is None or logits.grad_fn is None:
            return
        kept, slot, index = logits.detach(), logits.output_nr, len(self.calls) - 1

        def back(gradients: tuple[Tensor | None, ...]) -> None:
            gradient = gradients[slot] if slot < len(gradients) else None
            if gradient is None or (self._parts.first is not None and index in self._read):
                return
            reading = read_call(kept, gradient, self.calls[index], self.info.translates)
            if reading is not None:
                self._read.add(index)
                self.read(reading)

        logits.grad_fn.register_prehook(back)
