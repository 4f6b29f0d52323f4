"""What is done with the gradient: clipping, the optimizer and its settings, the rate and its course."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from limpid.doctor.expected.key import (
    Seen,
    are_words,
    is_amount,
    is_amount_or_off,
    is_count,
    key,
    one_of,
)
from limpid.doctor.expected.of_model import is_named

OFF = 0.05
"""Part of the peak that a rate may lie beside its schedule."""
LATE = 1
"""Steps by which a schedule may be early or late: some count from 0, some from 1."""
BELOW = 0.15
"""The same of the peak itself, which a warm-up that a fall begins beside does not reach."""
LOW = 0.1
"""Share of the peak that schedules mostly end below."""
RISEN = 0.9
"""Share of the peak from which on a warm-up that nothing was said of is over."""
LONG = 3
"""Steps in a row that a rate lies beside its schedule."""


@key(
    "gradient",
    "clip",
    "a number from 0 on, or false",
    "norm that gradients are clipped to; false where nothing clips",
    is_amount_or_off,
    patience=2,
    settles=lambda said: ("clipped-every-step",) if said else (),
)
def clip(seen: Seen, said: Any) -> Any:
    record = seen.record
    if record.clipped_to is not None:
        return record.clipped_to if math.isfinite(record.clipped_to) else False
    if said is False or record.values_clipped_to is not None:
        return False if record.values_clipped_to is None else "each entry is clipped"
    return None if record.norm is not None and record.norm <= 1.01 * said else False


@key(
    "update",
    "optimizer",
    "a word or a list of words",
    "class of the optimizer, or of each",
    lambda value: isinstance(value, str) or are_words(value),
    agrees=lambda said, seen: all(
        any(word.lower() == one.lower() for one in seen) for word in ([said] if isinstance(said, str) else said)
    ),
)
def optimizer(seen: Seen, said: Any) -> Any:
    return [type(one).__name__ for one in seen.watched.optimizers] or None


def _largest(seen: Seen, matrices: bool | None = None) -> dict[str, Any] | None:
    """The group that holds most numbers, in matrices or vectors where one of them is asked for."""

    def size(group: dict[str, Any]) -> int:
        return sum(p.numel() for p in group["params"] if matrices is None or (p.ndim >= 2) == matrices)

    groups = [group for _, group in seen.watched.groups if size(group)]
    return max(groups, key=size) if groups else None


def _setting(name: str, seen: Seen, matrices: bool | None = None) -> Any:
    group = _largest(seen, matrices)
    return None if group is None else group.get(name)


@key(
    "update",
    "decay",
    "a number from 0 on",
    "weight decay of the matrices",
    is_amount,
    settles=lambda said: ("decay-too-strong",),
)
def decay(seen: Seen, said: Any) -> Any:
    return _setting("weight_decay", seen, matrices=True)


@key(
    "update",
    "decay_of_vectors",
    "a number from 0 on",
    "weight decay of biases and gains",
    is_amount,
    settles=lambda said: ("decay-on-gains",) if said else (),
)
def decay_of_vectors(seen: Seen, said: Any) -> Any:
    return _setting("weight_decay", seen, matrices=False)


@key(
    "update",
    "betas",
    "two numbers",
    "of Adam and its kin",
    lambda value: isinstance(value, list) and len(value) == 2 and all(map(is_amount, value)),
    agrees=lambda said, seen: all(math.isclose(a, b, abs_tol=1e-9) for a, b in zip(said, seen, strict=True)),
    settles=lambda said: ("betas-swapped",),
)
def betas(seen: Seen, said: Any) -> Any:
    return _setting("betas", seen)


@key("update", "momentum", "a number from 0 on", "of SGD and its kin", is_amount)
def momentum(seen: Seen, said: Any) -> Any:
    return _setting("momentum", seen)


def _rates_agree(said: Any, seen: Any) -> bool:
    if isinstance(said, dict):
        return not seen
    return bool(said * (1 - BELOW) <= seen <= said * (1 + OFF))


@key(
    "update",
    "rate",
    "a number from 0 on, or a table of words and such numbers",
    "the peak of the learning rate; by group, of parameters whose names hold a word",
    lambda value: is_amount(value) or (isinstance(value, dict) and bool(value) and all(map(is_amount, value.values()))),
    agrees=_rates_agree,
    when="end",
)
def rate(seen: Seen, said: Any) -> Any:
    if not isinstance(said, dict):
        return max(seen.course.rates) if seen.course.rates else None
    wrong, names = [], seen.watched.info.names
    for index, group in seen.watched.groups:
        high = seen.history.group_rates[index].high if index in seen.history.group_rates else None
        held = [names.get(id(p), "") for p in group["params"]]
        wanted = {number for word, number in said.items() if any(is_named(name, word) for name in held)}
        if high is not None and len(wanted) == 1 and abs(high - (most := wanted.pop())) > OFF * most:
            wrong.append(f"{high:.3g} for {held[0]}, not {most:g}")
    return wrong


@key(
    "update",
    "schedule",
    '"constant", "linear" or "cosine"',
    "course of the rate behind its warm-up; from its peak to `final_rate` over `steps`",
    one_of("constant", "linear", "cosine"),
    agrees=lambda said, seen: not seen,
    when="step",
    settles=lambda said: ("learning-rate-zero", "schedule-ends-early", "schedule-rises-again"),
)
def schedule(seen: Seen, said: Any) -> Any:
    """Where the rate lies beside its schedule: step, rate, and what it would be."""
    peak, steps = seen.said.get("rate"), seen.said.get("steps") or seen.watched.total_steps
    rates = seen.course.rates
    if not isinstance(peak, int | float) or len(rates) < LONG or (said != "constant" and not steps):
        return None
    if "warmup" not in seen.said and (max(rates) < RISEN * peak or rates[-1] > rates[-LONG]):
        return None  # it still rises
    behind = range(len(rates) - LONG, len(rates))
    last = [_beside(rates[i], i, peak, said, steps or 0, seen.said) for i in behind]
    return f"{rates[-1]:.3g} at step {len(rates):,}, not {last[-1]:.3g}" if None not in last else ""


def _beside(rate: float, index: int, peak: float, said: str, steps: int, given: Mapping[str, Any]) -> float | None:
    """What the rate would be after so many steps, where it is not that.

    A step early or late it may be, fall from the first step on or from the end of the warm-up, and end anywhere below a
    tenth of the peak where nothing was said of it.
    """
    warmup, final = int(given.get("warmup", 0)), given.get("final_rate")
    meant = [
        peak * _share(max(0, index + late), said, warmup, begins, steps, end)
        for late in range(-LATE, LATE + 1)
        for begins in {0, warmup}
        for end in ((0.0, LOW) if final is None else (float(final),))
    ]
    near = min(meant) - OFF * peak <= rate <= max(meant) + OFF * peak
    return None if near else meant[len(meant) // 2]


def _share(index: int, said: str, warmup: int, begins: int, steps: int, final: float) -> float:
    """Of the peak, after so many steps; the fall begins where it is said to."""
    part = max(0.0, min(1.0, (index - begins) / max(1, steps - begins)))
    falling = 1 - part if said == "linear" else 0.5 * (1 + math.cos(math.pi * part))
    rising = min(1.0, (index + 1) / (warmup + 1))
    return min(rising, 1.0 if said == "constant" else final + (1 - final) * falling)


@key(
    "update",
    "warmup",
    "a whole number",
    "steps in which the rate rises to its peak; part of the schedule",
    lambda value: value == 0 or is_count(value),
)
def warmup(seen: Seen, said: Any) -> Any:
    return None  # judged with the schedule


@key("update", "final_rate", "a number from 0 on", "share of the peak that the schedule ends at", is_amount)
def final_rate(seen: Seen, said: Any) -> Any:
    return None


@key(
    "update",
    "steps",
    "a whole number",
    "updates that the run makes at most",
    is_count,
    agrees=lambda said, seen: seen <= said + max(1, 0.02 * said),
    when="end",
)
def steps(seen: Seen, said: Any) -> Any:
    return seen.history.so_far.updates + seen.history.so_far.skipped or None
