"""Which rows a loss judges together: the gradient of one's output then depends on the outputs of others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from limpid.doctor.description.pushes import by_row
from limpid.doctor.description.words import number, share, span

if TYPE_CHECKING:
    from limpid.doctor.step_record import StepRecord

ROOM, SMALL = 2**20, 2**16
"""Entries of the outputs up to which one row is asked, and up to which several are."""
ASKED, PASSES = 8, 4
"""Rows that are asked of a pass, and passes."""
NOTHING = 1e-6
"""Second derivatives below this share of the largest are rounding."""
APART = 0.5
"""Difference of two shares of pairs from which on a number of the batch is told."""
FEWEST = 4
"""Rows of tokens from which on their beginnings are held against each other."""
NAMED, TABLES = 8, 2
"""Rows up to which those that are met are named, and numbers of the batch that are told."""


@dataclass(frozen=True)
class Coupling:
    """Rows of one pass, and of which rows of another the gradients of their outputs depend on the outputs."""

    first: int  # number of the pass
    second: int
    asked: tuple[int, ...]  # rows
    met: Tensor  # (asked, row of the second pass), whether

    @property
    def counts(self) -> list[int]:
        return [int(one) for one in self.met.sum(1)]


def couplings_of(root: Tensor, outputs: Mapping[int, tuple[Any, int]]) -> list[Coupling]:
    """Of a loss that its backward pass is about to begin with, by second derivatives that stop at the outputs.

    outputs   node and slot of what each forward pass returned
    """
    passes = list(outputs)[:PASSES]
    shapes = [tuple(node._input_metadata[slot].shape) for node, slot in (outputs[one] for one in passes)]
    size = sum(math.prod(shape) for shape in shapes)
    if size > ROOM or any(not shape or shape[0] < 2 for shape in shapes):
        return []
    edges = [GradientEdge(*outputs[one]) for one in passes]
    with torch.enable_grad():
        first = torch.autograd.grad(root, edges, create_graph=True, allow_unused=True)
    found = []
    for place, (gradient, shape) in enumerate(zip(first, shapes, strict=True)):
        if gradient is None:
            continue
        rows = sorted({i * shape[0] // ASKED for i in range(ASKED)}) if size <= SMALL else [0]
        reached = [_reached(gradient, row, edges, shapes) for row in rows]
        for other in range(len(shapes)):
            met = torch.stack([one[other] for one in reached])
            if other == place:
                met[torch.arange(len(rows)), torch.tensor(rows)] = False
            found.append(Coupling(passes[place], passes[other], tuple(rows), met))
    return found


def _reached(gradient: Tensor, row: int, edges: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Of each pass, on the outputs of which rows the gradient of this row's depends."""
    nothing = [torch.zeros(shape[0], dtype=torch.bool) for shape in shapes]
    if not gradient.requires_grad:
        return nothing
    with torch.enable_grad():
        own = gradient[row]
        weights = torch.arange(own.numel(), device=own.device).reshape(own.shape).add(1).cos()
        mixed = (own * weights.to(own.dtype)).sum()
    given = torch.autograd.grad(mixed, edges, retain_graph=True, allow_unused=True)
    sizes = [None if one is None else one.detach().abs().reshape(len(one), -1).amax(1).float().cpu() for one in given]
    most = max((float(one.nan_to_num(0).max()) for one in sizes if one is not None), default=0.0)
    return [none if one is None else one > NOTHING * most for one, none in zip(sizes, nothing, strict=True)]


def told(couplings: Sequence[Coupling], record: StepRecord) -> Iterator[str]:
    """In sentences, of rows; nothing of one pass whose rows are judged one by one."""
    several = len({one.first for one in couplings}) > 1
    there = [one for one in couplings if bool(one.met.any())]
    if not there and several:
        yield "in the loss no output's gradient depends on another row's, of any pass"
    by_kind: dict[str, list[str]] = {}
    for one in there:
        rows = one.met.shape[1]
        others = rows - (one.first == one.second)
        which = ""
        if len(one.asked) and one.counts[0] and max(one.counts) <= NAMED:
            which = "; row " + ", ".join(
                f"{row} on {_rows(met)}" for row, met in zip(one.asked[:2], one.met, strict=False)
            )
        said = f"the outputs of {span(one.counts)} of {number(others)} {'other ' if others < rows else ''}rows"
        by = [*_by_number(one, record), *_begin_alike(one, record)] if one.first == one.second and not several else []
        alike = "; ".join(by)
        by_kind.setdefault(said + which + ("; " + alike if alike else ""), []).append(
            f"{one.first + 1} on pass {one.second + 1}" if several else ""
        )
    for said, passes in by_kind.items():
        where = f" (a row of pass {', '.join(passes)})" if several else ""
        yield f"in the loss the gradient of a row's output depends on {said}{where}"


def _rows(met: Tensor) -> str:
    return " ".join(str(row) for row in met.nonzero().flatten().tolist()) or "none"


def _by_number(one: Coupling, record: StepRecord) -> list[str]:
    """Numbers of the batch's rows by which it can be said which rows meet."""
    found = []
    for name, x in by_row(record, fewest=2).items():
        if len(x) != one.met.shape[1] or int(x.unique().numel()) < 2:
            continue
        asked = torch.tensor(one.asked)
        apart = torch.ones_like(one.met)
        apart[torch.arange(len(asked)), asked] = False
        equal = (x[asked][:, None] == x[None]) & apart
        higher, lower = ((x[None] > x[asked][:, None]) & apart, (x[None] < x[asked][:, None]) & apart)
        for (how, first), (other, second) in (
            (("the same", equal), ("another", (higher | lower))), (("a higher", higher), ("a lower", lower))
        ):  # fmt: skip
            if not int(first.sum()) or not int(second.sum()):
                continue
            parts = [float(one.met[kind].double().mean()) for kind in (first, second)]
            if abs(parts[0] - parts[1]) > APART and not (how == "the same" and x.unique().numel() > len(x) / 2):
                found.append(f"of those with {how} {name} {share(parts[0])}, with {other} {share(parts[1])}")
                break
    return found[:TABLES]


def _begin_alike(one: Coupling, record: StepRecord) -> list[str]:
    """Of rows of tokens that meet one other each, in how many tokens both begin alike, beside rows that do not meet."""
    ids = record.calls[one.first].ids if one.first < len(record.calls) else None
    held = None if ids is None or set(one.counts) != {1} else record.host(ids)
    if held is None or len(held) != one.met.shape[1] or len(held) < FEWEST:
        return []
    partners = one.met.int().argmax(1)
    strangers = (partners + 1 + (torch.tensor(one.asked) == (partners + 1) % len(held)).int()) % len(held)
    pairs, others = (
        (held[list(one.asked)] == held[rows]).int().cumprod(1).sum(1).tolist() for rows in (partners, strangers)
    )
    return [f"rows that meet begin with {span(pairs)} equal tokens, rows that do not with {span(others)}"]
