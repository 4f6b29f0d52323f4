"""Calls of two recordings that belong together: of one module and phase, in their order, by operation and shapes."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from limpid.operations.document import CallDocument
from limpid.operations.kept import own_name


class Pair(NamedTuple):
    """The same call on both sides, or one that stands on one side alone."""

    a: CallDocument | None
    b: CallDocument | None


def aligned(a: Sequence[CallDocument], b: Sequence[CallDocument]) -> list[Pair]:
    """Every call of both sides once, in the order of the first; what the second alone has stands where it came."""
    groups: dict[tuple[str, str], tuple[list[CallDocument], list[CallDocument]]] = {}
    for side, calls in enumerate((a, b)):
        for call in calls:
            groups.setdefault((call.phase, own_name(call.module)), ([], []))[side].append(call)
    pairs = [pair for group in groups.values() for pair in _paired(*group)]
    partner = {pair.b.number: pair.a.number for pair in pairs if pair.a is not None and pair.b is not None}
    return sorted(pairs, key=lambda pair: _place(pair, partner))


def _paired(a: list[CallDocument], b: list[CallDocument]) -> list[Pair]:
    keys, others = [_key(call) for call in a], [_key(call) for call in b]
    if keys == others:
        return [Pair(*both) for both in zip(a, b, strict=True)]
    found: list[Pair] = []
    rest: tuple[list[CallDocument], list[CallDocument]] = [], []
    for tag, i, i_end, j, j_end in SequenceMatcher(None, keys, others, autojunk=False).get_opcodes():
        if tag == "equal":
            found += [Pair(*both) for both in zip(a[i:i_end], b[j:j_end], strict=True)]
        else:
            rest[0].extend(a[i:i_end])
            rest[1].extend(b[j:j_end])
    return found + _out_of_order(*rest)


def _out_of_order(a: list[CallDocument], b: list[CallDocument]) -> list[Pair]:
    """Calls that came in another order, such as sums of gradients."""
    waiting: dict[object, list[CallDocument]] = {}
    for call in b:
        waiting.setdefault(_key(call), []).append(call)
    found = [Pair(call, waiting[_key(call)].pop(0) if waiting.get(_key(call)) else None) for call in a]
    return found + [Pair(None, call) for calls in waiting.values() for call in calls]


def _key(call: CallDocument) -> tuple[str, tuple[tuple[int, ...], ...]]:
    return call.operation.rpartition(".")[0] or call.operation, call.shapes


def _place(pair: Pair, partner: dict[int, int]) -> tuple[int, int]:
    if pair.a is not None:
        return pair.a.number, -1
    assert pair.b is not None
    before = max((own for other, own in partner.items() if other < pair.b.number), default=-1)
    return before, pair.b.number
