"""What goes into the model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from limpid.doctor.expected.key import Seen, is_count, is_span, key, one_of

if TYPE_CHECKING:
    from limpid.doctor.calls import Call

FEWEST = 0.4
"""Share of the different rows that so many draws should have met below which rows are missing: some are alike."""
NARROWEST, BEYOND = 0.25, 0.1
"""Part of a span that inputs fill at least; how far beyond it they go."""
SEVERAL = 32
"""Entries of an input from which on its span says something."""


def first_call(seen: Seen) -> Call | None:
    """The first forward pass whose gradient reaches the update."""
    unused = seen.record.dropped | seen.record.asides
    return next((call for i, call in enumerate(seen.record.calls) if i not in unused), None)


@key(
    "data",
    "rows",
    "a whole number",
    "rows of one forward pass; of pairs, or several answers to a prompt, one",
    is_count,
    agrees=lambda said, seen: seen % said == 0,
    patience=3,
)
def rows(seen: Seen, said: Any) -> Any:
    call = first_call(seen)
    if call is None:
        return None
    held = call.ids if call.ids is not None else next(iter(call.tensors.values()), None)
    return None if held is None or held.ndim < 2 else int(held.shape[0])


@key("data", "micro_batches", "a whole number", "backward passes that add up to one update", is_count, patience=2)
def micro_batches(seen: Seen, said: Any) -> Any:
    return seen.record.events.count("backward") or None


@key(
    "data",
    "data_rows",
    'a whole number, or "endless"',
    "different rows that there are to draw from; endless where each is drawn fresh",
    lambda value: is_count(value) or value == "endless",
    agrees=lambda said, seen: seen[0] >= FEWEST * seen[1],
    when="end",
    settles=lambda said: () if said == "endless" else ("batch-repeats", "rows-duplicated"),
)
def data_rows(seen: Seen, said: Any) -> Any:
    """Different rows that were drawn, and how many there should be among so many draws."""
    drawn, different = seen.history.rows.count, seen.history.rows.distinct
    if drawn < SEVERAL:
        return None
    wanted = drawn if said == "endless" else said * -math.expm1(-drawn / said)
    return different, round(wanted)


@key(
    "data",
    "padding",
    '"left", "right" or "none"',
    "where rows are filled up, by the mask that a model is given",
    one_of("left", "right", "none"),
    patience=2,
)
def padding(seen: Seen, said: Any) -> Any:
    call = first_call(seen)
    mask = None if call is None else call.mask
    if mask is None or mask.ndim != 2 or bool((mask != 0).all()):
        return None
    first, last = bool((mask[:, 0] == 0).any()), bool((mask[:, -1] == 0).any())
    return None if first and last else "left" if first else "right" if last else None


def _fills(said: list[float], seen: tuple[float, float]) -> bool:
    (low, high), (least, most) = said, seen
    span = high - low
    inside = low - BEYOND * span <= least and most <= high + BEYOND * span
    return inside and most - least >= NARROWEST * span


@key(
    "data",
    "range",
    "two numbers, [low, high]",
    "between which measured inputs lie (pixels, say)",
    is_span,
    agrees=_fills,
    patience=2,
)
def span(seen: Seen, said: Any) -> Any:
    call = first_call(seen)
    measured = [] if call is None else [t for t in call.tensors.values() if t.is_floating_point()]
    if not measured or measured[0].numel() < SEVERAL:
        return None
    x = measured[0].detach().float()
    return float(x.min()), float(x.max())
