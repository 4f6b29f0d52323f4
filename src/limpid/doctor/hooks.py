"""Hooks in a training loop: forward, backward, clip, update, schedule, in the order in which they happen.

Methods of the user's own objects are wrapped, or hooked where PyTorch offers a hook. Functions of torch that no
object owns, backward, clipping and losses, are wrapped while somebody watches; the originals come back when the
last one ends.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad

from limpid.doctor.watched import Watched


class LoopListener(Protocol):
    """What hooks report to. Each method must be quick, and must not raise."""

    def on_forward(self, outer: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...
    def on_output(self, outer: bool, output: Any) -> None: ...
    def on_loss(self, given: Any, target: Any) -> None: ...
    def on_difference(self, given: Any, target: Any) -> None: ...
    def on_backward(self, root: Any) -> None: ...
    def on_clip(self, parameters: Any, max_norm: float, norm: Any) -> None: ...
    def on_update_begins(self, optimizer: Any) -> None: ...
    def on_update_ended(self, optimizer: Any) -> None: ...
    def on_event(self, name: str) -> None: ...


class Hooks:
    """Everything that was wrapped for one listener, and how to unwrap it."""

    def __init__(self, listener: LoopListener) -> None:
        self.listener = listener
        self.undo: list[Callable[[], Any]] = []
        _drop(None)
        _patch()
        LISTENERS.append(weakref.ref(listener))

    def close(self) -> None:
        for undo in reversed(self.undo):
            undo()
        self.undo.clear()
        _drop(self.listener)

    def everything(self, watched: Watched) -> None:
        info = watched.info
        self.model(info.outer, outer=True)
        if info.outer is not info.model:
            if not info.compiled:  # inside compiled code hooks would change what is compiled
                self.model(info.model, outer=False)
        elif info.core is not info.model:  # some trainers call a part of the module themselves, never the whole
            self.model(info.core, outer=False)
        for optimizer in watched.optimizers:
            self.optimizer(optimizer)
        if watched.scaler is not None:
            self.scaler(watched.scaler)
        for scheduler in watched.schedulers:
            self.scheduler(scheduler)

    def model(self, module: nn.Module, outer: bool) -> None:
        listener = self.listener

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            listener.on_forward(outer, args, kwargs)

        def after(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            listener.on_output(outer, output)

        compiled = getattr(module, "_compiled_call_impl", None)
        if compiled is not None:  # compiled in place: hooks would be traced, and change the compiled code

            def call(*args: Any, **kwargs: Any) -> Any:
                listener.on_forward(outer, args, kwargs)
                output = compiled(*args, **kwargs)
                listener.on_output(outer, output)
                return output

            module._compiled_call_impl = call
            self.undo.append(lambda: setattr(module, "_compiled_call_impl", compiled))
            return
        for handle in (
            module.register_forward_pre_hook(before, with_kwargs=True),
            module.register_forward_hook(after, with_kwargs=True, always_call=True),
        ):
            self.undo.append(handle.remove)

    def optimizer(self, optimizer: Any) -> None:
        begins, ends = self.listener.on_update_begins, self.listener.on_update_ended
        if hasattr(optimizer, "register_step_pre_hook"):
            self.undo.append(optimizer.register_step_pre_hook(lambda *_: begins(optimizer)).remove)
            self.undo.append(optimizer.register_step_post_hook(lambda *_: ends(optimizer)).remove)
        else:
            self.around(optimizer, "step", lambda: begins(optimizer), lambda: ends(optimizer))
        self.around(optimizer, "zero_grad", None, lambda: self.listener.on_event("zero_grad"))

    def scaler(self, scaler: Any) -> None:
        for name in ("scale", "unscale_", "step", "update"):
            event = f"scaler.{name}"
            self.around(scaler, name, lambda event=event: self.listener.on_event(event), None)  # type: ignore[misc]

    def scheduler(self, scheduler: Any) -> None:
        self.around(scheduler, "step", None, lambda: self.listener.on_event("schedule"))

    def around(
        self, owner: Any, name: str, before: Callable[[], None] | None, after: Callable[[], None] | None
    ) -> None:
        """Wrap one bound method of one object."""
        if not hasattr(owner, name):
            return
        original = getattr(owner, name)
        own = name in vars(owner)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                before()
            result = original(*args, **kwargs)
            if after is not None:
                after()
            return result

        setattr(owner, name, wrapped)
        self.undo.append(lambda: setattr(owner, name, original) if own else vars(owner).pop(name, None))


LISTENERS: list[weakref.ref[LoopListener]] = []
"""Every listener there is. Models are watched as long as somebody holds them: nothing here keeps one alive."""
_originals: list[tuple[Any, str, Any]] = []
"""Functions that no object owns, as they were: (module, name, function)."""


def _patch() -> None:
    """Wrap backward, clipping and losses, unless they are wrapped already."""
    if _originals:
        return
    _wrap(torch.autograd, "backward", ("tensors",), "on_backward")
    _wrap(clip_grad, "_clip_grads_with_norm_", ("parameters", "max_norm", "total_norm"), "on_clip")
    for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
        _wrap(F, name, ("input", "target"), "on_difference")
    _wrap(F, "cross_entropy", ("input", "target"), "on_loss")


def _wrap(owner: Any, name: str, parameters: tuple[str, ...], event: str) -> None:
    """Report the first arguments of a function, by position or name, to every listener before it runs."""
    original = getattr(owner, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():  # compiled code holds the original alone
            given = dict(zip(parameters, args, strict=False)) | kwargs
            for ref in LISTENERS:
                if (listener := ref()) is not None:
                    getattr(listener, event)(*(given.get(parameter) for parameter in parameters))
        return original(*args, **kwargs)

    _originals.append((owner, name, original))
    setattr(owner, name, wrapped)


def _drop(listener: LoopListener | None) -> None:
    """Report nothing more to this one, nor to those that are gone; the last one leaves everything as it was."""
    LISTENERS[:] = [ref for ref in LISTENERS if ref() is not None and ref() is not listener]
    if not LISTENERS:
        while _originals:
            setattr(*_originals.pop())
