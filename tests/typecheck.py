"""Named axes, checked: what has axes in its signature runs under jaxtyping and beartype, in every test.

What has no axes is left alone: mypy checks those types without running anything, and a test may pass a stand-in.
What has passed once is not checked again for the same types, formats and shapes: nothing else decides.
"""

import dataclasses
import functools
import inspect
import pkgutil
import re
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, get_args

import jaxtyping
import torch
from beartype import beartype
from jaxtyping import AbstractArray

SOURCE = Path(__file__).parents[1] / "src" / "limpid"
NAMED = re.compile(r"\b(Float|Int|UInt|Integer|Bool|Real|Shaped|Complex)\d*\[")
"""In the source of an annotation."""

NUMBA = "limpid.generation.cpu.kernels"
"""Compiled by numba, which takes no wrapped function."""


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """beartype on the annotations that name axes."""
    annotations = {name: hint for name, hint in function.__annotations__.items() if _names_axes(hint)}
    function.__annotations__ = annotations
    return beartype(function)


def _names_axes(hint: Any) -> bool:
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return True
    return any(_names_axes(part) for part in get_args(hint))


def once_per_kind(function: Callable[..., Any], check: Callable[..., Any]) -> Callable[..., Any]:
    """The function, checked where arguments or results are of kinds not met before."""
    checked, passed = check(function), {}

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if jaxtyping.config.jaxtyping_disable or torch.compiler.is_compiling():
            return function(*args, **kwargs)
        given = kind(args), *kwargs, kind(kwargs)
        if given not in passed:
            result = checked(*args, **kwargs)
            passed[given] = {kind(result)}
            return result
        result = function(*args, **kwargs)
        if kind(result) not in passed[given]:
            check(_returning(result, function))(*args, **kwargs)
            passed[given].add(kind(result))
        return result

    return called


def kind(value: Any) -> Hashable:
    """All of a value that a named axis can depend on."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return type(value), getattr(value, "dtype", None), shape
    if isinstance(value, tuple | list):
        return type(value), *map(kind, value)
    if isinstance(value, dict):
        return type(value), *map(kind, value.values())
    return type(value)


def _returning(result: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the same signature, in the same module, with a result that is there already."""
    here: Any = lambda *args, **kwargs: result  # noqa: E731
    return functools.wraps(function)(FunctionType(here.__code__, function.__globals__, closure=here.__closure__))


def install() -> None:
    """Check the rooms from their first import on."""
    decorate = jaxtyping.jaxtyped

    def where_axes_are_named(thing: Any = None, *, typechecker: Any = None) -> Any:
        if thing is None:
            return lambda thing: where_axes_are_named(thing, typechecker=typechecker)
        if isinstance(thing, str):  # with jaxtyped("context")
            return decorate(thing)
        if getattr(thing, "__module__", "").startswith("limpid"):
            hints = vars(thing).get("__annotations__", {}) if inspect.isclass(thing) else _annotations(thing)
            if not any(NAMED.search(str(hint)) for hint in hints.values()):
                return thing
        check = functools.partial(decorate, typechecker=typechecker)
        if inspect.isfunction(thing):
            return once_per_kind(thing, check)
        if isinstance(thing, classmethod | staticmethod):
            return type(thing)(once_per_kind(thing.__func__, check))
        if dataclasses.is_dataclass(thing):
            thing.__init__ = once_per_kind(thing.__init__, check)
            return thing
        return check(thing)

    jaxtyping.jaxtyped = where_axes_are_named
    jaxtyping.install_import_hook(list(_modules("limpid", SOURCE)), "typecheck.checked")


def _modules(package: str, folder: Path) -> Iterator[str]:
    """Names of the packages and modules to check: a name stands for all below it, so those above numba's are opened."""
    for found in pkgutil.iter_modules([str(folder)], f"{package}."):
        if NUMBA.startswith(f"{found.name}."):
            yield from _modules(found.name, folder / found.name.rpartition(".")[2])
        elif found.name != NUMBA:
            yield found.name


def _annotations(thing: Any) -> dict[str, Any]:
    function = thing.fget if isinstance(thing, property) else getattr(thing, "__func__", thing)
    return getattr(function, "__annotations__", {})
