"""Custom Functions and operations of other libraries, watched as they are called; their backward passes are judged."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction, Function

from limpid.adjoints.adjoint import Adjoint
from limpid.adjoints.again import Applied, apart, copy, results_of, sums
from limpid.adjoints.judged import judge

CPP = "CppNode"
"""What nodes of Functions in C++ are called."""
OWN = "torch"
"""Functions of PyTorch itself are not custom."""
Standing = Callable[[], tuple[str, str]]
Quiet = Callable[[], AbstractContextManager[object]]


class Watch:
    """What was found of backward passes by hand, in the order of the backward pass."""

    def __init__(
        self, model: nn.Module, standing: Standing, quiet: Quiet = apart, most: int | None = None
    ) -> None:  # fmt: skip
        self.model, self.standing = model, standing
        self.quiet = quiet  # in which Functions are done again
        self.most = most  # calls of each Function that are judged
        self.found: list[Adjoint] = []
        self.is_again = False
        self.begun: list[tuple[Any, Applied | None]] = []  # forward passes that are running, by their contexts
        self.nodes: set[int] = set()

    def operation(self, operation: Any, args: Any, kwargs: Any) -> Any:
        """An operation of another library, called; its node is asked for what comes to it."""
        applied = _taken(_name_of(operation), operation, (args, kwargs), nested=True)
        made = operation(*args, **kwargs)
        node = next((one.grad_fn for one in results_of(made) if one is not None and one.grad_fn is not None), None)
        if applied is not None and applied.owed and _is_by_hand(node):  # else it is made of operations of PyTorch
            self._ask(node, applied, made, _names_of(operation, applied))
        return made

    def begin(self, context: Any, given: tuple[Any, Any]) -> None:
        """The forward pass of a Function begins."""
        self.begun.append((context, _taken("", _never, given, nested=False)))

    def end(self, context: Any, made: Any) -> None:
        """It has ended: its node is asked for what comes to it."""
        _, applied = self.begun.pop()
        kind = getattr(type(context), "_forward_cls", None)  # of torch.func's transforms it is none of the user's
        if applied is not None and kind is not None and not _is_own(kind) and any(context.needs_input_grad):
            applied.name, applied.apply = kind.__qualname__, kind.apply
            names = list(inspect.signature(kind.forward).parameters)[1 if _takes_context(kind) else 0 :]
            self._ask(context, applied, made, _named(names, applied), kind)

    def meet(self, node: Any) -> None:
        """A node of the graph: what is not watched is said to be unchecked."""
        kind = getattr(type(node), "_forward_cls", None)
        name = node.name()
        is_custom = isinstance(node, BackwardCFunction) and not _is_own(kind)
        if (is_custom or CPP in name) and node._sequence_nr() not in self.nodes:
            said = name if kind is None else kind.__qualname__
            adjoint = Adjoint(len(self.found), said, *self.standing(), "", [], [], kind=kind)
            adjoint.why = "it was not there yet when the recording began" if is_custom else "it is called from C++"
            self.found.append(adjoint)

    def _ask(self, node: Any, applied: Applied, made: Any, names: list[str], kind: type | None = None) -> None:
        self.nodes.add(node._sequence_nr())
        tensors = [applied.leaves[place] for place in applied.owed]
        module, source = self.standing()
        adjoint = Adjoint(
            -1, applied.name, module, source, str(tensors[0].dtype).removeprefix("torch.") if tensors else "",
            [tuple(one.shape) for one in tensors], names, kind=kind,
        )  # fmt: skip
        with apart():
            applied.made = sums(results_of(made))

        def before(gradients: Sequence[Tensor | None]) -> None:
            with apart():
                applied.gradients = [None if one is None else copy(one) for one in gradients]

        def after(owed: Sequence[Tensor | None], _: Any) -> None:
            before = sum(one.kind is kind and one.function == applied.name for one in self.found)
            if adjoint.number < 0 and (self.most is None or before < self.most):
                adjoint.number = len(self.found)
                self.found.append(adjoint)
                self._judge(adjoint, applied, owed)
                applied.leaves, applied.gradients = [], []

        node.register_prehook(before)
        node.register_hook(after)

    def _judge(self, adjoint: Adjoint, applied: Applied, owed: Sequence[Tensor | None]) -> None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            adjoint.why = "of several processes, which may wait for each other in it"
            return
        self.is_again = True
        try:
            if len(owed) != len(applied.places) or len(applied.gradients) != len(applied.made):
                adjoint.why = "its tensors are not those that its node has"
            else:
                with self.quiet():
                    judge(adjoint, applied, owed, self.model)
        except Exception as error:  # the step goes on, whatever it is
            adjoint.why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        finally:
            self.is_again = False


def _taken(name: str, apply: Callable[..., Any], given: tuple[Any, Any], *, nested: bool) -> Applied | None:
    """What is called and what it is given; None where that cannot be kept, for want of memory or else."""
    try:
        return Applied.of(name, apply, given, nested=nested)
    except Exception:  # the step goes on, whatever it is given
        return None


def _never(*_: Any) -> Any:
    raise RuntimeError("a Function whose forward pass has not ended")


def _takes_context(kind: Any) -> bool:
    return bool(kind.setup_context == Function.setup_context)


def _is_own(kind: Any) -> bool:
    return str(getattr(kind, "__module__", "")).split(".")[0] == OWN


def _named(names: list[str], applied: Applied) -> list[str]:
    """What inputs are called that are owed gradients; by their place where there are more than names."""
    return [names[place] if place < len(names) else f"input {place}" for place in applied.owed]


def _names_of(operation: Any, applied: Applied) -> list[str]:
    schema = getattr(getattr(operation, "default", operation), "_schema", None)
    names = [] if schema is None else [one.name for one in schema.arguments]
    return _named(names if len(applied.leaves) == len(names) else [], applied)


def is_other_library(operation: Any) -> bool:
    """Whether a function is an operation that PyTorch does not come with."""
    if not isinstance(operation, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return False
    return _name_of(operation).partition("::")[0] not in PROVIDED


def _name_of(operation: Any) -> str:
    packet = isinstance(operation, torch._ops.OpOverloadPacket)
    return str(operation._qualified_op_name if packet else operation.name())


def _is_by_hand(node: Any) -> bool:
    return isinstance(node, BackwardCFunction) or (node is not None and CPP in node.name())


PROVIDED = {"aten", "prims", "prim", "profiler", "c10d", "_c10d_functional", "quantized", "rngprims", "inductor",
            "debug_mode_ops", "higher_order", "torch", "export"}  # fmt: skip


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Every custom Function's forward pass tells when it begins and ends."""
    changed: list[tuple[type, str, Any]] = []
    try:
        for kind in set(_subclasses(Function)):
            for name, wrap in (("forward", _forward), ("setup_context", _setup)):
                if not _is_own(kind) and name in vars(kind):
                    changed.append((kind, name, vars(kind)[name]))
                    setattr(kind, name, _wrapped(vars(kind)[name], partial(wrap, watch)))
        yield
    finally:
        for kind, name, held in changed:
            setattr(kind, name, held)


def _subclasses(kind: Any) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from _subclasses(one)


def _wrapped(held: Any, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    """A static or class method, or a plain function, as it was, with another function in it."""
    return type(held)(wrap(held.__func__)) if isinstance(held, staticmethod | classmethod) else wrap(held)


def _forward(watch: Watch, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        given = args[1:] if args and isinstance(args[0], type) else args  # of a class method
        context = given[0] if given and isinstance(given[0], BackwardCFunction) else None
        is_inner = context is not None and any(context is one for one, _ in watch.begun)
        if watch.is_again or is_inner:
            return original(*args, **kwargs)
        began = len(watch.begun)
        watch.begin(context, (given if context is None else given[1:], kwargs))
        try:
            made = original(*args, **kwargs)
        except BaseException:
            del watch.begun[began:]
            raise
        if context is not None:
            watch.end(context, made)
        return made

    return forward


def _setup(watch: Watch, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def setup_context(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        given = [*args, *kwargs.values()]
        context = next((one for one in given if isinstance(one, BackwardCFunction)), None)
        if not watch.is_again and watch.begun and watch.begun[-1][0] is None:
            watch.end(context, kwargs["output"] if "output" in kwargs else args[-1])
        return made

    return setup_context
