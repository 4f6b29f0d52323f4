"""Of what an update is given: how much of it is exactly 0, and which rows of tables are taught."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from torch import Tensor

from limpid.doctor.description.words import counted, listed, number, patterns, share, span
from limpid.doctor.devices import joined, together
from limpid.doctor.libraries import is_library
from limpid.doctor.weights import local, sample

if TYPE_CHECKING:
    from limpid.doctor.model_info import ModelInfo

TENSORS, ELEMENTS, COLUMNS = 32, 512, 16
ROOM = 2**20
"""Entries of a table's gradient of which all are looked at."""
FEW, MANY = 4, 32
"""Sizes of entries up to which they are told, and entries from which on so few are no chance."""
ROUNDING = 1e-6
"""Size of a row's gradient over the median tensor's up to which it may be what rounding leaves of nothing."""
ZERO = 0.1
"""Share of exact zeros, and of rows with next to no gradient, from which on it is told."""


@dataclass(frozen=True)
class Zeros:
    """Exact zeros of the gradients that an update was given."""

    share: float  # of the entries of tensors that are no tables
    few_sizes: dict[str, int]  # by name, of matrices whose entries have few sizes: how many
    rounding: dict[str, float]  # by name, of matrices some of whose rows have no more: which share of them
    tables: dict[str, tuple[int, tuple[int, ...]]]  # by name: rows, and which have a gradient
    lines: tuple[str, ...]  # matrices of the user's own modules, some of whose rows or columns have none

    def told(self, tokens: set[int], learned_from: set[int], hidden: set[int], info: ModelInfo) -> Iterator[str]:
        """In sentences, but for tables whose rows of the batch's `tokens` have one, as tables do that are no heads.

        learned_from    those of the tokens that must have one
        hidden          those that are padding alone
        """
        if self.share > ZERO:
            yield f"{share(self.share)} of the gradient's entries are exactly 0, tables left out"
        if self.few_sizes:
            names, sizes = listed(patterns(self.few_sizes, info.parameters)), sorted(set(self.few_sizes.values()))
            matrices = counted(len(self.few_sizes), "matrix", "matrices")
            which = "one size" if sizes == [1] else f"{span(sizes)} sizes"
            yield f"entries of the gradients of {names} ({matrices}) have {which}, zeros left out"
        if self.rounding:
            least = min(self.rounding.values())
            which = "all rows" if least == 1 else f"{share(least)} or more of the rows"
            names = listed(patterns(self.rounding, info.parameters))
            yield f"{which} of {names} have next to no gradient, as rounding leaves of nothing"
        yield from self.lines
        of_tokens = None if info.embedding is None else info.names.get(id(info.embedding[1]))
        for name, (count, rows) in self.tables.items():
            if name == of_tokens and len(rows) < count and hidden & set(rows):
                yield f"{name} learns by padding: its rows {ranges(sorted(hidden & set(rows)))} have a gradient"
            if not info.of_positions(name) and (len(rows) == count or learned_from <= set(rows) <= tokens):
                continue
            missed = sorted(learned_from - set(rows)) if not info.of_positions(name) else []
            also = f"; none though in the batch: {ranges(missed)}" if missed else ""
            yield f"rows of {name} with a gradient: {ranges(rows)} of {number(count)}{also}"


def zeros(info: ModelInfo) -> Zeros:
    """Of the gradients that are there now; of tables all rows, by some columns where they are large."""
    found = {name: local(p.grad) for name, p in info.parameters.items() if p.grad is not None and not p.grad.is_sparse}
    tables = {name: g for name, g in found.items() if name in info.embedding_names and g.ndim == 2 and g.numel()}
    others = [(name, g) for name, g in found.items() if name not in tables and g.numel()]
    looked_at = others[:: max(1, -(-len(others) // TENSORS))]
    some = together([sample(g, ELEMENTS) for _, g in looked_at])
    matrices = {name: x for (name, g), x in zip(looked_at, some, strict=True) if g.ndim > 1 and len(x) >= MANY}
    entries = joined([one != 0 for one in some])
    rows = {name: tuple(_taught(g).nonzero()[:, 0].tolist()) for name, g in tables.items()}
    return Zeros(
        1 - int(entries.count_nonzero()) / entries.numel() if some else 0.0,
        {name: sizes for name, x in matrices.items() if (sizes := _sizes(x)) <= FEW},
        _of_rounding({name: g for name, g in looked_at if g.ndim == 2 and len(g) <= ROOM // COLUMNS}, some),
        {name: (len(tables[name]), taught) for name, taught in rows.items()},
        tuple(_own_lines(info, {name: g for name, g in others if g.ndim == 2 and g.numel() <= ROOM})),
    )


def _own_lines(info: ModelInfo, gradients: dict[str, Tensor]) -> Iterator[str]:
    """Of matrices that are parameters of the user's own modules, as tables that these look numbers up in."""
    for owner, module in info.model.named_modules():
        for name in () if is_library(type(module).__module__) else module._parameters:
            full = f"{owner}.{name}" if owner else name
            gradient = gradients.get(full)
            if gradient is None or not bool(gradient.any()):
                continue
            for axis, what in ((1, "rows"), (0, "columns")):
                has = (gradient != 0).any(axis)
                if not bool(has.all()):
                    yield (
                        f"{what} of {full} with a gradient: {ranges(has.nonzero().flatten().tolist())} of "
                        f"{number(len(has))}"
                    )


def _of_rounding(matrices: dict[str, Tensor], entries: Sequence[Tensor]) -> dict[str, float]:
    """Share of the rows of each matrix whose gradient is next to nothing and not 0, beside a sample of every tensor."""
    sizes = [float(x.double().square().mean().sqrt()) for x in entries]
    middle = median(size for size in sizes if size > 0) if any(sizes) else 0.0
    rows = together([g[:, :COLUMNS].float().square().mean(1).sqrt() for g in matrices.values()])
    shares = {
        name: float(((x > 0) & (x < ROUNDING * middle)).double().mean()) for name, x in zip(matrices, rows, strict=True)
    }
    return {name: part for name, part in shares.items() if part > ZERO}


def _sizes(values: Tensor) -> int:
    """How many different sizes other than 0 there are; many where too few numbers show it."""
    other = values[values != 0].abs()
    return len(other.unique()) if len(other) >= MANY else len(values)


def _taught(gradient: Tensor) -> Tensor:
    """Which rows have an entry other than 0, (row,)."""
    few = gradient if gradient.numel() <= ROOM else gradient[:, :COLUMNS]  # a cache line of each row
    return (few != 0).any(1).cpu()


def ranges(numbers: Sequence[int]) -> str:
    """Whole numbers in rising order, neighbours as one span."""
    spans: list[list[int]] = []
    for one in numbers:
        if spans and one == spans[-1][1] + 1:
            spans[-1][1] = one
        else:
            spans.append([one, one])
    if len(spans) > 8:
        return f"{number(len(numbers))} between {number(numbers[0])} and {number(numbers[-1])}"
    shown = [number(a) if a == b else f"{number(a)} to {number(b)}" for a, b in spans]
    return listed(shown, 8) or "none"
