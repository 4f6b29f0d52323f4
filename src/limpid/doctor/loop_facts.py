"""What a loop does, as measured on one step: facts by name, which a later run of the same loop is held against."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limpid.doctor import input_facts, update_facts
from limpid.doctor.fact import MEASURED, NEAR, Fact

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.loss_gradient import LossGradient
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

PARTS = ("data", "model", "labels", "loss", "gradient", "update")
"""In the order of a step: what differs in one shows in those behind it."""
FEW = 16
"""Numbers whose mean square says little."""
EARLY = 3
"""The last step at which levels and sizes are compared: behind it weights of different seeds have gone their ways."""
OFFSETS = range(-3, 5)
NEAREST: dict[int | None, str] = {0: "its own", 1: "the next", None: "of no fixed place"}
ALIKE, FITS = 0.99, 0.03
"""Share of positions that are taught the token so far on; what is left of a gradient that is a cross-entropy's."""


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
        now = input_facts.under_names_of(then, now)
        found: dict[str, list[tuple[Fact | None, Fact | None]]] = {}
        for key in dict.fromkeys([*then, *now]):
            before, after = then.get(key), now.get(key)
            known = after or before
            skipped = ("told", "level", "size") if self.step > EARLY else ("told",)
            if known is None or known.kind in skipped or _is_excused(key, then, now):
                continue
            if before is not None and after is not None:
                if not after.is_among([before, *(seen or {}).get(key, ())]) and not after.agrees(before):
                    found.setdefault(key[0], []).append((before, after))
            elif known.kind not in MEASURED:
                found.setdefault(key[0], []).append((before, after))
        return {part: found[part] for part in PARTS if part in found}

    def __str__(self) -> str:
        lines = [f"step {self.step:,}"]
        for part in PARTS:
            for index, fact in enumerate(self.of(part)):
                lines.append(f"  {part if not index else '':<9} {fact.name:<34} {fact.shown}")
        return "\n".join(lines)


def _is_excused(
    key: input_facts.Key, then: Mapping[input_facts.Key, Fact], now: Mapping[input_facts.Key, Fact]
) -> bool:
    """Whether a fact is another one without being another effect."""
    before, after = then.get(key), now.get(key)
    if (before or after or Fact("", "", 0)).kind == "given":  # what is newly given, or is nothing that rows differ in
        return before is None or after is not None or before.value != input_facts.BY_ROW
    match key[1]:
        case update_facts.RELATIVE | "lr":  # rates are the same, however they were given
            used = [facts.get(("update", update_facts.USED)) for facts in (then, now)]
            return None not in used and len({str(one) for one in used}) == 1
        case "is clipped":
            clipped, free = (then, now) if before is not None and before.value else (now, then)
            return (after is not None and bool(after.value)) or _is_within(clipped, free)
        case "sum of the labels' weights" if before is not None and after is not None:
            return _is_undone(before, after, then, now)
    return False


def _is_within(clipped: Mapping[input_facts.Key, Fact], free: Mapping[input_facts.Key, Fact]) -> bool:
    """Whether gradients that nobody was seen to clip keep the limit of the run that clips."""
    limit, norm = clipped.get(("gradient", "clipped to")), free.get(("gradient", "norm"))
    return limit is not None and norm is not None and norm.value <= NEAR * limit.value


def _is_undone(
    before: Fact, after: Fact, then: Mapping[input_facts.Key, Fact], now: Mapping[input_facts.Key, Fact]
) -> bool:
    """Whether gradients, as the update finds them, do not follow the loss's: they were scaled back."""
    norms = [facts.get(("gradient", "norm")) for facts in (then, now)]
    sums, values = (before.value, after.value), [norm.value for norm in norms if norm is not None]
    if len(values) < len(norms) or min(*sums, *values) <= 0:
        return False
    by = abs(math.log(sums[0] / sums[1]))
    return abs(math.log(values[0] / values[1])) < by / 2


def facts_of(watched: Watched, record: StepRecord, history: History) -> LoopFacts:
    """What the loop did in a step whose loss was read."""
    parts = (_data, _model, _labels, _loss, _gradient, _update)
    return LoopFacts(record.number, tuple(fact for part in parts for fact in part(watched, record, history)))


def _data(watched: Watched, record: StepRecord, history: History) -> Iterator[Fact]:
    calls = [call for i, call in enumerate(record.calls) if i not in record.dropped | record.asides]
    yield Fact("data", "forward passes of an update", len(calls), declared=True)
    if not calls:
        return
    yield from input_facts.of_call(calls[0])


def _model(watched: Watched, record: StepRecord, history: History) -> Iterator[Fact]:
    info = watched.info
    yield Fact("model", "parameters", info.size, "told")
    yield Fact("model", "parameters that are trained", _size_of(watched, _trained(watched)))
    yield Fact("model", "formats", sorted({str(p.dtype).removeprefix("torch.") for p in info.parameters.values()}))
    yield Fact("model", "autocast", sorted({str(one).removeprefix("torch.") for one in record.autocast}), declared=True)
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
    if len(watched.optimizers) < 2 or any(len(group["params"]) > 1 for _, group in watched.groups):
        # where each tensor has an optimizer of its own, its gradient may be gone by now
        had = _size_of(watched, history.trained & _trained(watched))
        yield Fact("gradient", "parameters that have had one", had)
    yield Fact("gradient", "backward passes", record.events.count("backward"), declared=True)


def _update(watched: Watched, record: StepRecord, history: History) -> Iterator[Fact]:
    yield from update_facts.of_settings(watched)
    yield from update_facts.of_rates(watched, record)
    update = record.judged_update
    if update is not None:
        yield Fact("update", "change over weights, median", update.median_ratio(), "size")
    if update is not None and record.number == 1:
        for name, dims, weight in zip(update.names, update.dims, update.weight, strict=True):
            known = watched.info.parameters.get(name)
            if known is not None and known.numel() >= FEW:
                yield Fact("model", f"{name}: rms at the start", weight, "level" if dims >= 2 else "size")


def _trained(watched: Watched) -> set[str]:
    """Names of parameters that require a gradient and have an optimizer, where any is known."""
    held = {id(parameter) for parameter in watched.held}
    return {n for n, p in watched.info.parameters.items() if p.requires_grad and (not held or id(p) in held)}


def _size_of(watched: Watched, names: set[str]) -> int:
    return sum(p.numel() for name, p in watched.info.parameters.items() if name in names)
