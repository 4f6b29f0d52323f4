"""Which columns of its rows a model's outputs read, and which of them it reads together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.doctor.calls import find_rows
from limpid.doctor.description.others import far, outputs, with_other
from limpid.doctor.description.words import listed, number

if TYPE_CHECKING:
    from limpid.doctor.calls import Call
    from limpid.doctor.exam import Exam

MOST, ROWS = 8, 32
"""Columns up to which they are tried, a pass each and one for each pair, and the rows of a pass."""


@dataclass(frozen=True)
class Columns:
    """What moves when columns of all rows are another row's, before the first update."""

    name: str
    read: tuple[tuple[int, ...], ...]  # the columns that each output reads
    apart: tuple[tuple[int, int], ...]  # pairs whose effects on every output add up
    pairs: int

    def told(self) -> Iterator[str]:
        """In sentences; nothing where all outputs read all columns together."""
        width = max((one + 1 for columns in self.read for one in columns), default=0)
        if len(set(self.read)) > 1:
            each = (f"{i} reads {' '.join(map(str, columns)) or 'none'}" for i, columns in enumerate(self.read))
            yield f"of {number(width)} columns of {self.name} output {', '.join(each)}"
        if self.apart:
            which = listed([f"{a} and {b}" for a, b in self.apart], 6)
            both = "all" if len(self.apart) == self.pairs else f"{number(len(self.apart))} of {number(self.pairs)}"
            yield f"effects of {both} pairs of columns of {self.name} add up, none bears on the other's: {which}"


def columns(exam: Exam) -> Columns | None:
    """Of models of rows with few columns."""
    call = None if exam.info.translates else exam.few_rows
    call = None if call is None else call.without_loss()
    given = [] if call is None else [(name, one) for name, one in call.tensors.items() if one.ndim >= 1]
    if call is None or len(given) != 1 or given[0][1].ndim != 2 or not 1 < given[0][1].shape[1] <= MOST:
        return None
    name, x = given[0]
    if len(x) < 4 or x.layout != torch.strided or x.is_complex() or x.dtype == torch.bool:
        return None
    return _measured(exam, call, name, x)


def _measured(exam: Exam, call: Call, name: str, x: Tensor) -> Columns | None:
    x = x[:ROWS]
    others, made = x.roll(1, 0), dict[tuple[int, ...], Tensor]()
    for changed in itertools.chain(((),), *(itertools.combinations(range(x.shape[1]), n) for n in (1, 2))):
        mixed = x.clone()
        mixed[:, changed] = others[:, changed]
        found = outputs(exam, with_other(call, call.tensors[name], mixed), find_rows)
        if found is None or len(found) != len(x) or found.numel() > len(x) * MOST:
            return None
        made[changed] = found.reshape(len(x), -1)
    plain = made[()]
    reads = torch.stack([far(plain, made[(i,)]).any(0) for i in range(x.shape[1])])  # (column, output)
    read = tuple(tuple(reads[:, i].nonzero().flatten().tolist()) for i in range(reads.shape[1]))
    pairs = itertools.combinations(range(x.shape[1]), 2)
    both = [(a, b) for a, b in pairs if bool(reads[a].any()) and bool(reads[b].any())]
    apart = [(a, b) for a, b in both if not bool(far(made[a, b] + plain, made[(a,)] + made[(b,)]).any())]
    return Columns(name, read, tuple(apart), len(both))
