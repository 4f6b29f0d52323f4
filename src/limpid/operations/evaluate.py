"""An operation's results in float64, from inputs that need not be the engine's: as they would be without rounding."""

from __future__ import annotations

from typing import Any

import numpy as np

from limpid.adjoints.aten import DRAWN, short_name
from limpid.maths.operation import Array
from limpid.operations.arrays import exact, is_float
from limpid.operations.exact import EXACT, MOVED
from limpid.operations.exact.movement import Raw
from limpid.operations.redo import Unknown, called, mapped_arrays

CONSTANTS = {
    "full", "full_like", "new_full", "scalar_tensor", "fill", "masked_fill", "index_fill", "constant_pad_nd",
}  # fmt: skip
"""Movement of data that rounds a number of Python's to the format of its result."""


def evaluate(operation: Any, given: dict[str, Any], results: list[Raw | None]) -> list[Array | None]:
    """What it makes of these inputs, None where that is not told or is of no fractions.

    given     arguments by name; arrays of fractions in float64, others as they are
    results   the engine's, for their shapes and for what was drawn

    Raises  Unknown
    """
    name = short_name(operation)
    if name in DRAWN or name.startswith("_foreach_"):
        raise Unknown("nothing to evaluate")
    with np.errstate(all="ignore"):
        if name in MOVED and not (name == "where" and not _is_of_arrays(given)):
            like = next((one for one in results if one is not None), None)
            found = called(MOVED[name], name, {**given, "like": None if like is None else exact(like)})
        elif name in EXACT:
            formats = {key: value.dtype for key, value in given.items() if isinstance(value, np.ndarray)}
            wide = [None if one is None else exact(one) for one in results]
            found = called(EXACT[name], name, {**mapped_arrays(given, exact), "formats": formats, "results": wide})
        else:
            raise Unknown("not in the table")
    if found is None or isinstance(found, dict):
        raise Unknown("its results are not told")
    several = found if isinstance(found, list) else [found]
    values = [_value(one) for one in several]
    return [
        np.asarray(value) if value is not None and engine is not None and is_float(engine) else None
        for value, engine in zip(values, results, strict=False)
    ]


def _value(one: Any) -> Any:
    if one is None or not hasattr(one, "held"):
        return one
    return one.value if one.held is None else one.solution


def _is_of_arrays(given: dict[str, Any]) -> bool:
    return all(isinstance(given.get(key), np.ndarray) for key in ("self", "other"))
