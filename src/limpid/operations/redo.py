"""An operation done again from the inputs that the engine had, and held against what the engine made of them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import torch

from limpid.adjoints.aten import DRAWN, mapped, outputs_of, short_name
from limpid.maths.operation import Array
from limpid.maths.rounding import bound
from limpid.operations.arrays import exact, is_float, parts, raw, storage
from limpid.operations.call import Check, Difference
from limpid.operations.exact import EXACT, MOVED, Exact
from limpid.operations.exact.movement import Raw

WITHOUT_DATA = {
    "dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "generator", "copy", "size", "names",
    "implicit", "out", "half_to_float", "input_dtype", "requires_grad", "seed", "check_errors", "like", "formats",
    "results",
}  # fmt: skip
"""Arguments that change no number beyond the format of the result, which is seen."""
CASTS = ("copy", "_to_copy", "to")
OF_MANY = {"tensors": "self", "tensors1": "end", "weights": "weight"}
"""How operations on lists name what those on one tensor name so."""
SECOND = {"addcmul": "value", "addcdiv": "value", "lerp": "weight", "pow": "exponent", "clamp_min": "min",
          "clamp_max": "max"}  # fmt: skip
"""What an operation calls the scalar, or the other list, that it takes; else it is `other`."""
BLOCK = 1 << 16
"""Entries that are held against their bounds at a time."""


class Unknown(Exception):
    """An operation that is not in the table, or arguments that it cannot be done again with; says why."""


def arguments_of(operation: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Arguments by their names, defaults too."""
    found: dict[str, Any] = {}
    for place, argument in enumerate(operation._schema.arguments):
        if place < len(args) and not argument.kwarg_only:
            found[argument.name] = args[place]
        elif argument.name in kwargs:
            found[argument.name] = kwargs[argument.name]
        elif argument.has_default_value():
            found[argument.name] = argument.default_value
    return found


def with_storage(operation: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Where it steps through memory: the whole of that, and where it begins.

    Raises  Unreadable
    """
    if not short_name(operation).startswith("as_strided"):
        return given
    begin = given["self"].storage_offset() if given["storage_offset"] is None else given["storage_offset"]
    return given | {"storage": storage(given["self"]), "storage_offset": begin}


def written(operation: Any) -> list[str]:
    """Names of arguments that it writes to."""
    return [one.name for one in operation._schema.arguments if one.alias_info is not None and one.alias_info.is_write]


class Redone(NamedTuple):
    """What is known of a call when it has been done again."""

    check: Check
    worst: Difference | None = None
    errors: Sequence[Array | None] = ()  # results less exact ones, where they are wanted


def redo(operation: Any, given: dict[str, Any], made: Any, after: dict[str, Any], keep: bool) -> Redone:
    """Hold a call against NumPy.

    given   arguments as they were before it, as arrays in their own formats
    after   arguments that it wrote to, as they are now
    keep    whether the differences are wanted, entry by entry

    Raises  Unknown
    """
    name = short_name(operation)
    if name.startswith("_foreach_"):
        return _each(operation, name.removeprefix("_foreach_"), given, made, after)
    if name in DRAWN:
        return Redone(Check.DRAWN)
    results = outputs_of(made)
    arrays = [None if one is None else raw(one) for one in results]
    if isinstance(made, bool | int | float):
        arrays = [np.asarray(made)]
    return _one(name, given, arrays, after, keep)


def _one(name: str, given: dict[str, Any], arrays: list[Raw | None], after: dict[str, Any], keep: bool) -> Redone:
    if name in MOVED and not (name == "where" and _is_mixed(given)):
        like = next((one for one in arrays if one is not None), None)
        found = called(MOVED[name], name, {**given, "like": like})
        if found is None:
            raise Unknown("these arguments are not in the table")
        worst = _worst_moved(found if isinstance(found, list) else [found], arrays)
        return Redone(Check.MOVED, worst, _cast_error(given, arrays) if keep and name in CASTS else ())
    if name not in EXACT:
        raise Unknown("not in the table")
    with np.errstate(all="ignore"):
        formats = {key: value.dtype for key, value in given.items() if isinstance(value, np.ndarray)}
        results = [None if one is None else exact(one) for one in arrays]
        found = called(EXACT[name], name, {**mapped_arrays(given, exact), "formats": formats, "results": results})
        if found is None:
            raise Unknown("these arguments are not in the table")
        if isinstance(found, dict):
            arrays = [array for key in found for array in _listed(after[key])]
            found = [one for several in found.values() for one in several]
        several = found if isinstance(found, list) else [found]
        return _held(several, arrays, _accumulated(given, arrays), keep, _narrowed(name))


def _each(operation: Any, name: str, given: dict[str, Any], made: Any, after: dict[str, Any]) -> Redone:
    """An operation on lists: one after the other."""
    second = SECOND.get(name, "other")
    names = OF_MANY | {"scalar": second, "scalars": second, "other": second}
    given = {names.get(key, key): value for key, value in given.items()}
    results: list[Any] = [raw(one) for one in made] if made is not None else after["self"]
    checks = []
    for place, result in enumerate(results):
        own = {key: value[place] if _is_of_each(key, value, len(results)) else value for key, value in given.items()}
        checks.append(_one(name, own, [result], {}, False))
    worst = max((one.worst for one in checks if one.worst is not None), key=_order, default=None)
    return Redone(checks[0].check if checks else Check.MOVED, worst)


def _is_of_each(key: str, value: Any, count: int) -> bool:
    """Whether there is one for each of a list: `value` may come as an array of scalars."""
    scalars = key == "value" and isinstance(value, np.ndarray) and value.ndim == 1
    return (isinstance(value, list) or scalars) and len(value) == count


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def mapped_arrays(value: Any, change: Callable[[Raw], Any]) -> Any:
    """The same with every array in it changed."""
    if isinstance(value, np.ndarray):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped_arrays(one, change) for key, one in value.items()}
    return [mapped_arrays(one, change) for one in value] if isinstance(value, list) else value


def as_arrays(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments with their tensors as arrays."""
    return {key: mapped(value, raw) for key, value in given.items()}


@cache
def _parameters(function: Callable[..., Any]) -> tuple[set[str], bool]:
    known = inspect.signature(function).parameters
    return set(known), any(one.kind is one.VAR_KEYWORD for one in known.values())


def called(function: Callable[..., Any], name: str, given: dict[str, Any]) -> Any:
    """With those arguments that it knows.

    Raises  Unknown where another one is given that may change numbers, or the function says why it cannot
    """
    known, takes_all = _parameters(function)
    strange = {key for key, value in given.items() if key not in known and value is not None} - WITHOUT_DATA
    if strange and not takes_all:
        raise Unknown(f"its argument {min(strange)} is not in the table")
    taken = {key: value for key, value in given.items() if key in known}
    try:
        return function(**taken, **({"name": name} if "name" in known else {}))
    except NotImplementedError as error:
        raise Unknown(str(error)) from error


def _is_mixed(given: dict[str, Any]) -> bool:
    return not all(isinstance(given.get(key), np.ndarray) for key in ("self", "other"))


def _accumulated(given: dict[str, Any], arrays: list[Raw | None]) -> Any:
    """The format that sums are formed in: float32, or float64 where a result is of it."""
    wide = any(one is not None and one.dtype in (np.float64, np.complex128) for one in arrays)
    return np.float64 if wide else np.float32


def _narrowed(name: str) -> float:
    """u of the format that factors of float32 are rounded to in products, where PyTorch is allowed to; else 0."""
    if name not in ("mm", "bmm", "addmm", "baddbmm", "convolution", "linear"):
        return 0.0
    return {"medium": 2.0**-8, "high": 2.0**-11}.get(torch.get_float32_matmul_precision(), 0.0)


def _order(one: Difference | None) -> float:
    return -1.0 if one is None else np.inf if np.isnan(one.share) else one.share


def _worst_moved(found: list[Any], arrays: list[Raw | None]) -> Difference | None:
    """The first entry that is not the same, where there is one."""
    for place, (expected, engine) in enumerate(zip(found, arrays, strict=False)):
        if expected is None or engine is None:
            continue
        expected, engine = parts(np.asarray(expected)), parts(engine)
        if expected.shape != engine.shape:
            return Difference(np.inf, place, (), float(len(engine.shape)), float(len(expected.shape)), 0.0)
        same = expected == engine
        if is_float(engine) or is_float(expected):
            same |= (expected != expected) & (engine != engine)
        if not np.all(same):
            at = tuple(map(int, np.argwhere(~np.asarray(same))[0]))
            return Difference(np.inf, place, at, float(engine[at]), float(expected[at]), 0.0)
    return None


def _held(found: list[Exact | None], arrays: list[Raw | None], summed: Any, keep: bool, narrowed: float) -> Redone:
    """Results against exact ones."""
    if len(found) != len(arrays):
        raise Unknown(f"{len(arrays)} results, {len(found)} in the table")
    worst, errors = None, list[Array | None]()
    for place, (one, engine) in enumerate(zip(found, arrays, strict=True)):
        if one is None or engine is None:
            errors.append(None)
            continue
        if np.shape(one.value) != np.shape(engine if one.held is None else one.held):
            raise Unknown(f"its result has shape {list(engine.shape)}, {list(np.shape(one.value))} in the table")
        if np.iscomplexobj(one.value) and engine.dtype.kind != "c":
            raise Unknown("its result is real, complex in the table")
        difference = _difference(one, engine, summed, place, narrowed)
        worst = max(worst, difference, key=_order)
        value = one.value if one.held is None else one.solution
        errors.append(_error(value, engine) if keep and is_float(engine) and value is not None else None)
    return Redone(Check.REDONE, worst, errors)


def _cast_error(given: dict[str, Any], arrays: list[Raw | None]) -> list[Array | None]:
    """What a cast to a narrower format loses."""
    from_, to = given.get("src", given["self"]), arrays[0]
    if to is None or not is_float(to) or not is_float(from_) or from_.dtype.itemsize <= to.dtype.itemsize:
        return []
    return [_error(np.broadcast_to(exact(from_), to.shape), to)]


def _error(expected: Array, engine: Raw) -> Array:
    off = exact(engine) - expected
    return np.where(np.isfinite(off), off, 0.0).astype(np.complex64 if np.iscomplexobj(off) else np.float32)


def _difference(one: Exact, engine: Raw, summed: Any, place: int, narrowed: float) -> Difference:
    """The entry that is furthest off; of a large result block by block, each in the processor's cache."""
    shape = np.shape(one.value)
    if math.prod(shape) <= BLOCK:
        return _furthest(one, engine, summed, place, narrowed)
    whole = [_flat(part, shape) for part in (one.value, one.rounding, one.storage, one.held)]
    flat, worst = engine.reshape(-1) if one.held is None else engine, None
    for begin in range(0, math.prod(shape), BLOCK):
        block = slice(begin, begin + BLOCK)
        value, rounding, storage, held = (part[block] if isinstance(part, np.ndarray) else part for part in whole)
        here = Exact(value, rounding, storage, one.stored, held)
        found = _furthest(here, flat[block] if held is None else engine, summed, place, narrowed)
        index = (*map(int, np.unravel_index(begin + found.place[0], shape)), *found.place[1:])
        worst = max(worst, found._replace(place=index), key=_order)
    assert worst is not None
    return worst


def _flat(part: Any, shape: tuple[int, ...]) -> Any:
    """In a row, where it is no single number."""
    return np.broadcast_to(part, shape).reshape(-1) if isinstance(part, np.ndarray) and part.ndim else part


def _furthest(one: Exact, engine: Raw, summed: Any, place: int, narrowed: float) -> Difference:
    """The same at once."""
    value = np.asarray(one.value)
    expected = parts(value + 0j if engine.dtype.kind == "c" else value)
    got = parts(exact(engine) if one.held is None else one.held)
    if is_float(engine):
        within = _within(one, engine, summed)
        if narrowed:
            within = within + 2 * narrowed * _spread_to(one.rounding, one, engine)
        most = float(ml_dtypes.finfo(engine.dtype).max)
        overflown = np.isinf(got) & (np.sign(got) == np.sign(expected)) & (np.abs(expected) + within >= most)
    else:
        within, overflown = np.zeros(expected.shape), np.zeros(expected.shape, bool)
        expected, got = expected * 1, got * 1  # what is true is 1
    off = np.abs(got - expected)
    alike = (got == expected) | (np.isnan(got) & np.isnan(expected)) | overflown
    share = np.where(alike | (np.isinf(within) & ~np.isnan(got)), 0.0, off / np.where(within > 0, within, 5e-324))
    share = np.where(np.isnan(share), np.inf, share)
    if not share.size:
        return Difference(0.0, place, (), 0.0, 0.0, 0.0)
    at = np.unravel_index(int(share.argmax()), share.shape)
    index = tuple(map(int, at))
    return Difference(float(share[at]), place, index, float(got[at]), float(expected[at]), float(within[at]))


def _within(one: Exact, engine: Raw, summed: Any) -> Array:
    """How far each entry may be off; of a complex one, each of its parts."""
    stored = engine.dtype if one.stored is None or one.stored == np.float64 else one.stored
    rounding = _spread_to(one.rounding, one, engine)
    size = np.abs(np.asarray(one.value)) if one.storage is None else one.storage
    return bound(_spread_to(size, one, engine), rounding, stored=stored, summed=summed)


def _spread_to(bounds: Any, one: Exact, engine: Raw) -> Array:
    wide = np.broadcast_to(np.asarray(bounds, np.float64), np.shape(one.value))
    return np.stack([wide, wide], -1) if engine.dtype.kind == "c" else wide
