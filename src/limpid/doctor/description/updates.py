"""What is done with the gradient: clipped, divided, given to which rule, at which rate, with which decay."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from limpid.doctor.description.rows import before_ends, hidden_alone
from limpid.doctor.description.words import counted, listed, number, patterns
from limpid.doctor.fact import shown
from limpid.doctor.update_facts import settings

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.update_sample import UpdateSample
    from limpid.doctor.watched import Watched

GAP = 1e-5
"""Differences of factors of gradients that are rounding."""
UNTOLD = ("lr", "initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum")
"""Settings of a group that schedules keep there, or that stand in another sentence."""


def gradient(watched: Watched, record: StepRecord, history: History) -> Iterator[str]:
    """Order of events, norm, clipping, scale, what has none."""
    order = [
        f"{name.removeprefix('optimizer.')}{f' ×{count}' if count > 1 else ''}"
        for name, same in itertools.groupby(record.events)
        if (count := len(list(same)))
    ]
    yield "order of a step: " + ", ".join(order)
    yield from _between_passes(record)
    norm = "" if record.norm is None else f"norm {record.norm:.3g}"
    if record.clipped_to is not None:
        norm += f", clipped to {record.clipped_to:g}{_not_clipped(watched, record)}"
    elif record.values_clipped_to is not None:
        norm += f", each entry clipped to {record.values_clipped_to:g}"
    else:
        norm += ", not clipped"
    yield norm.removeprefix(", ")
    if record.scale != 1:
        yield f"the loss is multiplied by {record.scale:g} against underflow"
    elif torch.float16 in record.autocast or any(p.dtype == torch.float16 for p in watched.info.parameters.values()):
        yield "the loss is not multiplied against underflow"
    if record.passes is not None and record.passes.turned is not None:
        cosine, ratio = record.passes.turned
        yield (
            f"changed between the last backward pass and the update, not by one factor: cosine of before and after "
            f"{cosine:.2f}, size {ratio:.2g} of before"
        )
    if record.ways is not None:
        yield from record.ways.told()
    yield from history.so_far.own_backwards.told(() if record.ways is None else record.ways.own)
    if record.zeros is not None:
        tokens = {token for ids in record.token_ids for token in ids.unique().tolist()}
        yield from record.zeros.told(tokens, before_ends(record), hidden_alone(record), watched.info)
    learned = {name for name, p in watched.info.parameters.items() if p.requires_grad}
    without = sorted(learned - history.trained)
    if without:
        yield f"no gradient so far: {listed(patterns(without, learned))}"


def _between_passes(record: StepRecord) -> Iterator[str]:
    """What became of the gradients between the backward passes of a step, and whether weights moved there."""
    factors = [] if record.passes is None else record.passes.factors
    if record.passes is None or not factors:
        return
    kinds = [_gap(one) for one in factors]
    said = kinds[0] if len(set(kinds)) == 1 else ", ".join(f"after pass {i} {kind}" for i, kind in enumerate(kinds, 1))
    weights = "weights moved" if record.passes.weights_moved else "weights did not move"
    yield f"between its {number(len(factors) + 1)} backward passes gradients were {said}; {weights} there"


def _gap(factors: torch.Tensor) -> str:
    known = factors[~factors.isnan()]
    if not len(known):
        return "changed"
    low, high = float(known.min()), float(known.max())
    if high - low > GAP * max(abs(high), 1.0):
        return "changed, each tensor's by another factor"
    names = {0: "cleared", 1: "left as they were"}
    near = round(high)
    return names[near] if near in names and abs(high - near) <= GAP else f"multiplied by {high:.3g}"


def update(watched: Watched, record: StepRecord, history: History) -> Iterator[str]:
    """Each optimizer with its settings, each of its groups with what is in it and its rate."""
    index = 0
    for optimizer in watched.optimizers:
        shared = dict(settings(getattr(optimizer, "defaults", None) or {}))
        said = ", ".join(f"{name} {_shown(value)}" for name, value in shared.items() if value not in (False, None))
        yield f"{type(optimizer).__name__}: {said}"
        for group in optimizer.param_groups:
            moved = _moved_by_group(watched, group, record.judged_update) if len(watched.groups) > 1 else ""
            yield f"group {index}: {_group(watched, group, shared, record.group_rates.get(index))}{moved}"
            index += 1
    if record.judged_update is not None:
        yield from _moves(record.judged_update)
        yield from _by_rate(record.judged_update, history)
        yield from _direction(record.judged_update)
    yield from history.so_far.states_before or ()
    if watched.schedulers:
        yield "schedules: " + ", ".join(type(one).__name__ for one in watched.schedulers)


def _group(watched: Watched, group: dict[str, Any], shared: dict[str, Any], rate: float | None) -> str:
    parameters = group["params"]
    matrices = [p for p in parameters if p.ndim >= 2]
    size = sum(p.numel() for p in parameters)
    held = f"{counted(len(matrices), 'matrix', 'matrices')} and {counted(len(parameters) - len(matrices), 'vector')}"
    own = [f"{k} {_shown(v)}" for k, v in settings(group) if k not in UNTOLD and v != shared.get(k)]
    at = f", rate {rate:.3g}" if rate is not None else ""
    names, held_by_all = watched.info.names, {id(p) for p in parameters}
    called = [names.get(id(p), "of another model") for p in parameters]
    named = listed(patterns(called, watched.info.parameters), 5)
    if held_by_all == {id(p) for p in watched.info.parameters.values() if p.requires_grad}:
        named = "all that learns"
    return f"{held}, {number(size)} numbers{at}{', ' + ', '.join(own) if own else ''}: {named}"


def _moved_by_group(watched: Watched, group: dict[str, Any], update: UpdateSample | None) -> str:
    """How far a group's tensors move, the median of those that are not 0."""
    names = {watched.info.names.get(id(p)) for p in group["params"]}
    there = [] if update is None else zip(update.names, update.ratio, update.weight, strict=True)
    ratios = sorted(ratio for name, ratio, weight in there if name in names and weight > 0)
    return (
        f"; its tensors move by {ratios[len(ratios) // 2]:.2g} of their size in this step, the median" if ratios else ""
    )


def _moves(update: UpdateSample) -> Iterator[str]:
    """How far matrices move, the least and the most of them by name."""
    matrices = [i for i in update.matrices() if update.weight[i] > 0]
    if not matrices:
        return
    least, most = min(matrices, key=lambda i: update.ratio[i]), max(matrices, key=lambda i: update.ratio[i])
    yield (
        f"matrices move by {update.median_ratio():.2g} of their size in this step, the median; "
        f"least {_moved(update, least)}, most {_moved(update, most)}"
    )


def _moved(update: UpdateSample, index: int) -> str:
    return f"{update.names[index]} ({update.ratio[index]:.2g})"


def _by_rate(update: UpdateSample, history: History) -> Iterator[str]:
    """How far weights move as a multiple of their rate, the median of matrices: near 1 in the first step of Adam."""
    now, begun = moved_by_rate(update), history.so_far.moved_by_rate
    if now is not None and begun is not None and math.isfinite(now):
        yield f"their change is {now:.3g} times the rate (rms), the median; {begun:.3g} times in the first update"


def _direction(update: UpdateSample) -> Iterator[str]:
    """Where weights go beside where the gradient points: -1 is straight down."""
    if update.cosine:
        mean = update.cosine_of_mean
        kept = "" if mean is None else f", with the mean of gradients that the optimizer keeps {mean:.2f}"
        yield f"cosine of the change of all weights with the gradient {update.cosine:.2f}{kept}"


def _not_clipped(watched: Watched, record: StepRecord) -> str:
    """Tensors that have a gradient which no clip was given, and those that one was given though nobody trains them."""
    clipped = set().union(*(ids for ids, _ in record.clips))
    held = {id(p) for optimizer in watched.optimizers for group in optimizer.param_groups for p in group["params"]}
    if not clipped:
        return ""
    names = watched.info.names
    left = sorted(names.get(one, "of another model") for one in (held & record.has_gradient) - clipped)
    more = sorted(names.get(one, "of another model") for one in clipped - held) if watched.optimizers else []
    but = f", but for {counted(len(left), 'tensor')} of {number(len(held))}: {listed(left)}" if left else ""
    also = f"; in its norm are {counted(len(more), 'tensor')} that no optimizer has: {listed(more)}" if more else ""
    return but + also


def moved_by_rate(update: UpdateSample) -> float | None:
    """Median over the matrices of the rms of the change over the rate; None where the rate is 0 or not known."""
    found = sorted(update.change[i] / update.rates[i] for i in update.matrices() if update.rates[i] > 0)
    return found[len(found) // 2] if found else None


def _shown(value: Any) -> str:
    return shown(value).replace(", ", "/")
