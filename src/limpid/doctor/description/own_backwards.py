"""Backward passes of one's own, each beside the numerical derivative of its forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limpid.doctor.libraries import is_library

if TYPE_CHECKING:
    from limpid.adjoints.adjoint import Adjoint

MOST = 6
"""Functions, each with the line that calls it, that are told."""
TOLD = 1e-12
"""Of a derivative: what is nearer is not told from it by differences."""


@dataclass(frozen=True)
class OwnBackwards:
    """What came of it, once."""

    sentences: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()  # of all Functions that were met

    def told(self, outside: Iterable[type]) -> Iterator[str]:
        """In sentences; also of Functions between the outputs and the loss, where they are not the model's."""
        yield from self.sentences
        others = dict.fromkeys(one.__qualname__ for one in outside if not is_library(one.__module__))
        for name in [one for one in others if one not in self.names][:MOST]:
            yield f"the backward pass of {name} (own) was not held against the numerical derivative: not the model's"


def own_backwards(found: Sequence[Adjoint]) -> OwnBackwards:
    """One sentence for each of the user's own Functions and each place that calls it; of several calls the worst."""
    from limpid.adjoints.adjoint import Verdict

    order = (Verdict.WRONG, Verdict.SURROGATE, Verdict.HOLDS, Verdict.UNCHECKED)
    worst: dict[tuple[str, str], Adjoint] = {}
    for one in found:
        if one.kind is None or is_library(one.kind.__module__):
            continue
        known = worst.setdefault((one.function, one.source), one)
        if order.index(one.verdict) < order.index(known.verdict):
            worst[one.function, one.source] = one
    return OwnBackwards(tuple(map(_told, list(worst.values())[:MOST])), frozenset(one.function for one in found))


def _told(one: Adjoint) -> str:
    from limpid.adjoints.adjoint import Verdict

    where = ", ".join(part for part in (one.module, one.source) if part)
    name = f"the backward pass of {one.function}" + (f" (own, {where})" if where else " (own)")
    match one.verdict:
        case Verdict.HOLDS:
            return f"{name} agrees with the numerical derivative along random directions{_within(one)}"
        case Verdict.WRONG if not one.along:
            return f"{name} gives another gradient in the step than the numerical derivative: {one.why}"
        case Verdict.WRONG:
            return f"{name} does not give the numerical derivative{_beside(one)}"
        case Verdict.SURROGATE:
            return f"{name} gives another gradient than the numerical derivative, as of a surrogate{_beside(one)}"
    return f"{name} was not held against the numerical derivative: {one.why}"


def _within(one: Adjoint) -> str:
    off = [abs(each.given - each.expected) / each.size for each in one.along if each.size]
    return f", within {max(TOLD, *off):.1g}" if off else ""


def _beside(one: Adjoint) -> str:
    """What it gives along the directions in one input, as a share of the derivative, and why that may be meant."""
    why = f" ({one.why})" if one.why else ""
    if one.worst is None:
        return why
    own = [each for each in one.along if each.place == one.worst.place]
    of = f": in {one.names[one.worst.place]}" if one.worst.place < len(one.names) else ":"
    if all(each.expected == 0 for each in own):
        return f"{of} that is 0{why}"
    if one.ratio is not None:
        size = "minus" if abs(one.ratio + 1) < 1e-3 else f"{one.ratio:.3g} times"
        return f"{of} it gives {size} that along {len(own)} of {len(own)} random directions{why}"
    shares = ", ".join(f"{each.given / each.expected:.2g}" for each in own if each.expected)
    differ = sum(each.is_apart for each in own)
    return f"{of} it gives {shares} of that along random directions ({differ} of {len(own)} differ){why}"
