"""What answers each kind of published number: a register that the files beside this one fill."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from limpid.maths.operation import Array

Inputs = dict[str, Any]
Answer = Callable[[Inputs], Any]


@dataclass(frozen=True)
class Kind:
    """What computes one kind of published number, and which entries of the catalogue it puts to the test."""

    answer: Answer
    tests: tuple[str, ...]


KINDS: dict[str, Kind] = {}


def kind(name: str, *tests: str) -> Callable[[Answer], Answer]:
    """Registers what answers a kind."""

    def register(answer: Answer) -> Answer:
        KINDS[name] = Kind(answer, tests)
        return answer

    return register


def a(values: Any) -> Array:
    return np.asarray(values, dtype=np.float64)


def each(answer: Callable[[Inputs], Any], x: Any, key: str) -> Any:
    """The answer for one model, for a list of them, or by name; a model is what has `key`."""
    if isinstance(x, list):
        return [answer(one) for one in x]
    return answer(x) if key in x else {name: answer(one) for name, one in x.items()}
