"""Named axes, checked: what has axes in its signature runs under jaxtyping and beartype, in every test.

What has no axes is left alone: mypy checks those types without running anything, and a test may pass a stand-in.
"""

import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import jaxtyping
from beartype import beartype
from jaxtyping import AbstractArray

SOURCE = Path(__file__).parents[1] / "src" / "limpid"
NAMED = re.compile(r"\b(Float|Int|UInt|Integer|Bool|Real|Shaped|Complex)\d*\[")
"""In the source of an annotation."""

NUMBA = "limpid.generate.cpu.kernels"
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
        return decorate(thing, typechecker=typechecker)

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
