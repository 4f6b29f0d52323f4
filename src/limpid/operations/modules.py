"""The modules of a step as a tree, as their author wrote them; those that are alike in a row are folded into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from limpid.operations.call import Call, Check

LOSS, UPDATE = "(loss, clipping)", "(update)"
"""Where calls stand that are in no module."""


@dataclass(frozen=True)
class ModuleDocument:
    """A module with what came of its calls, and its parts."""

    name: str  # the last part of its path; of several folded into one: 0 … 11
    path: str  # of several that of the one nearest to its bound
    alike: int  # how many are folded into one
    forward: tuple[str, ...]  # what it computes itself in the forward pass, its parts' left out
    calls: int  # its parts' too, as everything below
    unchecked: int
    wrong: int
    share: float | None  # largest share of a bound; none where nothing was compared
    worst: int | None  # number of that call
    error: float  # added to what backward() began at
    modules: tuple[ModuleDocument, ...]


@dataclass
class _Node:
    calls: list[Call] = field(default_factory=list)
    parts: dict[str, _Node] = field(default_factory=dict)


def tree(calls: Sequence[Call]) -> ModuleDocument:
    """The whole step, its modules in the order in which they are first called."""
    root = _Node()
    for call in calls:
        node = root
        for part in call.module.split(".") if call.module else [UPDATE if call.phase == "update" else LOSS]:
            node = node.parts.setdefault(part, _Node())
        node.calls.append(call)
    for last in (LOSS, UPDATE):
        if last in root.parts:
            root.parts[last] = root.parts.pop(last)
    return _document("", "", root)


def _document(name: str, path: str, node: _Node) -> ModuleDocument:
    parts = tuple(_document(one, f"{path}.{one}" if path else one, below) for one, below in node.parts.items())
    own = max((call for call in node.calls if call.worst is not None), key=_share, default=None)
    found = [(part.share, part.worst) for part in parts if part.share is not None]
    if own is not None:
        found.append((_share(own), own.number))
    share, worst = max(found, key=lambda one: one[0], default=(None, None))
    return ModuleDocument(
        name, path, 1, tuple(call.operation for call in node.calls if _is_forward_arithmetic(call)),
        len(node.calls) + sum(part.calls for part in parts),
        sum(call.check is Check.UNCHECKED for call in node.calls) + sum(part.unchecked for part in parts),
        sum(call.is_wrong for call in node.calls) + sum(part.wrong for part in parts),
        share, worst,
        sum(call.error for call in node.calls) + sum(part.error for part in parts),
        parts,
    )  # fmt: skip


def folded(module: ModuleDocument) -> ModuleDocument:
    """The same with parts that are numbered and built alike as one, with the largest share and the sum of the rest."""
    parts: list[ModuleDocument] = []
    for part in map(folded, module.modules):
        before = parts[-1] if parts else None
        if before is not None and before.name[:1].isdigit() and part.name.isdigit() and _form(before) == _form(part):
            parts[-1] = _together(before, part)
        else:
            parts.append(part)
    return replace(module, modules=tuple(parts))


def _form(module: ModuleDocument) -> tuple[object, ...]:
    """What makes modules alike: what they compute, and the names of their parts and what these compute."""
    inside = tuple(
        (part.name.split(" ")[0] if part.alike == 1 else part.alike, *_form(part)) for part in module.modules
    )
    return (module.forward, *inside)


def _together(one: ModuleDocument, other: ModuleDocument) -> ModuleDocument:
    """Two that are alike; the first may stand for several."""
    nearer = max(one, other, key=lambda module: -1.0 if module.share is None else module.share)
    first = one.name.partition(" ")[0]
    return replace(
        one,
        path=nearer.path,
        name=f"{first} … {other.name.rpartition(' ')[2]}",
        alike=one.alike + other.alike,
        calls=one.calls + other.calls,
        unchecked=one.unchecked + other.unchecked,
        wrong=one.wrong + other.wrong,
        share=nearer.share,
        worst=nearer.worst,
        error=one.error + other.error,
        modules=tuple(_within(a, b) for a, b in zip(one.modules, other.modules, strict=True)),
    )


def _within(one: ModuleDocument, other: ModuleDocument) -> ModuleDocument:
    """Parts of two that are alike: under the first's name, however many modules they stand for."""
    return replace(_together(one, other), name=one.name, alike=one.alike)


def _is_forward_arithmetic(call: Call) -> bool:
    return call.phase == "forward" and call.check in (Check.REDONE, Check.UNCHECKED)


def _share(call: Call) -> float:
    share = -1.0 if call.worst is None else call.worst.share
    return float("inf") if share != share else share
