"""A pass whose parts the loop calls itself, one after another, so that it can be made again on other inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

DEPTH = 3
"""Lists and tables within one another that are looked through."""


@dataclass(frozen=True)
class Returned:
    """Stands for a tensor that an earlier part of the pass returned."""

    part: int  # in the order of calls
    path: tuple[Any, ...]  # where in what it returned: places in lists, names in tables


@dataclass(frozen=True)
class Part:
    """One call of a part that is not the first: what it is given, `Returned` in place of what comes from others."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    follows: bool  # whether anything of it comes from the first part

    def mapped(self, change: Callable[[Any], Any]) -> Part:
        """The same on changed values."""
        return Part(self.module, _replaced(self.args, change), _replaced(self.kwargs, change), self.follows)

    def make(self, returned: list[Any]) -> Any:
        """Call it on what the parts before returned this time."""

        def real(value: Any) -> Any:
            return _at(returned[value.part], value.path) if isinstance(value, Returned) else value

        args, kwargs = (_replaced(given, real) for given in (self.args, self.kwargs))
        return self.module(*args, **kwargs)


class Computed(ValueError):
    """A part is given what the loop computed of what others returned."""


def following(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], returned: list[Any], before: tuple[Part, ...]
) -> Part:
    """A part that is called on what others returned, the first and those of `before`.

    Raises  Computed where that went through an operation of the loop's
    """
    known = {id(t): Returned(i, path) for i, made in enumerate(returned) for path, t in tensors_at(made)}
    follows = False

    def symbolic(value: Any) -> Any:
        nonlocal follows
        if isinstance(value, Tensor) and id(value) in known:
            made = known[id(value)]
            follows |= made.part == 0 or before[made.part - 1].follows
            return made
        if isinstance(value, Tensor) and value.grad_fn is not None:
            raise Computed
        return value

    given, named = (_replaced(values, symbolic) for values in (args, kwargs))
    return Part(module, given, named, follows)


def tensors_at(value: Any, path: tuple[Any, ...] = (), depth: int = DEPTH) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Tensors in a value, each with its place."""
    if isinstance(value, Tensor):
        yield path, value
    elif depth and isinstance(value, tuple | list):
        for index, inner in enumerate(value):
            yield from tensors_at(inner, (*path, index), depth - 1)
    elif depth and isinstance(value, Mapping):
        for key in value:
            yield from tensors_at(value[key], (*path, key), depth - 1)


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


def _replaced(value: Any, change: Callable[[Any], Any], depth: int = DEPTH) -> Any:
    """The same value with changed entries; what holds none that changes is the same object."""
    if depth and type(value) in (tuple, list):
        entries = [_replaced(inner, change, depth - 1) for inner in value]
        return value if all(a is b for a, b in zip(entries, value, strict=True)) else type(value)(entries)
    if depth and type(value) is dict:
        named = {key: _replaced(inner, change, depth - 1) for key, inner in value.items()}
        return value if all(named[key] is value[key] for key in value) else named
    return change(value)
