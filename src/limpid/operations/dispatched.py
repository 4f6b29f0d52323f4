"""Calls of a step as they happen: below autograd each is done again, above it results tell their nodes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.flop_counter import flop_registry

from limpid.adjoints.again import results_of
from limpid.adjoints.aten import mapped, outputs_of
from limpid.adjoints.watch import is_other_library
from limpid.operations.arrays import Unreadable, address, raw
from limpid.operations.call import Call, Check
from limpid.operations.conditioning import condition
from limpid.operations.finite import ended
from limpid.operations.gradients.entry import Entry, views_of, written_over
from limpid.operations.redo import Unknown, arguments_of, as_arrays, redo, with_storage, written
from limpid.operations.step_recording import Recording


class Dispatched(TorchDispatchMode):
    """Below autograd: what is really computed."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording
        self.number = torch._C._autograd._get_sequence_nr()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace != "aten":
            return self._of_other_library(func, args, kwargs)
        node, number = torch._C._current_autograd_node(), torch._C._autograd._get_sequence_nr()
        call = self.recording.begin(func, node)
        is_new, self.number = number != self.number, number
        given = arguments_of(func, args, kwargs)
        names = written(func)
        before = None
        follows = node is None and call.phase == "forward"
        try:
            before = as_arrays(_kept(with_storage(func, given), names))
        except Exception as error:  # the step goes on, whatever it is given
            call.why = _one_line(error)
        tape, over = self.recording.tape, written_over(func, given)
        made = func(*args, **kwargs)
        if tape is not None:
            tape.add(call.number, func, args, kwargs, made, over)
        _describe(call, func, args, kwargs, made)
        # Inside a custom Function gradients are off, and its own node is there already: its calls are not its result.
        takes_part = is_new and node is None and torch.is_grad_enabled() and _has_gradient(given)
        if before is not None:
            _check(call, func, before, made, {name: given[name] for name in names}, follows)
        with (
            suppress(Exception),
            _disable_current_modes(),
        ):  # what cannot be followed is missing in the account, not in the step
            entry = Entry(call.number, func, args, kwargs, views_of(made, over), over)
            if follows:
                call.enters = self.recording.unrounded.follow(entry, call, takes_part)
            else:
                self.recording.unrounded.forget(entry)
        if takes_part:
            self.recording.wrote(call, number - 1, given[names[0]] if names else None)
        else:
            call.errors = ()
        self.recording.calls.append(call)
        if self.recording.keeper is not None:
            self.recording.keeper.call(call, given, made)
        return made

    def _of_other_library(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operation that is done as a whole: nothing of it can be done again but its backward pass."""
        made = func(*args, **kwargs)
        if is_other_library(func) and any(one is not None for one in results_of(made)):
            call = self.recording.begin(func, torch._C._current_autograd_node())
            _describe(call, func, args, kwargs, made)
            call.why = "an operation of another library"
            self.recording.calls.append(call)
            if self.recording.tape is not None:
                self.recording.tape.add(call.number, func, args, kwargs, made, [])
        return made


def _has_gradient(given: dict[str, Any]) -> bool:
    """Nodes may have been made in between, of views and of what they were written to."""
    found = list[bool]()
    mapped(list(given.values()), lambda one: found.append(one.requires_grad))
    return any(found)


def _describe(call: Call, func: Any, args: Any, kwargs: Any, made: Any) -> None:
    """What was made, as far as it tells: a nested tensor has no shape, and a count may not know its arguments."""
    results = [one for one in outputs_of(made) if one is not None]
    call.dtype = str(results[0].dtype).removeprefix("torch.") if results else ""
    with suppress(Exception):
        call.shapes = [tuple(one.shape) for one in results]
        call.operations = sum(one.numel() for one in results)
        if count := flop_registry.get(func._overloadpacket):
            call.operations = int(count(*args, **kwargs, out_val=made))


def _check(call: Call, func: Any, before: dict[str, Any], made: Any, after: dict[str, Any], keep: bool) -> None:
    try:
        found = redo(func, before, made, as_arrays(after), keep)
    except Exception as error:  # the step goes on, whatever it is given
        call.why = _one_line(error)
    else:
        call.check, call.worst, call.errors = found.check, found.worst, found.errors
    if call.check in (Check.REDONE, Check.UNCHECKED):
        call.ended = ended(before, outputs_of(made))
    if call.check is Check.REDONE and keep:
        with suppress(Exception):  # what is not told has no condition, and the step goes on
            results = [None if one is None else raw(one) for one in outputs_of(made)]
            call.condition = condition(func, before, results, call.errors)


def _one_line(error: Exception) -> str:
    said = str(error).partition("\n")[0]
    return said if isinstance(error, Unknown | Unreadable) else f"{type(error).__name__}: {said}"


class Functions(TorchFunctionMode):
    """Above autograd: results know the nodes that they came from."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self.recording = recording

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for one in (args[0],) if args and getattr(func, "__name__", "") == "backward" else ():
            self._follow(one)
            self.recording.begins(one)
        if is_other_library(func):
            made = self.recording.custom.operation(func, args, kwargs or {})
        else:
            made = func(*args, **(kwargs or {}))
        mapped(made, self._follow)
        return made

    def _follow(self, tensor: Tensor) -> None:
        if isinstance(tensor, Tensor) and tensor.grad_fn is not None:
            self.recording.follow(tensor.grad_fn)


def _kept(given: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Arguments with copies of those that the call will write to, under whatever name."""
    places: set[int] = set()
    mapped([given[name] for name in names], lambda tensor: places.add(address(tensor)))
    if not places:
        return given

    def copied(tensor: Tensor) -> Tensor:
        with _disable_current_modes():  # this is no part of the step
            return tensor.clone() if address(tensor) in places else tensor

    return {name: mapped(value, copied) for name, value in given.items() if name != "out"}
