"""Two recordings of one step: where they come apart by more than rounding, and what only came in from before.

Each recording has held every call against its own inputs. What differs between the sides at calls that hold on both
came in, or is rounding of both; the first call that does not hold on one side is where that side went wrong. Calls that
nobody could redo, and modules whose calls have no partner (fused or compiled code), are judged by what they give: apart
by more than all calls before may have rounded, each at its bound and on both sides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from limpid.errors import CheckpointError
from limpid.files import user_path
from limpid.operations.alignment import Pair, aligned
from limpid.operations.compared_document import VERSION, ComparedRecordings, ModuleApart, OneSided, Place, Verdict
from limpid.operations.document import CallDocument
from limpid.operations.kept import Kept, read
from limpid.source import KEPT

ROUNDS = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
UNALIKE = {"dtype", "out_dtype", "input_dtype", "half_to_float", "device", "layout", "pin_memory", "memory_format",
           "non_blocking", "use_fast_accum"}  # fmt: skip
"""Arguments that change the format of a result, or nothing in it."""


@dataclass(frozen=True)
class Apart:
    """The entry of an array at which two sides are furthest apart."""

    share: float  # of the array's root mean square
    index: tuple[int, ...]
    a: float
    b: float


@dataclass
class Compared:
    """Two recordings beside each other; what is found is found once, when it is asked for."""

    a: Kept
    b: Kept
    formats: Counter[tuple[str, str]] = field(default_factory=Counter)
    equal: int = 0
    begins: str = ""

    @cached_property
    def pairs(self) -> list[Pair]:
        return aligned(self.a.document.calls, self.b.document.calls)

    @cached_property
    def places(self) -> list[Place]:
        """Where they differ by more than rounding, in the order of the step."""
        return [*self._start(), *self._calls(), *self._modules()]

    @property
    def verdict(self) -> Verdict:
        kinds = {place.kind for place in self.places}
        if kinds & {"call", "result", "module", "gradient"} and not kinds & {"parameter", "input", "draw"}:
            return "beyond rounding" if self.places[0].kind != "argument" else "another computation"
        if "call" in kinds:
            return "beyond rounding"
        if kinds:
            return "another computation" if kinds == {"argument"} else "another start"
        return "rounding" if self.begins or self._one_sided else "equal"

    @property
    def agrees(self) -> bool:
        """Whether nothing but rounding stands between them."""
        return self.verdict in ("equal", "rounding")

    def document(self) -> ComparedRecordings:
        """All of it as plain values."""
        places = tuple(self.places)
        both = sum(pair.a is not None and pair.b is not None for pair in self.pairs)
        return ComparedRecordings(
            VERSION, str(self.a.folder), str(self.b.folder), self.verdict, places, self.begins,
            len(self.a.document.calls), len(self.b.document.calls), both, self.equal,
            tuple((*formats, count) for formats, count in self.formats.most_common()),
            tuple(self._one_sided), tuple(self._apart_by_module()),
        )  # fmt: skip

    def __str__(self) -> str:
        from limpid.operations.compared_terminal import lines

        return "\n".join(str(line) for line in lines(self.document()) if hasattr(line, "plain"))

    def _repr_html_(self) -> str:
        from limpid.operations.notebook import compared_page

        return compared_page(self.document())

    # What the step began with

    def _start(self) -> Iterator[Place]:
        for prefix, kind in (("before/", "parameter"), ("in/", "input")):
            for name in [one for one in self.a.names if one.startswith(prefix)]:
                short = name.removeprefix(prefix)
                if name not in self.b.names:
                    yield Place(kind, short, "", "", "", "", "only the first has it")  # type: ignore[arg-type]
                    continue
                one, other = self.a.tensor(name), self.b.tensor(name)
                if one.shape != other.shape:
                    said = f"{list(one.shape)} against {list(other.shape)}"
                elif (apart := _beyond_format(one, other)) is not None:
                    said = f"{apart.a:.6g} against {apart.b:.6g} at {list(apart.index)}"
                else:
                    continue
                yield Place(kind, short, "", "", "", "", said)  # type: ignore[arg-type]

    # Calls

    def _calls(self) -> Iterator[Place]:
        for pair in self.pairs:
            if pair.a is None or pair.b is None:
                one = pair.a or pair.b
                if one is not None and one.wrong:
                    yield _place(one, "a" if pair.b is None else "b")
                continue
            a, b = pair.a, pair.b
            if a.format != b.format:
                self.formats[a.format, b.format] += 1
            apart = self._results(a, b)
            if a.wrong or b.wrong:
                yield _place(a if a.wrong else b, "both" if a.wrong and b.wrong else "a" if a.wrong else "b")
            elif said := self._argument(a, b):
                yield Place("argument", a.operation, a.module, a.phase, a.source, "", said)
            elif apart is not None and a.check == "drawn":
                said = f"{apart.a:.6g} against {apart.b:.6g} at {list(apart.index)}"
                yield Place("draw", a.operation, a.module, a.phase, a.source, "", said)
            elif "unchecked" in (a.check, b.check) and (beyond := self._beyond(apart, a.number, b.number)):
                yield Place("result", a.operation, a.module, a.phase, a.source, "", beyond)

    def _results(self, a: CallDocument, b: CallDocument) -> Apart | None:
        """The furthest entry of what two calls gave, where they do not give the same."""
        worst: Apart | None = None
        compared = False
        for place in range(len(a.shapes)):
            names = f"{a.number}/{place}", f"{b.number}/{place}"
            if names[0] in self.a.names and names[1] in self.b.names:
                compared = True
                found = _apart(self.a.tensor(names[0]), self.b.tensor(names[1]))
                worst = max(filter(None, (worst, found)), key=lambda one: one.share, default=None)
        if compared and worst is None:
            self.equal += 1
        elif worst is not None and not self.begins:
            at = f"{worst.a:.9g} against {worst.b:.9g} at {list(worst.index)}"
            self.begins = f"{a.operation} in {a.module or 'no module'} ({a.phase}): {at}"
        return worst

    def _argument(self, a: CallDocument, b: CallDocument) -> str:
        """A number or word among the arguments that is not the same; nothing where all are."""
        one, other = self.a.arguments(a.number), self.b.arguments(b.number)
        rounds = max(ROUNDS.get(a.format, 0.0), ROUNDS.get(b.format, 0.0))
        for name in one.keys() & other.keys() - UNALIKE:
            x, y = one[name], other[name]
            if isinstance(x, float) and isinstance(y, float):
                if x == y or x != x or abs(x - y) <= 2 * rounds * max(abs(x), abs(y)):  # inf - inf is no number
                    continue
            elif x == y:
                continue
            return f"{name} is {x} against {y}"
        return ""

    # What modules give, and gradients

    def _modules(self) -> Iterator[Place]:
        """Modules whose inside has no partner on the other side, and gradients, apart by more than may be rounded."""
        fused = {one.module for one in self._one_sided} if self._both_have_calls else None
        for name in self.a.names:
            kind, _, path = name.partition("/")
            if kind not in ("out", "grad-out", "grad", "after") or name not in self.b.names:
                continue
            module = path.partition("#")[0] if "#" in path else path.rpartition(".")[0]
            if fused is not None and not any(one == module or one.startswith(f"{module}.") for one in fused):
                continue
            one, other = self.a.tensor(name), self.b.tensor(name)
            phase = "forward" if kind == "out" else "update" if kind == "after" else "backward"
            if one.shape != other.shape:
                yield Place("module", module, module, phase, "", "", f"{list(one.shape)} against {list(other.shape)}")
                continue
            apart = _apart(one, other)
            if apart is None:
                continue
            self.begins = self.begins or f"what {module or 'the model'} gives ({phase})"
            if beyond := self._beyond(apart, self.a.calls_before(name), self.b.calls_before(name)):
                yield Place("module" if kind == "out" else "gradient", path, module, phase, "", "", beyond)

    def _beyond(self, apart: Apart | None, calls_a: int, calls_b: int) -> str:
        """In words, where a difference is more than all calls before may have rounded on both sides; else nothing."""
        may = self._rounded(self.a, calls_a), self._rounded(self.b, calls_b)
        whole = may[0] + may[1] if all(may) else 2 * max(may)  # a side that was not checked may round as the other
        whole += self._began
        if apart is None or apart.share <= whole:
            return ""
        at = f"{apart.a:.6g} against {apart.b:.6g} at {list(apart.index)}"
        return f"{at}: {apart.share:.2g} of its root mean square, and all before may have made {whole:.2g}"

    @cached_property
    def _began(self) -> float:
        """How far parameters and inputs are apart before the step, as their formats make them."""
        names = [one for one in self.a.names if one.startswith(("before/", "in/")) and one in self.b.names]
        found = (_apart(self.a.tensor(name), self.b.tensor(name)) for name in names)
        return max((one.share for one in found if one is not None and np.isfinite(one.share)), default=0.0)

    def _rounded(self, side: Kept, calls: int) -> float:
        return sum(side.rounding(number) for number in range(calls + 1))

    @cached_property
    def _both_have_calls(self) -> bool:
        return bool(self.a.document.calls) and bool(self.b.document.calls)

    @cached_property
    def _one_sided(self) -> list[OneSided]:
        """Arithmetic that stands on one side alone, where both kept their calls."""
        if not self._both_have_calls:
            return []
        found: Counter[tuple[str, str, str]] = Counter()
        for pair in self.pairs:
            one, side = (pair.a, "a") if pair.b is None else (pair.b, "b")
            if (pair.a is None or pair.b is None) and one is not None and one.check in ("redone", "unchecked"):
                found[side, one.module, one.operation] += 1
        return [OneSided(*key, count) for key, count in found.items()]

    def _apart_by_module(self) -> Iterator[ModuleApart]:
        """The largest difference of each module's results, and of their gradients, in the order of the step."""
        found: dict[str, list[float | None]] = {}
        for name in self.a.names:
            kind, _, path = name.partition("/")
            if kind not in ("out", "grad-out") or name not in self.b.names:
                continue
            one, other = self.a.tensor(name), self.b.tensor(name)
            if one.shape == other.shape:
                apart = _apart(one, other)
                row = found.setdefault(path.partition("#")[0], [None, None])
                place = int(kind == "grad-out")
                row[place] = max(row[place] or 0.0, 0.0 if apart is None else apart.share)
        yield from (ModuleApart(module, *row) for module, row in found.items())


def compare(a: str | Path, b: str | Path) -> Compared:
    """Two folders that `recording(…, keep=FOLDER)` wrote: where they come apart by more than rounding.

    Raises  CheckpointError for what is no recording
    """
    return Compared(_opened(user_path(a)), _opened(user_path(b)))


def _opened(folder: Path) -> Kept:
    if not (folder / KEPT).is_file():
        raise CheckpointError(f"{folder} is no recording (no {KEPT} in it): record the step with keep, or --keep")
    return read(folder)


def _apart(one: Tensor, other: Tensor) -> Apart | None:
    """The entry that is furthest apart; None where all are the same numbers."""
    if one.shape != other.shape:
        return Apart(float("inf"), (), float(one.numel()), float(other.numel()))
    if one.dtype == other.dtype and torch.equal(one, other):
        return None
    wide = one.double(), other.double()
    off = (wide[0] - wide[1]).abs()
    same = (wide[0] == wide[1]) | (wide[0].isnan() & wide[1].isnan())
    off = torch.where(same, 0.0, torch.where(off.isnan(), float("inf"), off))
    if not off.numel() or float(off.max()) == 0.0:
        return None
    at = np.unravel_index(int(off.argmax()), off.shape)
    index = tuple(map(int, at))
    size = torch.where(wide[0].isfinite(), wide[0], 0.0).square().mean().sqrt()
    share = float(off[index] / size) if float(size) else float("inf")
    return Apart(share, index, float(wide[0][index]), float(wide[1][index]))


def _beyond_format(one: Tensor, other: Tensor) -> Apart | None:
    """The same, where they differ by more than one rounding to the coarser of their formats."""
    apart = _apart(one, other)
    if apart is None or not (one.is_floating_point() and other.is_floating_point()) or one.dtype == other.dtype:
        return apart
    coarser = max((one, other), key=lambda tensor: torch.finfo(tensor.dtype).eps)
    finer = other if coarser is one else one
    return _apart(finer.to(coarser.dtype), coarser)


def _place(call: CallDocument, side: str) -> Place:
    """A call that made of its own inputs what it should not."""
    worst = call.worst
    said = "" if worst is None else (
        f"{worst.engine:.9g} at {list(worst.index)}, {worst.expected:.9g} expected of its own inputs, "
        f"{worst.share:.3g} of the bound"
    )  # fmt: skip
    return Place("call", call.operation, call.module, call.phase, call.source, side, said)
