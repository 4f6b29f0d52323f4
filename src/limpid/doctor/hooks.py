"""Hooks in a training loop: forward, backward, clip, update, schedule, in the order in which they happen.

Methods of the user's own objects are wrapped, or hooked where PyTorch offers a hook; functions that no object owns are
wrapped, too.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from limpid.doctor.loop_listener import LoopListener
from limpid.doctor.watched import Watched
from limpid.doctor.wrapped_functions import SCALING, leave, listen
from limpid.doctor.wrapped_methods import around


def _nothing(*_: Any) -> None:
    """What a hook does in a copy."""


class OfOneModule:
    """A hook of the module that is watched: in a copy of it, or in a file, it does nothing."""

    __slots__ = ("_from_public_api", "hook")  # torch copies what a hook's __dict__ holds, and sets a mark of its own

    def __init__(self, hook: Callable[..., None]) -> None:
        self.hook = hook

    def __call__(self, *given: Any) -> None:
        self.hook(*given)

    def __reduce__(self) -> Any:
        return OfOneModule, (_nothing,)


class Hooks:
    """Everything that was wrapped for one listener, and how to unwrap it."""

    def __init__(self, listener: LoopListener) -> None:
        self.listener = listener
        self.undo: list[Callable[[], Any]] = []
        self._told: set[int] = set()  # modules whose calls are told of
        listen(listener)

    def close(self) -> None:
        for undo in reversed(self.undo):
            undo()
        self.undo.clear()
        leave(self.listener)

    def everything(self, watched: Watched) -> None:
        info = watched.info
        self.part(info.outer)
        if info.outer is not info.model:
            if not info.compiled:  # inside compiled code hooks would change what is compiled
                self.part(info.model)
        elif info.largest is not info.model:  # some trainers call a part of the module themselves, never the whole
            self.part(info.largest)
        if not info.compiled:
            for name, module in info.largest.named_modules():
                if isinstance(module, nn.RNNBase):
                    self.recurrence(name, module)
        if not info.sharded:
            self.state(info.model)
        for optimizer in watched.optimizers:
            self.optimizer(optimizer)
        if watched.scaler is not None:
            self.scaler(watched.scaler)
        for scheduler in watched.schedulers:
            self.scheduler(scheduler)

    def part(self, module: nn.Module) -> None:
        """Report its calls, and what they return."""
        if id(module) in self._told:
            return
        self._told.add(id(module))
        listener = self.listener

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            listener.on_forward(module, args, kwargs)

        def after(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            listener.on_output(module, output)

        compiled = getattr(module, "_compiled_call_impl", None)
        if compiled is not None:  # compiled in place: hooks would be traced, and change the compiled code

            def call(*args: Any, **kwargs: Any) -> Any:
                listener.on_forward(module, args, kwargs)
                output = compiled(*args, **kwargs)
                listener.on_output(module, output)
                return output

            module._compiled_call_impl = call
            self.undo.append(lambda: setattr(module, "_compiled_call_impl", compiled))
            return
        for handle in (
            module.register_forward_pre_hook(OfOneModule(before), with_kwargs=True),
            module.register_forward_hook(OfOneModule(after), with_kwargs=True, always_call=True),
        ):
            self.undo.append(handle.remove)

    def recurrence(self, name: str, module: nn.Module) -> None:
        """Report the state that a recurrent layer is given, and the one that comes out of it."""
        listener = self.listener

        def after(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            given = args[1] if len(args) > 1 else kwargs.get("hx")
            listener.on_recurrence(name, given, output[1] if isinstance(output, tuple) and len(output) > 1 else None)

        self.undo.append(module.register_forward_hook(OfOneModule(after), with_kwargs=True).remove)

    def next_input(self, module: nn.Module, look: Callable[[Any], None]) -> None:
        """Look at what a part of the model is given the next time it is called."""

        def before(_: nn.Module, args: tuple[Any, ...]) -> None:
            handle.remove()
            if args:
                look(args[0])

        handle = module.register_forward_pre_hook(OfOneModule(before))
        self.undo.append(handle.remove)

    def state(self, module: nn.Module) -> None:
        """Report what its state_dict() returns, and what is loaded into it."""
        listener = self.listener

        def given(_: nn.Module, state: Any, *rest: Any) -> None:
            listener.on_state_given(state)

        def loaded(_: nn.Module, state: Any, *rest: Any) -> None:
            listener.on_state_loaded(state)

        self.undo.append(module.register_state_dict_post_hook(OfOneModule(given)).remove)
        self.undo.append(module.register_load_state_dict_pre_hook(OfOneModule(loaded)).remove)

    def optimizer(self, optimizer: Any) -> None:
        """Report each call of its step from outside: what that calls itself, as super().step(), is a part of it."""
        begins, ends = self.listener.on_update_begins, self.listener.on_update_ended

        def before(stepping: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if within_own_step(stepping):
                return None
            closure = kwargs.get("closure") or next((one for one in args[1:2] if callable(one)), None)
            if closure is None:
                begins(optimizer)
                return None
            begun = then_once(closure, functools.partial(begins, optimizer))
            return (args, kwargs | {"closure": begun}) if "closure" in kwargs else ((args[0], begun, *args[2:]), kwargs)

        def after(stepping: Any, *_: Any) -> None:
            if not within_own_step(stepping):
                ends(optimizer)

        if hasattr(optimizer, "register_step_pre_hook"):
            self.undo.append(optimizer.register_step_pre_hook(before).remove)
            self.undo.append(optimizer.register_step_post_hook(after).remove)
        else:
            self.undo.append(around(optimizer, "step", self.listener, before="begins", after="ends"))
        self.undo.append(around(optimizer, "zero_grad", self.listener, after="zero_grad"))

    def scaler(self, scaler: Any) -> None:
        for name in SCALING:
            self.undo.append(around(scaler, name, self.listener, before=f"scaler.{name}"))

    def scheduler(self, scheduler: Any) -> None:
        self.undo.append(around(scheduler, "step", self.listener, after="schedule"))


def within_own_step(stepping: Any) -> bool:
    """Whether the step whose hook asks this was called by one that has the same hooks: its own, or a wrapper's.

    Read off the stack, not counted: a step that ends in an error has no hook to say so.
    """
    caller = sys._getframe(2)  # torch's function around every step
    hooks, frame = stepping._optimizer_step_pre_hooks, caller.f_back
    while frame is not None:
        if frame.f_code is caller.f_code:
            outer = frame.f_locals.get("self")
            if getattr(outer, "_optimizer_step_pre_hooks", None) is hooks:
                return True
        frame = frame.f_back
    return False


def then_once(closure: Callable[..., Any], told: Callable[[], None]) -> Callable[..., Any]:
    """A closure that tells of its first end: the gradients that the update begins with are there only then."""
    ended = False

    @functools.wraps(closure)
    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal ended
        result = closure(*args, **kwargs)
        if not ended:
            ended = True
            told()
        return result

    return called
