"""Seeing the loop: forward, backward, clip, update, schedule, in the order in which they happen.

Methods of the user's own objects are wrapped, or hooked where PyTorch offers a hook. Two functions of torch that no
object owns, backward and clipping, are wrapped while somebody watches; the originals come back when the last one ends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.utils import clip_grad


class Listener(Protocol):
    """Who is told. Each method must be quick, and must not raise."""

    def on_forward(self, outer: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...
    def on_output(self, outer: bool, output: Any) -> None: ...
    def on_backward(self, root: Any) -> None: ...
    def on_clip(self, parameters: Any, max_norm: float, norm: Any) -> None: ...
    def on_update_begins(self, optimizer: Any) -> None: ...
    def on_update_ended(self, optimizer: Any) -> None: ...
    def on_event(self, name: str) -> None: ...


class Taps:
    """Everything that was wrapped for one listener, and how to unwrap it."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.undo: list[Callable[[], Any]] = []
        WATCHED.append(listener)
        _patch()
        self.undo.append(lambda: WATCHED.remove(listener))

    def close(self) -> None:
        for undo in reversed(self.undo):
            undo()
        self.undo.clear()
        if not WATCHED:
            _unpatch()

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
            module.register_forward_hook(after, with_kwargs=True),
        ):
            self.undo.append(handle.remove)

    def optimizer(self, optimizer: Any) -> None:
        inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps
        if hasattr(inner, "register_step_pre_hook"):
            for handle in (
                inner.register_step_pre_hook(lambda *_: self.listener.on_update_begins(inner)),
                inner.register_step_post_hook(lambda *_: self.listener.on_update_ended(inner)),
            ):
                self.undo.append(handle.remove)
        else:
            self.around(
                inner,
                "step",
                lambda: self.listener.on_update_begins(inner),
                lambda: self.listener.on_update_ended(inner),
            )
        self.around(inner, "zero_grad", None, lambda: self.listener.on_event("zero_grad"))

    def scaler(self, scaler: Any) -> None:
        for name in ("scale", "unscale_", "step", "update"):
            event = f"scaler.{name}"
            self.around(scaler, name, lambda event=event: self.listener.on_event(event), None)  # type: ignore[misc]

    def scheduler(self, scheduler: Any) -> None:
        inner = getattr(scheduler, "scheduler", scheduler)
        self.around(inner, "step", None, lambda: self.listener.on_event("schedule"))

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


WATCHED: list[Listener] = []
_originals: dict[str, Any] = {}


def _patch() -> None:
    if _originals:
        return
    _originals["backward"] = torch.autograd.backward
    _originals["clip"] = getattr(clip_grad, "_clip_grads_with_norm_", None)

    @functools.wraps(_originals["backward"])
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        for listener in WATCHED:
            listener.on_backward(tensors)
        return _originals["backward"](tensors, *args, **kwargs)

    torch.autograd.backward = backward
    if _originals["clip"] is not None:

        @functools.wraps(_originals["clip"])
        def clip(parameters: Any, max_norm: float, total_norm: Any, *args: Any, **kwargs: Any) -> Any:
            for listener in WATCHED:
                listener.on_clip(parameters, max_norm, total_norm)
            return _originals["clip"](parameters, max_norm, total_norm, *args, **kwargs)

        clip_grad._clip_grads_with_norm_ = clip


def _unpatch() -> None:
    if not _originals:
        return
    torch.autograd.backward = _originals["backward"]
    if _originals["clip"] is not None:
        clip_grad._clip_grads_with_norm_ = _originals["clip"]
    _originals.clear()
