"""Values and documents as JSON can hold them: what is not finite becomes a word that float() reads."""

from __future__ import annotations

import math
import types
from dataclasses import fields, is_dataclass
from functools import cache
from math import isfinite
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

FINITE = "finite"
Finite = Annotated[float, FINITE]
"""A number of a document that no word ever stands for."""
PLAIN = {str, int, bool, type(None)}


def jsonable(value: Any) -> Any:
    """Dictionaries, lists and tuples with `nan`, `inf` and `-inf` for numbers that JSON has no word for."""
    if isinstance(value, dict):
        return {key: jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    return value


@cache
def hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {one.name: hints[one.name] for one in fields(kind)}


def to_json(document: Any) -> Any:
    """A document as dictionaries, lists and plain values."""
    kind: Any = type(document)
    if kind in PLAIN:
        return document
    if isinstance(document, list | tuple):
        kinds = set(map(type, document))
        if kinds <= PLAIN or (kinds == {float} and all(map(isfinite, document))):
            return list(document)  # long columns, at once
        return [to_json(value) for value in document]
    if isinstance(document, dict):
        return {key: to_json(value) for key, value in document.items()}
    if is_dataclass(document):
        return {name: to_json(getattr(document, name)) for name in _names(kind)}
    return jsonable(document)


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


def from_json(kind: Any, value: Any) -> Any:
    """A document from what `to_json` made of it."""
    if isinstance(kind, type) and is_dataclass(kind):
        found = {one.name: from_json(hints(kind)[one.name], value[one.name]) for one in fields(kind) if one.init}
        return kind(**found)
    if kind is float:
        return float(value)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return from_json(inner[0], value)
    if origin in (Union, types.UnionType):
        return None if value is None else from_json(_alternative(inner, value), value)
    if origin is tuple:
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(from_json(one, part) for one, part in zip(kinds, value, strict=True))
    if origin is dict:
        return {key: from_json(inner[1], part) for key, part in value.items()}
    return value


def _alternative(kinds: tuple[Any, ...], value: Any) -> Any:
    """Which alternative of a union a value is: dataclasses are told apart by their word `verdict`."""
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    if len(kinds) == 1:
        return kinds[0]
    return next(kind for kind in kinds if value["verdict"] in get_args(hints(kind)["verdict"]))
