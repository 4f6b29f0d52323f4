"""Hooks in a training loop: forward, backward, clip, update, schedule, in the order in which they happen.

Methods of the user's own objects are wrapped, or hooked where PyTorch offers a hook. Functions of torch that no
object owns, backward, clipping and losses, are wrapped while somebody watches; the originals come back when the
last one ends.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils import checkpoint

from limpid.doctor.contracts import CONTRACTS, Contract
from limpid.doctor.watched import Watched

SCALING = ("scale", "unscale_", "step", "update")
"""What a loop asks of a scaler."""


class LoopListener(Protocol):
    """What hooks report to. Each method must be quick, and must not raise."""

    def on_forward(self, outer: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...
    def on_output(self, outer: bool, output: Any) -> None: ...
    def on_loss(self, given: Any, target: Any) -> None: ...
    def on_difference(self, given: Any, target: Any) -> None: ...
    def on_divergence(self, given: Any, target: Any) -> None: ...
    def on_binary(self, given: Any, target: Any) -> None: ...
    def wants_arguments(self) -> bool: ...
    def on_arguments(self, contract: Contract, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None: ...
    def on_mean(self, name: str, value: Any, reduction: str) -> None: ...
    def on_other_update(self, optimizer: Any) -> None: ...
    def on_backward(self, root: Any, inputs: Any) -> None: ...
    def on_backward_ended(self) -> None: ...
    def on_clip(self, parameters: Any, max_norm: float, norm: Any) -> None: ...
    def on_clip_values(self, limit: Any) -> None: ...
    def on_checkpoint(self, inputs: Any) -> None: ...
    def on_state_given(self, state: Any) -> None: ...
    def on_state_loaded(self, state: Any) -> None: ...
    def on_update_begins(self, optimizer: Any) -> None: ...
    def on_update_ended(self, optimizer: Any) -> None: ...
    def on_event(self, name: str) -> None: ...
    def on_measure(self, value: Any) -> None: ...
    def on_scaler(self, scaler: Any, name: str) -> None: ...


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
        if not info.sharded:
            self.state(info.model)
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
            module.register_forward_pre_hook(OfOneModule(before), with_kwargs=True),
            module.register_forward_hook(OfOneModule(after), with_kwargs=True, always_call=True),
        ):
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
        begins, ends = self.listener.on_update_begins, self.listener.on_update_ended

        def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            closure = kwargs.get("closure") or next((one for one in args[1:2] if callable(one)), None)
            if closure is None:
                begins(optimizer)
                return None
            begun = then_once(closure, functools.partial(begins, optimizer))
            return (args, kwargs | {"closure": begun}) if "closure" in kwargs else ((args[0], begun, *args[2:]), kwargs)

        if hasattr(optimizer, "register_step_pre_hook"):
            self.undo.append(optimizer.register_step_pre_hook(before).remove)
            self.undo.append(optimizer.register_step_post_hook(lambda *_: ends(optimizer)).remove)
        else:
            self.around(optimizer, "step", before="begins", after="ends")
        self.around(optimizer, "zero_grad", after="zero_grad")

    def scaler(self, scaler: Any) -> None:
        for name in SCALING:
            self.around(scaler, name, before=f"scaler.{name}")

    def scheduler(self, scheduler: Any) -> None:
        self.around(scheduler, "step", after="schedule")

    def around(self, owner: Any, name: str, before: str = "", after: str = "") -> None:
        """Report one method of one object before and after it runs.

        It is wrapped in the object's class: an attribute of the object would be saved with it, in its state_dict.
        """
        place: Any = owner if name in getattr(owner, "__dict__", {}) else type(owner)
        if not hasattr(place, name):
            return
        method = next((m for m in _methods if m.place is place and m.name == name), None)
        if method is None:
            method = WrappedMethod(place, name)
            _methods.append(method)
        entry = Entry(weakref.ref(owner), weakref.ref(self.listener), before, after)
        method.entries.append(entry)
        self.undo.append(lambda: method.remove(entry))


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


class Entry(NamedTuple):
    """One object whose method is watched: who is told which event before it and after it."""

    owner: weakref.ref[Any]
    listener: weakref.ref[LoopListener]
    before: str
    after: str


class WrappedMethod:
    """A method, wrapped in its class as long as one of its objects is watched; nothing is kept alive by it."""

    def __init__(self, place: Any, name: str) -> None:
        self.place, self.name = place, name
        self.own, self.original = name in vars(place), getattr(place, name)
        self.entries: list[Entry] = []
        original = self.original

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            owner = args[0] if isinstance(place, type) and args else place
            self.tell(owner, "before")
            result = original(*args, **kwargs)
            self.tell(owner, "after")
            if name == "step" and (args[1:] or kwargs):
                self.measured(owner, [*args[1:], *kwargs.values()][0])
            return result

        setattr(place, name, wrapped)

    def tell(self, owner: Any, when: Literal["before", "after"]) -> None:
        """Tell those who watch this object what happens."""
        for entry in self.entries:
            listener, event = entry.listener(), entry.before if when == "before" else entry.after
            if entry.owner() is not owner or listener is None or not event:
                continue
            match event:
                case "begins":
                    listener.on_update_begins(owner)
                case "ends":
                    listener.on_update_ended(owner)
                case _:
                    listener.on_event(event)

    def measured(self, owner: Any, value: Any) -> None:
        """Tell those who watch a schedule what it is told."""
        for entry in self.entries:
            listener = entry.listener()
            if entry.owner() is owner and listener is not None and entry.after == "schedule":
                listener.on_measure(value)

    def remove(self, entry: Entry) -> None:
        self.entries[:] = [e for e in self.entries if e is not entry and e.owner() is not None]
        if not self.entries and self in _methods:
            _methods.remove(self)
            setattr(self.place, self.name, self.original) if self.own else delattr(self.place, self.name)


_methods: list[WrappedMethod] = []
LISTENERS: list[weakref.ref[LoopListener]] = []
"""Every listener there is. Models are watched as long as somebody holds them: nothing here keeps one alive."""
_every_update: list[Any] = []
"""The handle of the hook on every optimizer's updates."""
_originals: list[tuple[Any, str, Any]] = []
"""Functions that no object owns, as they were: (module, name, function)."""


BACKWARD = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
"""What torch.autograd.backward takes, in its order."""


def _patch() -> None:
    """Wrap backward, clipping and losses, unless they are wrapped already."""
    if _originals:
        return
    _wrap(torch.autograd, "backward", BACKWARD, "on_backward", "on_backward_ended", only=("tensors", "inputs"))
    _wrap(clip_grad, "_clip_grads_with_norm_", ("parameters", "max_norm", "total_norm"), "on_clip")
    for place in (clip_grad, nn.utils):  # one function, by two names
        _wrap(place, "clip_grad_value_", ("parameters", "clip_value"), "on_clip_values", only=("clip_value",))
    _wrap(checkpoint, "check_backward_validity", ("inputs",), "on_checkpoint")
    for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
        _wrap(F, name, ("input", "target"), "on_difference", value="on_mean")
    _wrap(F, "cross_entropy", ("input", "target"), "on_loss", value="on_mean")
    _wrap(F, "kl_div", ("input", "target"), "on_divergence")
    _wrap(F, "binary_cross_entropy_with_logits", ("input", "target"), "on_binary", value="on_mean")
    for contract in CONTRACTS:
        _wrap_contract(contract)
    for name in SCALING:
        _wrap_scaler(name)
    _every_update.append(register_optimizer_step_post_hook(_updated))


def _wrap_scaler(name: str) -> None:
    """Report a method of every scaler of torch's before it runs: a loop may use one that nobody gave to the doctor."""
    original = getattr(torch.amp.GradScaler, name)

    @functools.wraps(original)
    def wrapped(scaler: Any, *args: Any, **kwargs: Any) -> Any:
        for ref in LISTENERS:
            if (listener := ref()) is not None:
                listener.on_scaler(scaler, f"scaler.{name}")
        return original(scaler, *args, **kwargs)

    _originals.append((torch.amp.GradScaler, name, original))
    setattr(torch.amp.GradScaler, name, wrapped)


def _updated(optimizer: Any, *_: Any) -> None:
    """Report an update of any optimizer of torch's, watched or not."""
    for ref in LISTENERS:
        if (listener := ref()) is not None:
            listener.on_other_update(optimizer)


def _wrap(
    owner: Any,
    name: str,
    parameters: tuple[str, ...],
    event: str,
    end: str = "",
    value: str = "",
    only: tuple[str, ...] = (),
) -> None:
    """Report the first arguments of a function, by position or name, to every listener before it runs, and its end.

    value   the event that is given what it returned, and its reduction
    only    the arguments that are reported, where not all are
    """
    original = getattr(owner, name, None)
    reported = only or parameters
    if original is None:
        return

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():  # compiled code holds the original alone
            given = dict(zip(parameters, args, strict=False)) | kwargs
            for ref in LISTENERS:
                if (listener := ref()) is not None:
                    getattr(listener, event)(*(given.get(parameter) for parameter in reported))
        result = original(*args, **kwargs)
        for ref in LISTENERS if end and not torch.compiler.is_compiling() else ():
            if (listener := ref()) is not None:
                getattr(listener, end)()
        for ref in LISTENERS if value and not torch.compiler.is_compiling() else ():
            if (listener := ref()) is not None:
                getattr(listener, value)(name, result, kwargs.get("reduction", "mean"))
        return result

    _originals.append((owner, name, original))
    setattr(owner, name, wrapped)


def _wrap_contract(contract: Contract) -> None:
    """Report the arguments of a function after it has run: they are only looked at."""
    original = getattr(contract.owner, contract.name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        for ref in () if torch.compiler.is_compiling() else LISTENERS:
            if (listener := ref()) is not None and listener.wants_arguments():
                listener.on_arguments(contract, args, kwargs, result)
        return result

    _originals.append((contract.owner, contract.name, original))
    setattr(contract.owner, contract.name, wrapped)


def _drop(listener: LoopListener | None) -> None:
    """Report nothing more to this one, nor to those that are gone; the last one leaves everything as it was."""
    LISTENERS[:] = [ref for ref in LISTENERS if ref() is not None and ref() is not listener]
    if not LISTENERS:
        while _originals:
            setattr(*_originals.pop())
        while _every_update:
            _every_update.pop().remove()
