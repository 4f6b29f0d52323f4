"""Every operation of a step, checked as it happens: only what the account of the error needs is kept."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.flop_counter import flop_registry
from torch.utils.hooks import RemovableHandle

import limpid.adjoints
from limpid.adjoints.again import results_of
from limpid.adjoints.aten import mapped, outputs_of
from limpid.adjoints.watch import Watch, is_other_library, watched
from limpid.config.arguments import checked
from limpid.errors import ConfigError
from limpid.files import user_path
from limpid.maths.operation import Array
from limpid.operations.arrays import Unreadable, address, exact, raw
from limpid.operations.call import Call, Check
from limpid.operations.carried import Carried
from limpid.operations.conditioning import condition
from limpid.operations.finite import ended
from limpid.operations.kept import Keeper
from limpid.operations.redo import Unknown, arguments_of, as_arrays, redo, with_storage, written
from limpid.operations.report import Facts, Report
from limpid.operations.widened import in_float64

if TYPE_CHECKING:
    from limpid.operations.what_if import WhatIf

PASSED = (os.path.dirname(torch.__file__), os.path.dirname(__file__), os.path.dirname(limpid.adjoints.__file__), "<")
"""Where frames are nobody's own code."""
STEP = os.path.join(os.path.dirname(__file__), "step.py")
"""Whoever calls what takes a step there is not who asked for an operation."""
NO_NODE = 1 << 62
"""Nodes of leaves have no number of their own, but the largest."""


class Recording:
    """What a step did so far; `verify` says what came of it."""

    def __init__(self, model: nn.Module, keeper: Keeper | None = None) -> None:
        self.model, self.keeper = model, keeper
        self.facts = Facts(type(model).__name__, parameters=sum(one.numel() for one in model.parameters()))
        self.calls: list[Call] = []
        self.phase = "forward"
        self.path: list[str] = []
        self.names = {id(module): name for name, module in model.named_modules()}
        self.of_node: dict[int, Call] = {}
        self.nodes: set[int] = set()
        self.hooks: list[RemovableHandle] = []
        self.carried = Carried()
        self.custom = Watch(model, lambda: (self.path[-1] if self.path else "", _source()))
        self.state = torch.get_rng_state()
        self.began: float | None = None

    def verify(self, surrogates: Collection[type] = ()) -> Report:
        """Verdicts and the account of the error, of all operations so far.

        surrogates  custom Functions whose backward passes are meant to be another gradient
        """
        return Report(self.calls, self.facts, self.began, [one.declared(surrogates) for one in self.custom.found])

    def finish(self) -> None:
        """Make the folder a recording: what it holds is said in it."""
        if self.keeper is not None:
            self.keeper.finish(self.verify().document())

    def in_float64(self, function: Callable[[], Tensor]) -> float:
        """What the loss is without rounding: the same function in float64, weights and random masks as they were.

        Call it before the optimizer changes the weights, inside or behind the recording. Nothing of it is recorded.
        """
        with _disable_current_modes():
            return in_float64(self.model, function, self.state)

    def what_if(self, function: Callable[[], Tensor], formats: Mapping[str, str]) -> WhatIf:
        """What the loss would be with some operations in another format: foretold and tried; and each module by itself.

        formats  by patterns of modules' paths: {"layers.3.*": "fp8", "lm_head": "bfloat16", "*:_softmax": "float16"}

        Call it as `in_float64` is called: before the weights change. Gradients stay as they are.

        Raises  ConfigError
        """
        from limpid.operations.what_if import what_if

        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return what_if(self.model, function, self.state, formats)

    def begins(self, root: Any) -> None:
        """A backward pass begins at a number: of several, such as micro-batches, they add up."""
        if isinstance(root, Tensor) and root.numel() == 1 and not root.is_complex():
            with _disable_current_modes():
                self.began = float(root.detach()) + (self.began or 0.0)

    def begin(self, operation: Any, node: Any) -> Call:
        """A call, where it stands."""
        forward = None if node is None else self.of_node.get(node._sequence_nr())
        phase = "backward" if node is not None else self.phase
        module = forward.module if forward is not None else (self.path[-1] if self.path else "")
        source = forward.source if forward is not None else _source()
        return Call(len(self.calls), str(operation), phase, module, source, [], "", 0)

    def entered(self, module: nn.Module, *_: Any) -> None:
        """A module begins."""
        self.path.append(self.names.get(id(module), type(module).__name__))

    def left(self, *_: Any) -> None:
        """It ends."""
        if self.path:
            self.path.pop()

    def updating(self, *_: Any) -> None:
        """The optimizer begins."""
        self.phase = "update"
        if self.keeper is not None:
            self.keeper.gradients(self.model)

    def updated(self, *_: Any) -> None:
        """It has ended."""
        self.phase = "forward"

    def follow(self, node: Any) -> None:
        """Ask every new node below for the gradients that come to it."""
        below = [node]
        while below:
            node = below.pop()
            if node is None or (number := node._sequence_nr()) > NO_NODE or number in self.nodes:
                continue
            self.nodes.add(number)
            self.custom.meet(node)
            if number in self.of_node:
                self.hooks.append(node.register_prehook(_Account(self.of_node[number])))
            below += [one for one, _ in node.next_functions]

    def end(self) -> None:
        """Ask for no gradient any more, and keep no differences."""
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()
        for call in self.calls:
            call.errors, call.inherited = (), None
        self.facts.not_finite = self.facts.not_finite or _not_finite(self.model)
        if self.keeper is not None:
            self.keeper.end(self.model)


class _Account:
    """What the errors of a call come to, once its results' gradients are there."""

    def __init__(self, call: Call) -> None:
        self.call, self.errors, self.inherited = call, call.errors, call.inherited
        call.errors, call.inherited = (), None  # they live as long as the graph does

    def __call__(self, gradients: tuple[Tensor | None, ...]) -> None:
        self.call.error += _weighed(self.errors, gradients)
        if self.inherited is not None:
            self.inherited.origin.inherited_error += _weighed(self.inherited.differences, gradients)


def _weighed(errors: Sequence[Array | None], gradients: tuple[Tensor | None, ...]) -> float:
    """Σ ⟨ḡ, δ⟩ over the results of a call."""
    found = 0.0
    for error, gradient in zip(errors, gradients, strict=False):
        if error is not None and gradient is not None and gradient.shape == error.shape:
            with suppress(Unreadable):
                found += float(np.vdot(exact(raw(gradient)), exact(error)).real)
    return found


class _Dispatched(TorchDispatchMode):
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
        before, without = None, None
        follows = node is None and call.phase == "forward"
        try:
            before = as_arrays(_kept(with_storage(func, given), names))
            without = self.recording.carried.before(func, given) if follows else None
        except Exception as error:  # the step goes on, whatever it is given
            call.why = _one_line(error)
        made = func(*args, **kwargs)
        _describe(call, func, args, kwargs, made)
        # Inside a custom Function gradients are off, and its own node is there already: its calls are not its result.
        takes_part = is_new and node is None and torch.is_grad_enabled()
        if before is not None:
            _check(call, func, before, made, {name: given[name] for name in names}, follows)
        if follows:
            with suppress(Exception):  # what cannot be followed is missing in the account, not in the step
                call.inherited = self.recording.carried.after(call, func, given, without, made, takes_part)
        if takes_part:
            self.recording.of_node[number - 1] = call
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
        return made


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


class _Functions(TorchFunctionMode):
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


def _source() -> str:
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(PASSED):
        if frame.f_back is None or frame.f_code.co_filename == STEP:
            return ""
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _not_finite(model: nn.Module) -> str:
    """The first gradient or parameter that is not finite; nothing where all are, or cannot be read."""
    for name, parameter in model.named_parameters():
        for said, one in ((f"grad({name})", parameter.grad), (name, parameter)):
            with suppress(Unreadable), _disable_current_modes():
                if one is not None and one.is_floating_point() and not np.isfinite(raw(one).astype(np.float32)).all():
                    return said
    return ""


@checked
def recording(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    keep: str | Path | None = None,
    calls: bool = True,
) -> AbstractContextManager[Recording]:
    """Check every operation inside: forward, loss, backward, clipping, update, of any model and loss.

    Each is done again by NumPy in float64 from the inputs that the engine had, and held against a bound of its own
    rounding. The step itself is not changed. `verify()` of what is given says what came of it.

    keep   a new folder for what every call and module made: `limpid.operations.compare` takes two of them
    calls  False keeps what modules made alone, and checks nothing: compiled code, which PyTorch does not run where
           every call is looked at, runs as it is
    """
    if not calls and keep is None:
        raise ConfigError("calls is False, which records nothing without keep: name a new folder")
    return _recorded(model, optimizer, None if keep is None else user_path(keep), calls)


@contextmanager
def _recorded(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, keep: Path | None, calls: bool
) -> Iterator[Recording]:
    keeper = None if keep is None else Keeper(keep)
    found = Recording(model, keeper)
    with ExitStack() as stack:
        stack.callback(found.end)
        if keeper is not None:
            keeper.watch(model, found.names)
        for module in model.modules() if calls else ():
            before = module.register_forward_pre_hook(found.entered)
            after = module.register_forward_hook(found.left, always_call=True)
            stack.callback(before.remove)
            stack.callback(after.remove)
        if optimizer is not None:
            stack.callback(optimizer.register_step_pre_hook(found.updating).remove)
            stack.callback(optimizer.register_step_post_hook(found.updated).remove)
        if calls:
            stack.enter_context(watched(found.custom))
            stack.enter_context(_Functions(found))
            stack.enter_context(_Dispatched(found))
        yield found
    if keeper is not None:
        found.finish()
