"""Backward passes that their authors declare to be another gradient on purpose: told apart from faults."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar, overload
from weakref import WeakKeyDictionary

from limpid.config.arguments import checked
from limpid.errors import ConfigError

Kind = TypeVar("Kind")
FUNCTIONS: WeakKeyDictionary[type, str] = WeakKeyDictionary()
OPERATIONS: dict[str, str] = {}
"""What was declared, and why: custom Functions, and operations by their names, library::operation."""


@overload
def surrogate(what: Kind, *, why: str = "") -> Kind: ...
@overload
def surrogate(what: None = None, *, why: str = "") -> Callable[[Kind], Kind]: ...
@checked
def surrogate(what: Any = None, *, why: str = "") -> Any:
    """Declare that a backward pass is meant to be another gradient: straight through, a clamp that passes all of it.

    what  a class of torch.autograd.Function, as a decorator or by a call; an operation of torch.library, or its name
    why   said where it is shown

    A subclass is declared by itself. What the step kept and wrote over is a fault of a declared one, too.

    Raises  ConfigError
    """
    if what is None:
        return lambda kind: surrogate(kind, why=why)
    name = _name_of(what)
    if name:
        OPERATIONS[name] = why
        return what
    if not isinstance(what, type) or not _is_function(what):
        shown = what.__name__ if isinstance(what, type) else repr(what)[:80]
        raise ConfigError(f"{shown} has no backward pass of its own: limpid.surrogate expected a class of "
                          "torch.autograd.Function, or an operation such as 'library::operation'")  # fmt: skip
    FUNCTIONS[what] = why
    return what


def declared_as(kind: type | None, function: str, surrogates: Collection[type] = ()) -> str | None:
    """What a surrogate is declared as, in words; None of one that is not.

    surrogates  classes that are declared for this once
    """
    why = OPERATIONS.get(function) if kind is None else FUNCTIONS.get(kind, "" if kind in surrogates else None)
    return None if why is None else f"declared: {why}" if why else "as declared"


def _is_function(kind: type) -> bool:
    """By the names of its bases, as declaring loads no PyTorch."""
    return any((base.__module__, base.__name__) == ("torch.autograd.function", "Function") for base in kind.__mro__[1:])


def _name_of(what: Any) -> str:
    """An operation's name; nothing of what is none."""
    if isinstance(what, str):
        return what if what.count("::") == 1 and all(what.split("::")) else ""
    for name in ("_qualname", "_qualified_op_name"):  # torch.library.custom_op, torch.ops.library.operation
        if not isinstance(what, type) and isinstance(found := getattr(what, name, None), str):
            return found
    return ""
