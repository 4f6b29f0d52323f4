"""Named axes, checked: what has axes in its signature runs under jaxtyping and beartype, in every test.

What has no axes is left alone: mypy checks those types without running anything, and a test may pass a stand-in.
"""

import inspect
import re
from collections.abc import Callable
from typing import Any, get_args

import jaxtyping
from beartype import beartype
from jaxtyping import AbstractArray

NAMED = re.compile(r"\b(Float|Int|UInt|Integer|Bool|Real|Shaped|Complex)\d*\[")
"""In the source of an annotation."""

ROOMS = (
    "limpid.maths",
    "limpid.equations",
    "limpid.model",
    "limpid.objectives",
    "limpid.data",
    "limpid.inspect",
    "limpid.trace",
    "limpid.training",
)
"""What is checked so far."""


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
        if getattr(thing, "__module__", "").startswith("limpid"):
            hints = vars(thing).get("__annotations__", {}) if inspect.isclass(thing) else _annotations(thing)
            if not any(NAMED.search(str(hint)) for hint in hints.values()):
                return thing
        return decorate(thing, typechecker=typechecker)

    jaxtyping.jaxtyped = where_axes_are_named
    jaxtyping.install_import_hook(ROOMS, "typecheck.checked")


def _annotations(thing: Any) -> dict[str, Any]:
    function = thing.fget if isinstance(thing, property) else getattr(thing, "__func__", thing)
    return getattr(function, "__annotations__", {})
