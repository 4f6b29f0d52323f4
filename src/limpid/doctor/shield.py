"""What the doctor's own passes may change of a training, put aside before them and put back after.

A pass runs the user's code: forward methods, hooks, a loss function. What these can change is what they can reach:
parameters and buffers, attributes of modules and of what modules hold, classes, the globals, closures and defaults of
functions, random numbers, the modes of torch. All of it is walked and put back, so that a pass leaves no trace. What
cannot be put back, an open file or an iterator half used up, is an obstacle: then no pass is made, and it is said.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import io
import logging
import operator
import queue
import random
import socket
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as of_all_modules
from torch.nn.parameter import is_lazy

from limpid.doctor.libraries import is_library

MOST = 200_000
"""Objects that are walked; a model that reaches more holds a data set."""
ROOM = 2**30
"""Bytes of tensors that are copied beforehand; others are copied when an operation is about to write to them."""
OUTSIDE = (io.IOBase, socket.socket, queue.Queue, threading.Thread, types.CoroutineType)
"""What changes as it is used, and cannot be put back; so does every iterator that is not the user's own."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
CALLED = ("forward", "backward", "__call__")
"""Methods that torch calls though nobody names them."""


class Obstacle(RuntimeError):
    """Why the user's functions cannot be called without leaving a trace."""


class Shield:
    """All that a model and some functions can change, as it is now; `restore` puts it back, as often as asked.

    obstacle    why they cannot be called without leaving a trace; empty where they can
    """

    def __init__(self, model: nn.Module | None = None, functions: Iterable[Any] = ()) -> None:
        modules = list(model.modules()) if model is not None else []
        hooks = [hook for module in modules for kind in HOOKS for hook in getattr(module, kind).values()]
        hooks += [hook for kind in vars(of_all_modules) if kind.startswith("_global_") and kind.endswith("_hooks")
                  for hook in getattr(of_all_modules, kind).values()]  # fmt: skip
        if model is not None:
            hooks += [hook for p in model.parameters() for hook in (p._backward_hooks or {}).values()]
        self.names: set[str] = set()  # what the functions name: attributes, globals
        known = -1
        while known < len(self.names):  # what is walked depends on what is named
            known = len(self.names)
            self.undo: list[Callable[[], Any]] = []
            self.parameters: list[nn.Parameter] = []
            self.copied_on_write: list[Tensor] = []
            self.obstacle = ""
            self._seen: dict[int, Any] = {}  # holds what it has seen, so that ids stay theirs
            self._classes: dict[type, None] = {}
            self._code: set[Any] = set()
            self._room = ROOM
            for module in modules:
                self._add_class(type(module))
            for function in (*functions, *hooks):
                self._walk(function, "")
            if model is not None:
                self._walk(model, "")

    def restore(self) -> None:
        """Put everything back."""
        for undo in self.undo:
            undo()

    def _blocked(self, why: str) -> None:
        self.obstacle = self.obstacle or why

    # the functions, and what they name

    def _add_class(self, kind: type) -> None:
        """The attributes of a class of the user's, and its methods that somebody calls."""
        for base in kind.__mro__:
            if base in self._classes or is_library(base.__module__):
                continue
            self._classes[base] = None
            kept = {n: v for n, v in vars(base).items() if not n.startswith("__") and not _is_method(v)}
            self.undo.append(functools.partial(_reset_class, base, kept))
            for name, value in kept.items():
                self._walk(value, f"{base.__name__}.{name}")
            for name in {*CALLED, *self.names} & vars(base).keys():
                self._method(vars(base)[name])

    def _method(self, value: Any) -> None:
        for function in (value, getattr(value, "fget", None), getattr(value, "__func__", None)):
            if isinstance(function, types.FunctionType):
                self._walk(function, function.__qualname__)

    def _function(self, function: types.FunctionType) -> list[tuple[str, Any]]:
        """Of a function of the user's: closure, defaults, attributes, and the globals it names."""
        if is_library(function.__module__) and not hasattr(function, "__wrapped__"):
            return []
        names = set(_names_of(function.__code__))
        new = names - self.names
        self.names |= names
        for kind in list(self._classes):
            for name in new & vars(kind).keys():
                self._method(vars(kind)[name])
        scope = function.__globals__
        used = {name: scope[name] for name in names if name in scope}
        if "open" in names and "open" not in scope:
            self._blocked(f"{function.__qualname__} opens a file")
        self.undo.append(functools.partial(scope.update, used))
        given = function.__defaults__ or ()
        named = function.__code__.co_varnames[: function.__code__.co_argcount][-len(given) or None :]
        self.names |= set(named if given else ()) | set(function.__kwdefaults__ or ())
        parts: list[tuple[str, Any]] = [*used.items(), *zip(named, given, strict=False)]
        parts += [("defaults", function.__kwdefaults__), ("attributes", vars(function))]
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # an empty one
                self.undo.append(functools.partial(setattr, cell, "cell_contents", cell.cell_contents))
                parts.append((name, cell.cell_contents))
        return parts

    # what can change

    def _walk(self, start: Any, where: str) -> None:
        todo = [(start, where)]
        while todo and not self.obstacle:
            value, path = todo.pop()
            if id(value) in self._seen or isinstance(value, int | float | complex | str | bytes | type(None)):
                continue
            self._seen[id(value)] = value
            if len(self._seen) > MOST:
                self._blocked(f"{path} reaches more than {MOST:,} objects")
            todo += [(inner, f"{path}.{name}" if path else str(name)) for name, inner in self._parts(value, path)]

    def _parts(self, value: Any, path: str) -> Iterable[tuple[Any, Any]]:
        """Have a value put back as it is now; what it holds."""
        match value:
            case nn.Parameter():
                if is_lazy(value):
                    self._blocked(f"{path} takes its shape from the first pass")
                self.parameters.append(value)
            case Tensor():
                self._tensor(value)
            case nn.Module():
                return self._module(value)
            case dict():
                entries = dict(value)
                self.undo.append(lambda: _refill(value, entries))
                return entries.items()
            case list() | collections.deque() | bytearray():
                several = list(value)
                self.undo.append(lambda: _put_back(value, several))
                return enumerate(several)
            case set():
                members = set(value)
                self.undo.append(lambda: _refill_set(value, members))
            case tuple():
                return enumerate(value)
            case np.ndarray() if value.flags.writeable:
                array = value.copy()
                self.undo.append(lambda: np.copyto(value, array))
            case type():
                self._add_class(value)
            case types.FunctionType():
                return self._function(value)
            case types.MethodType():
                return [("", value.__self__), (value.__name__, value.__func__)]
            case functools.partial():
                return [("", value.func), ("", value.args), ("", value.keywords)]
            case torch.Generator():
                self.undo.append(functools.partial(value.set_state, value.get_state()))
            case random.Random():
                self.undo.append(functools.partial(value.setstate, value.getstate()))
            case np.random.RandomState():
                self.undo.append(functools.partial(value.set_state, value.get_state()))
            case np.random.Generator():
                self.undo.append(functools.partial(setattr, value.bit_generator, "state", value.bit_generator.state))
            case _:
                return self._object(value, path)
        return ()

    def _tensor(self, value: Tensor) -> None:
        if value.is_leaf and value.requires_grad:
            self.undo.append(functools.partial(setattr, value, "grad", value.grad))
        if value.is_meta or value.is_sparse:
            return
        self._room -= value.numel() * value.element_size()
        if self._room < 0:
            self.copied_on_write.append(value)
        else:  # batch norm writes to its buffers without saying so
            kept = value.detach().clone()
            self.undo.append(lambda: None if torch.equal(value.detach(), kept) else value.data.copy_(kept))

    def _module(self, module: nn.Module) -> Iterable[tuple[Any, Any]]:
        self._add_class(type(module))
        attributes = dict(vars(module))
        self.undo.append(lambda: _refill(vars(module), attributes))
        for name in HOOKS:
            hooks = attributes[name]
            self.undo.append(functools.partial(_refill, hooks, dict(hooks)))
        return [(name, value) for name, value in attributes.items() if name not in HOOKS]

    def _object(self, value: Any, path: str) -> Iterable[tuple[Any, Any]]:
        """An object of another class: the user's are walked, a library's are asked whether they reach outside."""
        home, named = type(value).__module__, path.rpartition(".")[2] in self.names
        if isinstance(value, OUTSIDE) or (is_library(home) and _is_iterator(value)):
            if named:
                self._blocked(f"{path} is a {type(value).__name__}: what it has given cannot be taken back")
            return ()
        if isinstance(value, types.ModuleType | logging.Logger) or home.partition(".")[0] == "limpid":
            return ()
        if is_library(home) and home.partition(".")[0] not in sys.stdlib_module_names:
            if named and (what := _outside(value)):
                self._blocked(f"{path} ({type(value).__name__}) reaches {what}: what it does cannot be taken back")
            return ()
        self._add_class(type(value))
        kept: dict[str, Any] = {}
        for slot in (slot for base in type(value).__mro__ for slot in vars(base).get("__slots__", ())):
            if hasattr(value, slot) and not is_library(home):
                kept[slot] = getattr(value, slot)
                self.undo.append(functools.partial(object.__setattr__, value, slot, kept[slot]))
        if hasattr(value, "__dict__"):
            attributes = dict(vars(value))
            self.undo.append(lambda: _refill(vars(value), attributes))
            kept |= {name: inner for name, inner in attributes.items() if is_library(home) or name in self.names}
        return kept.items()


def _is_iterator(value: Any) -> bool:
    return hasattr(type(value), "__next__")


def _names_of(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_of(constant)


def _is_method(value: Any) -> bool:
    methods = types.FunctionType | property | staticmethod | classmethod | type
    return isinstance(value, methods) or hasattr(type(value), "__get__")


def _reset_class(kind: type, kept: dict[str, Any]) -> None:
    for name, value in list(vars(kind).items()):
        if not name.startswith("__") and not _is_method(value) and name not in kept:
            delattr(kind, name)
    for name, value in kept.items():
        if vars(kind).get(name, kept) is not value:
            setattr(kind, name, value)


def _refill(owner: dict[Any, Any], kept: dict[Any, Any]) -> None:
    """The same entries in the same order; what has not changed is left alone."""
    same = len(owner) == len(kept) and all(map(operator.is_, owner.values(), kept.values()))
    if not same or not all(map(operator.is_, owner, kept)):
        owner.clear()
        owner.update(kept)


def _refill_set(owner: set[Any], members: set[Any]) -> None:
    owner.clear()
    owner.update(members)


def _put_back(owner: Any, entries: list[Any]) -> None:
    if len(owner) != len(entries) or not all(map(operator.is_, owner, entries)):
        owner.clear()
        owner.extend(entries)


def _outside(value: Any, depth: int = 4) -> str:
    """What an object of a library holds that cannot be put back; nothing where it holds values alone."""
    for name, inner in vars(value).items() if hasattr(value, "__dict__") else ():
        if isinstance(inner, OUTSIDE) or _is_iterator(inner):
            return f"a {type(inner).__name__} ({name})"
        if depth and not isinstance(inner, types.ModuleType | logging.Logger | nn.Module | type | Tensor):
            for part in list(inner.values()) if isinstance(inner, dict) else [inner]:
                if outside := _outside(part, depth - 1):
                    return outside
    return ""
