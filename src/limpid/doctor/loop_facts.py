"""What a loop does, as measured on one step: facts by name, which a later run of the same loop is held against."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from limpid.doctor.data_sheet import is_readable
from limpid.doctor.rules.baseline import NOT_AS_BASELINE

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.loss_gradient import LossGradient
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

PARTS = ("data", "model", "labels", "loss", "gradient", "update")
"""In the order of a step: what differs in one shows in those behind it."""
Kind = Literal["exact", "if there", "setting", "share", "level", "size", "told"]
"""How values are compared; what is told alone is not: losses of a few rows lie anywhere."""
MEASURED = ("if there", "share", "level", "size")
"""What is there or not as names and formulas are, which have facts of their own."""
NEAR = 1.01
"""The factor within which a setting is the same."""
NOTHING = 1e-6
"""Below which a level is what rounding leaves of 0."""
SCATTER = 3.0
"""Standard deviations of a share among so many rows."""
FEW = 16
"""Numbers whose mean square says little."""
EARLY = 3
"""The last step at which levels and sizes are compared: behind it weights of different seeds have gone their ways."""
OFFSETS = range(-3, 5)
NEAREST: dict[int | None, str] = {0: "its own", 1: "the next", None: "of no fixed place"}
HOW = ("foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay")
"""Settings of an optimizer that say by which way it computes the same."""
ALIKE, FITS = 0.99, 0.03
"""Share of positions that are taught the token so far on; what is left of a gradient that is a cross-entropy's."""


@dataclass(frozen=True)
class Fact:
    """One thing that a loop does."""

    part: str
    name: str
    value: Any  # a number, a word or a list of them
    kind: Kind = "exact"
    rows: int = 0  # that a share is of
    declared: bool = False  # what the user gave as an argument: another value is another choice

    def agrees(self, other: Fact) -> bool:
        """Whether another run's value is the same, as far as other batches and another seed leave it so."""
        a, b = self.value, other.value
        if self.kind in ("exact", "if there") or not (isinstance(a, int | float) and isinstance(b, int | float)):
            return bool(a == b)
        if self.kind == "share":
            mean = min(1.0, max(0.0, (a + b) / 2))
            scatter = math.sqrt(mean * (1 - mean) / max(1, min(self.rows, other.rows)))
            return bool(abs(a - b) <= max(NOT_AS_BASELINE["share"], SCATTER * scatter))
        if max(abs(a), abs(b)) < NOTHING:
            return True
        if not (math.isfinite(a) and math.isfinite(b)) or a * b <= 0:
            return str(a) == str(b)
        factors = {"setting": NEAR, "level": NOT_AS_BASELINE["level"], "size": NOT_AS_BASELINE["size"]}
        return bool(max(a / b, b / a) <= factors[self.kind])

    def is_among(self, seen: Sequence[Fact]) -> bool:
        """Whether a value is one of those that were seen, or a number between them or near one."""
        if any(self.agrees(one) for one in seen):
            return True
        numbers = [one.value for one in seen if isinstance(one.value, int | float)]
        between = self.kind in MEASURED and len(numbers) == len(seen) and isinstance(self.value, int | float)
        return bool(between and min(numbers) <= self.value <= max(numbers))

    @property
    def shown(self) -> str:
        """The value as it is printed."""
        return _shown(self.value)

    def __str__(self) -> str:
        return f"{self.name} {self.shown}"


@dataclass(frozen=True)
class LoopFacts:
    """The facts of one step."""

    step: int
    facts: tuple[Fact, ...]

    def of(self, part: str) -> list[Fact]:
        return [fact for fact in self.facts if fact.part == part]

    def unlike(
        self, baseline: LoopFacts, seen: Mapping[tuple[str, str], Sequence[Fact]] | None = None
    ) -> dict[str, list[tuple[Fact | None, Fact | None]]]:
        """By part, each fact that is not as it was: then and now; None where it was not there.

        seen  what a fact was at all steps of runs that worked: what wandered there may wander here
        """
        then, now = ({(f.part, f.name): f for f in facts.facts} for facts in (baseline, self))
        found: dict[str, list[tuple[Fact | None, Fact | None]]] = {}
        for key in dict.fromkeys([*then, *now]):
            before, after = then.get(key), now.get(key)
            known = after or before
            skipped = ("told", "level", "size") if self.step > EARLY else ("told",)
            if known is not None and known.kind in skipped:
                continue
            if (before is None or after is None) and known is not None and known.kind in MEASURED:
                continue
            if before is not None and after is not None and after.is_among([before, *(seen or {}).get(key, ())]):
                continue
            if before is None or after is None or not after.agrees(before):
                found.setdefault(key[0], []).append((before, after))
        return {part: found[part] for part in PARTS if part in found}

    def __str__(self) -> str:
        lines = [f"step {self.step:,}"]
        for part in PARTS:
            for index, fact in enumerate(self.of(part)):
                lines.append(f"  {part if not index else '':<9} {fact.name:<34} {_shown(fact.value)}")
        return "\n".join(lines)


def facts_of(watched: Watched, record: StepRecord, history: History) -> LoopFacts:
    """What the loop did in a step whose loss was read."""
    parts = (_data, _model, _labels, _loss, _gradient, _update)
    return LoopFacts(record.number, tuple(fact for part in parts for fact in part(watched, record, history)))


def _data(watched: Watched, record: StepRecord, history: History) -> Iterator[Fact]:
    calls = [call for i, call in enumerate(record.calls) if i not in record.dropped | record.asides]
    yield Fact("data", "forward passes of an update", len(calls), declared=True)
    if not calls:
        return
    call = calls[0]
    named = dict(zip(call.names or map(str, range(len(call.args))), call.args, strict=False)) | call.kwargs
    for name, tensor in named.items():
        if isinstance(tensor, Tensor) and tensor.ndim and is_readable(tensor):
            yield from _tensor(name, tensor.detach())


def _tensor(name: str, tensor: Tensor) -> Iterator[Fact]:
    yield Fact("data", f"{name}: format", f"{str(tensor.dtype).removeprefix('torch.')}, {tensor.ndim} axes")
    if tensor.ndim:
        yield Fact("data", f"{name}: rows", tensor.shape[0], declared=True)
    if tensor.is_floating_point():
        rows = tensor.shape[0] if tensor.ndim else 1
        yield Fact("data", f"{name}: deviation", float(tensor.double().nan_to_num().std(correction=0)), "size")
        yield Fact("data", f"{name}: share of zeros", float((tensor == 0).double().mean()), "share", rows)
    elif not tensor.is_complex():
        counted = tensor.flatten().long()
        values, counts = counted.unique(return_counts=True)
        yield Fact("data", f"{name}: below 0", bool(values[0] < 0))
        yield Fact("data", f"{name}: largest", int(values[-1]), "level")
        yield Fact(
            "data",
            f"{name}: share of the commonest",
            int(counts.max()) / len(counted),
            "share",
            len(tensor) if tensor.ndim else 1,
        )


def _model(watched: Watched, record: StepRecord, history: History) -> Iterator[Fact]:
    info = watched.info
    trained = [name for name, p in info.parameters.items() if p.requires_grad]
    held = {id(parameter) for parameter in watched.held}
    yield Fact("model", "parameters", info.size)
    yield Fact("model", "of these require a gradient", sum(info.parameters[name].numel() for name in trained))
    yield Fact("model", "tensors in no optimizer", sum(id(info.parameters[name]) not in held for name in trained))
    yield Fact("model", "formats", sorted({str(p.dtype).removeprefix("torch.") for p in info.parameters.values()}))
    yield Fact("model", "autocast", sorted({str(one).removeprefix("torch.") for one in record.autocast}))
    yield Fact("model", "modules in evaluation mode", len(record.in_eval))


def _labels(watched: Watched, record: StepRecord, history: History) -> Iterator[Fact]:
    read = record.taught
    if not read:
        return
    yield Fact("labels", "classes", read[0].shape[-1])
    labelled = sum(int(one.labelled.sum()) for one in read)
    rows = sum(one.shape[0] for one in read)
    positions = sum(len(one.weight) for one in read)
    yield Fact("labels", "share of positions with a label", labelled / positions, "share", rows)
    yield Fact("labels", "share of rows with a label", _rows_with_label(read), "share", rows)
    taught = [one.taught[one.labelled] for one in read]
    counts = [int(one.unique().numel()) for one in taught if len(one)]
    if counts:
        yield Fact("labels", "different labels", max(counts), "size")
    if read[0].ids is not None:
        offset = next((k for k in OFFSETS if min(one.match(k)[0] for one in read) >= ALIKE), None)
        yield Fact("labels", "token taught", NEAREST.get(offset, f"{offset} places on"))
        places = [
            float(one.positions[one.labelled].double().mean()) / max(1, one.shape[1] - 1)
            for one in read
            if bool(one.labelled.any())
        ]
        if places:
            yield Fact("labels", "mean place of labels", sum(places) / len(places), "share", rows)


def _rows_with_label(read: Sequence[LossGradient]) -> float:
    with_label = sum(int(one.rows[one.labelled].unique().numel()) for one in read)
    return with_label / sum(int(one.rows.unique().numel()) for one in read)


def _loss(watched: Watched, record: StepRecord, history: History) -> Iterator[Fact]:
    if record.loss is not None:
        yield Fact("loss", "value", record.loss, "told")
    yield Fact("loss", "functions", sorted({name for name, *_ in (*record.means, *record.shares)}), "told")
    read = record.taught
    if not read:
        return
    formula = "cross-entropy" if max(one.misfit for one in read) < FITS else "another"
    yield Fact("loss", "formula", f"cross-entropy of a {read[0].squashed}" if read[0].squashed else formula)
    yield Fact("loss", "smoothing", round(read[0].smoothing, 3))
    yield Fact("loss", "points uphill", read[0].inverted)
    if formula == "cross-entropy" and record.all_passes_read:
        yield Fact("loss", "sum of the labels' weights", record.sum_of_weights, "level")
        yield Fact("loss", "weights of labels differ", max(one.unevenness for one in read) > 0.1, "if there")
        yield Fact("loss", "surprise of a label, nats", sum(one.mean_surprise for one in read) / len(read), "level")


def _gradient(watched: Watched, record: StepRecord, history: History) -> Iterator[Fact]:
    if record.norm is not None:
        yield Fact("gradient", "norm", record.norm, "size")
    yield Fact("gradient", "is clipped", record.clipped_to is not None)
    if record.clipped_to is not None:
        yield Fact("gradient", "clipped to", record.clipped_to, declared=True)
    yield Fact("gradient", "parameters that have had one", _size_of(watched, history.trained))
    yield Fact("gradient", "backward passes", record.events.count("backward"), declared=True)


def _update(watched: Watched, record: StepRecord, history: History) -> Iterator[Fact]:
    rates: list[float | None] = []  # that the optimizer of each group was given
    given: list[dict[str, Any]] = []
    for place, optimizer in enumerate(watched.optimizers):
        yield Fact("update", f"optimizer {place}", type(optimizer).__name__, declared=True)
        defaults = getattr(optimizer, "defaults", None) or {}
        for name, value in settings(defaults):
            yield Fact("update", f"optimizer {place}: {name}", value, declared=True)
        given += [dict(settings(defaults)) for _ in optimizer.param_groups]
        rates += [defaults.get("lr") for _ in optimizer.param_groups]
    for index, group in watched.groups:
        yield Fact("update", f"group {index}: parameters", sum(p.numel() for p in group["params"]))
        for name, value in settings(group):
            if name not in ("lr", "initial_lr") and value != given[index].get(name):
                yield Fact("update", f"group {index}: {name}", value)
    for index, rate in record.group_rates.items():
        base = rates[index] if isinstance(rates[index], float) and rates[index] else None
        if base is None:
            yield Fact("update", f"group {index}: rate", float(rate), "setting")
        else:
            yield Fact("update", f"group {index}: rate over the optimizer's lr", float(rate) / base, "setting")
    update = record.judged_update
    if update is not None:
        yield Fact("update", "change over weights, median", update.median_ratio(), "size")
    if update is not None and record.number == 1:
        for name, dims, weight in zip(update.names, update.dims, update.weight, strict=True):
            known = watched.info.parameters.get(name)
            if known is not None and known.numel() >= FEW:
                yield Fact("model", f"{name}: rms at the start", weight, "level" if dims >= 2 else "size")


def settings(held: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Plain values of an optimizer or a group that change what it computes."""
    for name, value in held.items():
        plain = list(value) if isinstance(value, tuple) else value
        if name not in ("params", *HOW) and isinstance(plain, int | float | str | list):
            yield name, plain


def _size_of(watched: Watched, names: set[str]) -> int:
    return sum(p.numel() for name, p in watched.info.parameters.items() if name in names)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
