"""Numbers and names as sentences have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

NAMED = 3
"""Names of a kind that are told one by one."""


def number(count: int) -> str:
    """A whole number with its thousands apart."""
    return f"{count:,}"


def counted(count: int, one: str, many: str = "") -> str:
    """A number and what it counts."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def share(part: float) -> str:
    """A part of 1 in percent."""
    return f"{part:.0%}" if part in (0.0, 1.0) or 0.1 <= part <= 0.9 else f"{part:.1%}"


def format_of(dtype: torch.dtype) -> str:
    """float32, int64, …"""
    return str(dtype).removeprefix("torch.")


def listed(names: Sequence[str], most: int = 4) -> str:
    """Some names, and how many there are besides."""
    more = f" and {number(len(names) - most)} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def patterns(names: Iterable[str], among: Iterable[str] = ()) -> list[str]:
    """Names with a * for the number of a layer, each once.

    among    the names that there are: where some of a kind are meant, up to three are told by name, of more how many
    """
    kinds, there = (_by_kind(some) for some in (names, among))
    told = []
    for kind, same in kinds.items():
        of = len(there.get(kind, same))
        if len(same) == of or kind == same[0]:
            told.append(kind)
        elif len(same) <= NAMED:
            told += same
        else:
            told.append(f"{kind} ({number(len(same))} of {number(of)})")
    return told


def _by_kind(names: Iterable[str]) -> dict[str, list[str]]:
    """Names by what they are with a * for each number."""
    kinds: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        kind = ".".join("*" if part.isdigit() else part for part in name.split("."))
        kinds.setdefault(kind, []).append(name)
    return kinds


def span(values: Sequence[int]) -> str:
    """The least and the largest of some whole numbers, or the one that all are."""
    return number(min(values)) if min(values) == max(values) else f"{min(values):,} to {max(values):,}"
