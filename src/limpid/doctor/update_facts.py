"""What each parameter's update is made with, however an optimizer's groups are put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from limpid.doctor.fact import Fact, shown

if TYPE_CHECKING:
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

HOW = ("foreach", "fused", "capturable", "differentiable", "decoupled_weight_decay")
"""Settings of an optimizer that say by which way it computes the same."""
RATES = ("lr", "initial_lr")
USED, RELATIVE = "rates", "rates over the optimizer's"


def of_settings(watched: Watched) -> Iterator[Fact]:
    """Rule, rate and settings as they were given, each with how many numbers it is for."""
    found: dict[str, dict[str, int]] = {}
    for optimizer in watched.optimizers:
        defaults = getattr(optimizer, "defaults", None) or {}
        of_all = {"rule": type(optimizer).__name__, "lr": defaults.get("lr")}
        for group in optimizer.param_groups:
            given = {name: value for name, value in settings(defaults | group) if name not in RATES} | of_all
            count = _count(group)
            for name, value in given.items():
                if value is not None and count:
                    counts = found.setdefault(name, {})
                    counts[shown(value)] = counts.get(shown(value), 0) + count
    for name, counts in found.items():
        yield Fact("update", name, _told(counts), declared=True)


def of_rates(watched: Watched, record: StepRecord) -> Iterator[Fact]:
    """Those that the update used: as they are, and over what the optimizer was given."""
    used: dict[str, int] = {}
    relative: dict[str, int] = {}
    given = [
        (getattr(optimizer, "defaults", None) or {}).get("lr")
        for optimizer in watched.optimizers
        for _ in optimizer.param_groups
    ]
    for index, group in watched.groups:
        rate, base, count = record.group_rates.get(index), given[index], _count(group)
        if rate is None or not count:
            continue
        used[shown(float(rate))] = used.get(shown(float(rate)), 0) + count
        share = shown(float(rate) / base) if isinstance(base, float) and base else shown(float(rate))
        relative[share] = relative.get(share, 0) + count
    if used:
        yield Fact("update", USED, _value(used), "told")
        yield Fact("update", RELATIVE, _value(relative), "setting")


def settings(held: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Plain values of an optimizer or a group that change what it computes."""
    for name, value in held.items():
        plain = list(value) if isinstance(value, tuple) else value
        if name not in ("params", *HOW) and isinstance(plain, int | float | str | list):
            yield name, plain


def _count(group: Mapping[str, Any]) -> int:
    """Numbers that are trained."""
    return sum(p.numel() for p in group["params"] if p.requires_grad)


def _value(counts: Mapping[str, int]) -> float | str:
    """A number where all have the same."""
    return float(next(iter(counts))) if len(counts) == 1 else _told(counts)


def _told(counts: Mapping[str, int]) -> str:
    """One value, or each with how many numbers have it."""
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{value} on {count:,}" for value, count in sorted(counts.items()))
