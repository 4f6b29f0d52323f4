"""What the mathematics is given: numbers in the axes that the signature names, or one line that says why not."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, get_args, get_origin

import jaxtyping
import numpy as np
from jaxtyping import AbstractArray

from limpid.config.arguments import kinds
from limpid.config.options import converted, hints, shown
from limpid.errors import ConfigError, DomainError, ShapeError
from limpid.maths.dual import Dual

if TYPE_CHECKING:
    from limpid.maths.operation import Array

P = ParamSpec("P")
R = TypeVar("R")


def numbers(value: Any, where: str = "x") -> Array:
    """What was given, as an array of numbers; nested lists will do, and exact fractions.

    Raises  DomainError naming what is none
    """
    try:
        array = np.asanyarray(value)
        if array.dtype.kind == "O" and not any(one is None for one in array.flat):
            array = array.astype(np.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        array = np.array(None)
    if array.dtype.kind not in "biuf":
        raise DomainError(f"{where} is {shown(value)}: expected numbers, in rows of equal length")
    return array


def floats(x: Any, where: str = "x") -> Array:
    """The same in float64."""
    return numbers(x, where).astype(np.float64, copy=False)


def whole_numbers(x: Any, where: str = "x") -> Array:
    """The same as int64.

    Raises  DomainError for a number between two
    """
    array = numbers(x, where)
    if array.dtype.kind == "f" and not (array == np.floor(array)).all():
        raise DomainError(f"{where} is {shown(x)}: expected whole numbers")
    return array.astype(np.int64, copy=False)


def truths(x: Any, where: str = "x") -> Array:
    """The same as bool: whatever is not 0."""
    return numbers(x, where).astype(np.bool_, copy=False)


READERS: dict[str, Callable[[Any, str], Any]] = {"Float": floats, "Int": whole_numbers, "Bool": truths}
"""By the word of the annotation; where several are possible, or another, numbers stay as they are."""


def given(function: Callable[P, R]) -> Callable[P, R]:
    """The function with its arguments held against their annotations.

    Raises  DomainError, ShapeError naming the argument and what was expected
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{function.__name__}: {error}") from None
        bound.arguments.update(held(function, function.__name__, bound))
        return function(*bound.args, **bound.kwargs)

    return call


def held(function: Callable[..., Any], name: str, bound: inspect.BoundArguments) -> dict[str, Any]:
    """Arguments as the function wants them.

    Raises  DomainError, ShapeError naming the argument and what was expected
    """
    annotated, found = kinds(function), dict(bound.arguments)
    for key, value in found.items():
        kind, where = annotated.get(key, Any), f"{name}: {key}"
        if bound.signature.parameters[key].kind is inspect.Parameter.VAR_POSITIONAL:
            found[key] = tuple(_held(kind, one, where) for one in value)
        else:
            found[key] = _held(kind, value, where)
    _require_axes(name, annotated, found)
    return found


def hold_fields(made: Any) -> None:
    """Hold the fields of a frozen dataclass against their annotations.

    Raises  DomainError naming the field and what was expected
    """
    known = hints(type(made))
    for entry in dataclasses.fields(made):
        value = _held(known[entry.name], getattr(made, entry.name), f"{type(made).__name__}: {entry.name}")
        object.__setattr__(made, entry.name, value)


def _held(kind: Any, value: Any, where: str) -> Any:
    inner = get_args(kind)
    if value is None and type(None) in inner:
        return None
    if get_origin(kind) is Sequence:
        several = value if isinstance(value, list | tuple) else [value]
        return [_held(inner[0], one, where) for one in several]
    if (arrays := _arrays(kind)) or np.ndarray in (kind, *inner):
        read = {READERS.get(array.__name__.partition("[")[0], numbers) for array in arrays}
        made = (read.pop() if len(read) == 1 else numbers)(value, where)
        one_for_all = float in inner and np.ndim(made) == 0 and np.asarray(made).dtype.kind == "f"
        return float(made) if one_for_all else made
    if int in (kind, *inner) or float in (kind, *inner):
        if isinstance(value, np.ndarray | np.generic):
            return numbers(value, where)
        if isinstance(value, Dual):
            return value
    try:
        return converted(kind, value, where)
    except ConfigError as error:
        raise DomainError(str(error)) from error


def _arrays(kind: Any) -> list[Any]:
    """The array types that an annotation names."""
    if inspect.isclass(kind) and issubclass(kind, AbstractArray):
        return [kind]
    return [] if get_origin(kind) is Sequence else [array for part in get_args(kind) for array in _arrays(part)]


def _require_axes(name: str, annotated: dict[str, Any], found: dict[str, Any]) -> None:
    """Raise ShapeError unless axes of one name have one size."""
    arrays = {key: _arrays(annotated.get(key, Any)) for key in found if isinstance(found[key], np.ndarray)}
    arrays = {key: kinds for key, kinds in arrays.items() if kinds}
    with jaxtyping.jaxtyped("context"):  # in which an axis has the size that it had first
        fit = all(any(_fits(found[key], kind) for kind in kinds) for key, kinds in arrays.items())
    if not fit:
        said = ", ".join(f"{key} {tuple(found[key].shape)}" for key in arrays)
        asked = ", ".join(f"{key} ({kinds[0].dim_str})" for key, kinds in arrays.items())
        raise ShapeError(f"{name}: the shapes are {said}; expected {asked}")


def _fits(array: Any, kind: Any) -> bool:
    """Whether an array has the axes of a type, whatever its format."""
    return isinstance(array, _shaped(kind.dim_str))


@functools.cache
def _shaped(axes: str) -> Any:
    """Arrays with these axes."""
    return jaxtyping.Shaped[np.ndarray, axes]
