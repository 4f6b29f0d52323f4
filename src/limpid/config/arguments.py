"""The arguments of a public function, held against its annotations: what may be given is written down once."""

from __future__ import annotations

import builtins
import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from limpid.config.options import converted

P = ParamSpec("P")
R = TypeVar("R")
GATHERED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function with every argument checked, and converted as an option of its annotation is.

    Raises  ConfigError naming the argument, the value and what was expected
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{function.__qualname__}: {error}") from None
        for name, value in given.arguments.items():
            if signature.parameters[name].kind not in GATHERED:
                given.arguments[name] = converted(kinds(function).get(name, Any), value, name)
        return function(*given.args, **given.kwargs)

    return call


@functools.cache
def kinds(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function's parameters. What only the type checker imports is told by its name."""
    plain = inspect.unwrap(function)
    names = _Names(plain.__globals__)
    annotated = {
        name: parameter.annotation
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.annotation is not parameter.empty
    }
    return {
        name: eval(kind, plain.__globals__, names) if isinstance(kind, str) else kind
        for name, kind in annotated.items()
    }


class _Names(dict[str, Any]):
    """Names that a module does not have at run time: classes that are imported for the type checker alone."""

    def __init__(self, module: dict[str, Any]) -> None:
        self.module = module

    def __missing__(self, name: str) -> Any:
        if name in self.module or hasattr(builtins, name):
            raise KeyError(name)
        return _ByName(name, (), {})


class _ByName(type):
    """A class that is not imported here: its instances are told by the name of their class."""

    def __instancecheck__(cls, value: Any) -> bool:
        return any(kind.__name__ == cls.__name__ for kind in type(value).__mro__)
