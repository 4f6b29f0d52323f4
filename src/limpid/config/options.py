"""Options as plain values and back: what a file, a command line or Python says, checked in one place."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from limpid.config.domain import Within
from limpid.config.names import probably_meant, unknown_key
from limpid.errors import ConfigError
from limpid.html import table, titled

T = TypeVar("T")

LARGEST = 2**63 - 1
"""Sizes, steps and seeds are 64 bits wide, in NumPy and PyTorch alike."""
SHOWN = 60
"""Characters of a wrong value that an error shows."""
NAMES = {int: "a whole number", float: "a number", bool: "yes or no", str: "text"}
CLASSES = {Path: "a path", Mapping: "a table of options", Callable: "a function"}
"""What values of a type are called, for those of which any will do."""
SEVERAL = (tuple, list, Iterable, Sequence)


def require(holds: bool, message: str) -> None:
    """Raise ConfigError with `message` unless `holds`."""
    if not holds:
        raise ConfigError(message)


def to_dict(config: Any) -> dict[str, Any]:
    """A configuration as nested plain values. TOML has no null: None is left out, or `none` where it is no default."""
    plain: dict[str, Any] = {}
    for entry in dataclasses.fields(config):
        value = getattr(config, entry.name)
        if dataclasses.is_dataclass(value):
            plain[entry.name] = to_dict(value)
        elif value is not None:
            plain[entry.name] = list(value) if isinstance(value, tuple) else value
        elif entry.default is not None:
            plain[entry.name] = "none"
    return plain


def as_typed(value: Any) -> str:
    """A plain value as it is typed on the command line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(as_typed, value)) if isinstance(value, list | tuple) else str(value)


def from_dict(kind: type[T], plain: Mapping[str, Any], where: str = "") -> T:
    """Build a configuration from nested plain values.

    Raises  ConfigError for an unknown key (with the nearest known one), and for a value of the wrong type or outside
            its interval
    """
    known = hints(kind)
    verbatim = {one.name for one in dataclasses.fields(kind) if "verbatim" in one.metadata}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in plain.items():
        if key not in known:
            raise unknown_key(f"{where}{key}", known)
        may_be = key not in verbatim and type(None) in get_args(known[key])
        left_out = isinstance(value, str) and value == "none" and may_be  # TOML has no null
        values[key] = None if left_out else converted(known[key], value, f"{where}{key}")
    return kind(**values)


class Checked:
    """Base of dataclasses of options: each value is held against its annotation, wherever it came from."""

    def __post_init__(self) -> None:
        for name, kind in hints(type(self)).items():
            object.__setattr__(self, name, converted(kind, getattr(self, name), name))

    def __repr__(self) -> str:
        """What builds it again: the options that are not the default."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.chosen().items())})"

    def chosen(self) -> dict[str, Any]:
        """The options that are not the default, by name."""
        return {
            entry.name: value
            for entry in dataclasses.fields(self)  # type: ignore[arg-type]
            if (value := getattr(self, entry.name)) != _default(entry)
        }

    def _repr_html_(self) -> str:
        rows = [(name, value, _default(entry)) for name, value, entry in _rows(self)]
        return titled(type(self).__name__, table(rows, ("option", "value", "default")) if rows else " as by default")


def _default(entry: dataclasses.Field[Any]) -> Any:
    return entry.default if entry.default_factory is dataclasses.MISSING else entry.default_factory()


def _rows(options: Any, at: str = "") -> Iterator[tuple[str, Any, dataclasses.Field[Any]]]:
    """Options that are not the default, those of sections too, as section.name."""
    entries = {entry.name: entry for entry in dataclasses.fields(options)}
    for name, value in options.chosen().items():
        if isinstance(value, Checked):
            yield from _rows(value, f"{at}{name}.")
        else:
            yield f"{at}{name}", value, entries[name]


def hints(kind: Any) -> dict[str, Any]:
    """The annotations of a dataclass, intervals included."""
    return _hints(kind)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def required(kind: Any) -> Any:
    """`kind` without None and without its interval: the type that a value which is given has."""
    if get_origin(kind) is Annotated:
        return required(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return required(next(choice for choice in get_args(kind) if choice is not type(None)))
    return kind


def converted(kind: Any, value: Any, where: str) -> Any:
    """`value` as an option of type `kind`: a whole number where a number is asked for, one value where several are.

    Raises  ConfigError naming the option, the value and what was expected
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is Annotated:
        value = converted(inner[0], value, where)
        for domain in inner[1:]:
            if isinstance(domain, Within) and value not in domain:
                raise ConfigError(f"{where} is {shown(value)}: it must {domain.asks(value)}")
        return value
    if origin in (Union, UnionType):
        return _one_of(inner, value, where)
    if origin is Literal:
        return word_of(inner, value, where)
    if origin in SEVERAL:
        return _several(kind, value, where)
    if inspect.isclass(kind) and issubclass(kind, Checked):
        return _section(kind, value, where)
    found = _plain(kind, value) if kind in NAMES else value if isinstance(value, origin or kind) else None
    if found is None:
        raise ConfigError(f"{where} is {shown(value)}: expected {_described(kind)}")
    if kind is int and abs(found) > LARGEST:
        raise ConfigError(f"{where} is {shown(value)}: it must fit in 64 bits")
    return found


def _one_of(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    """A value of one of several types: as it is where it has one of them, else what the first that takes it makes."""
    if value is None and type(None) in kinds:
        return None
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    for kind in sorted(kinds, key=lambda kind: not _is(kind, value)):
        with contextlib.suppress(ConfigError):
            return converted(kind, value, where)
    if len(kinds) == 1:
        return converted(kinds[0], value, where)
    raise ConfigError(f"{where} is {shown(value)}: expected {' or '.join(map(_described, kinds))}")


def _is(kind: Any, value: Any) -> bool:
    """Whether a value has a type, as far as classes tell."""
    kind = get_origin(kind) or kind
    return kind is Any or (inspect.isclass(kind) and isinstance(value, kind))


def _several(kind: Any, value: Any, where: str) -> Any:
    """Values of a sequence's type; one value stands for a sequence of it."""
    inner = get_args(kind)
    several = tuple(value) if isinstance(value, list | tuple | set | range | Iterator) else (value,)
    if get_origin(kind) is tuple and inner[-1] is not Ellipsis:
        if len(several) != len(inner):
            raise ConfigError(f"{where} is {shown(value)}: expected {len(inner)} values")
        return tuple(map(converted, inner, several, [where] * len(inner)))
    return tuple(converted(inner[0], one, where) for one in several)


def _described(kind: Any) -> str:
    """What a value of a type is called."""
    if get_origin(kind) is Annotated:
        return _described(get_args(kind)[0])
    kind = get_origin(kind) or kind
    home = kind.__module__.partition(".")[0]
    return NAMES.get(kind) or CLASSES.get(kind) or kind.__qualname__ + (f" ({home})" if home != "builtins" else "")


def _plain(kind: Any, value: Any) -> Any:
    """A value of one of Python's own types, or None when it is none."""
    if kind is bool:
        return bool(value) if type(value).__name__ in ("bool", "bool_") else None
    if kind is str:
        return os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if kind in (int, float) and not isinstance(value, str | bool):
        try:
            return operator.index(value) if kind is int else float(value)
        except (TypeError, ValueError, OverflowError):
            return None
    return None


def word_of(words: tuple[Any, ...], value: Any, where: str) -> Any:
    """The one of these words that a value is; raises ConfigError, which names the one that was probably meant."""
    for word in words:
        if isinstance(value, type(word)) and value == word:
            return word
    close = probably_meant(str(value), map(str, words))
    hint = "" if close is None else f"; did you mean {close}?"
    raise ConfigError(f"{where} is {shown(value)}: choose one of {', '.join(map(str, words))}{hint}")


def _section(kind: Any, value: Any, where: str) -> Any:
    """A section of options: made already, or still plain values."""
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} is {shown(value)}: expected a table of options, {kind.__name__}")
    return from_dict(kind, value, f"{where}.")


def shown(value: Any) -> str:
    """A wrong value as an error shows it: one line, not too long."""
    try:
        text = " ".join((str(value) if type(value) in (int, float) else repr(value)).split())
    except Exception:  # somebody's own __repr__, or a whole number of more digits than Python writes
        text = f"of type {type(value).__name__}"
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"
