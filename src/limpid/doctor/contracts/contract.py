"""What the documentation of a function asks of its arguments, and a call that does otherwise."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from limpid.doctor.finding import Severity
from limpid.doctor.rule import Rule

Given = Mapping[str, Any]
"""The arguments of one call by name, defaults included."""
MOST = 2**22
"""Entries of an argument: a look at more would take longer than it is worth."""


@dataclass(frozen=True, kw_only=True)
class Breach:
    """One call whose arguments are not what the function asks for."""

    rule: Rule  # that speaks of it
    where: str  # function and argument
    says: str  # the value, what is asked, what it does to training
    cause: str = ""
    fix: str = ""
    severity: Severity = "fault"
    meant: str | None = ""  # who does this on purpose, where the rule does not say; None where nobody can mean it
    looks: int = 1  # steps that are looked at, and must show it
    elements: Tensor | None = None  # where a value for each element is returned: those that must be learned from
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Contract:
    """A function and what looks at its arguments."""

    owner: Any
    name: str
    check: Callable[[Given], Iterator[Breach]]

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(getattr(self.owner, self.name))

    def given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given:
        """The arguments of a call by name."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    def breaches(self, given: Given) -> Iterator[Breach]:
        """What a call that is learned from does otherwise; of any other nothing."""
        tensors = [value for value in given.values() if isinstance(value, Tensor)]
        if any(t.requires_grad for t in tensors) and all(t.numel() <= MOST for t in tensors):
            yield from self.check(given)


def names(values: Tensor, most: int = 4) -> str:
    """The values of a tensor that has few, as text."""
    found = values.detach().unique().tolist()
    return ", ".join(f"{value:g}" for value in found[:most]) + (", …" if len(found) > most else "")
