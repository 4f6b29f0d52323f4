"""What changes weights beside the update: when, which, what becomes 0, and what of the optimizer's moments."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from limpid.doctor.description.words import counted, listed, number, patterns, share

if TYPE_CHECKING:
    from limpid.doctor.description.course import Course
    from limpid.doctor.description.entries import Entries
    from limpid.doctor.watched import Watched

ROUNDING = 1e-6
"""Relative change that taking an average off again may leave in float32."""
KINDS, STEPS = 4, 8
"""Groups of tensors that were changed together, and steps after which they were, that are told one by one."""
EARLY = 4
"""Updates after which it is known whether an optimizer has moments."""
SOME = 0.05
"""Share of what was changed that became 0, from which on it is told."""


@dataclass
class Group:
    """Tensors that were changed together."""

    numbers: tuple[int, ...]
    steps: list[int] = field(default_factory=list)  # the steps after whose update it happened
    most: float = 0.0  # the largest change, relative
    zeroed: Tensor | None = None  # which entries became 0 when some first did
    first_zeros: int = 0  # the step after which this was
    kept: int = 0  # times that the optimizer had moments for them still
    anew: int = 0  # times that it had none, or zeros


@dataclass
class OutsideChanges:
    """Readings as updates leave them, held against what the next step begins with."""

    looks: int = 0
    had_moments: bool = False  # whether the optimizer has had any
    groups: dict[tuple[int, ...], Group] = field(default_factory=dict)
    more: int = 0  # changes of yet other groups
    still: dict[tuple[int, ...], float] = field(default_factory=dict)  # share of the entries set to 0 that are 0 now

    def left(self, watched: Watched, entries: Entries) -> None:
        """An update has been made."""
        if not self.had_moments and self.looks < EARLY:  # it has them from the first on
            self.had_moments = bool(_moments(watched, entries.tensors))

    @property
    def are_usual(self) -> bool:
        """Whether some weights are changed after most updates."""
        return any(2 * len(group.steps) > self.looks for group in self.groups.values())

    def found(self, watched: Watched, entries: Entries, left: Tensor, now: Tensor, step: int, known: bool) -> None:
        """The step after `step` begins; `known` where with the weights of its update, or of an earlier one."""
        self.looks += 1
        far = {} if known else entries.changed(left, now, ROUNDING)
        if far:
            self._add(watched, entries, far, left.cpu(), now.cpu(), step)
        for key, group in self.groups.items():
            if group.zeroed is not None:
                self.still[key] = float((now.cpu()[group.zeroed] == 0).double().mean())

    def _add(
        self, watched: Watched, entries: Entries, far: dict[int, float], left: Tensor, now: Tensor, step: int
    ) -> None:
        key = tuple(far)
        if key not in self.groups and len(self.groups) >= KINDS:
            self.more += 1
            return
        group = self.groups.setdefault(key, Group(key))
        group.steps.append(step)
        group.most = max(group.most, *far.values())
        zeroed = (now == 0) & (left != 0) & entries.of(key)
        if group.zeroed is None and float(zeroed.sum()) > SOME * int(entries.of(key).sum()):
            group.zeroed, group.first_zeros = zeroed, step
        if self.had_moments:
            moments = _moments(watched, [entries.tensors[i] for i in key])
            moments = _moments(watched, entries.tensors) if moments is None else moments
            group.kept += moments is True
            group.anew += moments is False

    def told(self, entries: Entries, course: Course) -> Iterator[str]:
        """In sentences."""
        for key, group in self.groups.items():
            names = [entries.names[i] for i in key]
            frozen = sum(not entries.tensors[i].requires_grad for i in key)
            which = "all tensors" if len(key) == len(entries.names) else listed(patterns(names, entries.names), 6)
            how = f", {'frozen' if frozen == len(key) else f'{number(frozen)} of them frozen'}" if frozen else ""
            yield (
                f"changed by something else than the update: {which} ({number(len(key))} of "
                f"{number(len(entries.names))}{how}), {_when(group.steps, self.looks)}, by up to {group.most:.2g} of "
                f"their size{self._zeros(key, group, entries)}{_states(group)}"
                f"{course.around(group.steps) if len(group.steps) <= STEPS else ''}"
            )
        if self.more:
            yield f"other weights were changed so {counted(self.more, 'time')}"

    def _zeros(self, key: tuple[int, ...], group: Group, entries: Entries) -> str:
        if group.zeroed is None:
            return ""
        part = float(group.zeroed.sum()) / int(entries.of(key).sum())
        return (
            f"; {share(part)} of their entries were set to 0 after step {number(group.first_zeros)}, of which "
            f"{share(self.still[key])} are 0 when the last step begins"
        )


def _states(group: Group) -> str:
    if group.kept and group.anew:
        return f"; the optimizer's moments were kept {number(group.kept)} times, 0 or gone {number(group.anew)} times"
    kept = "kept" if group.kept else "0 or gone then" if group.anew else ""
    return f"; the optimizer's moments were {kept}" if kept else ""


def _when(steps: Sequence[int], looks: int) -> str:
    """After which steps."""
    if len(steps) <= STEPS and len(steps) < looks:
        return f"after step{'s' if len(steps) > 1 else ''} {', '.join(map(number, steps))}"
    apart = {b - a for a, b in itertools.pairwise(steps)}
    every = f", every {number(min(apart))}" if len(apart) == 1 and apart != {1} else ""
    at = f"between steps {number(steps[0])} and {number(steps[-1])}{every}"
    return f"after {number(len(steps))} of {number(looks)} updates, {at}"


def _moments(watched: Watched, tensors: Sequence[Tensor]) -> bool | None:
    """Whether an optimizer has moments other than 0 for a tensor that it holds; None where it holds none of them."""
    held = {id(p): optimizer for optimizer in watched.optimizers for g in optimizer.param_groups for p in g["params"]}
    for one in tensors:
        if id(one) in held and one.requires_grad:
            state = getattr(held[id(one)], "state", {}).get(one) or {}
            found = [x for x in state.values() if isinstance(x, Tensor) and x.shape == one.shape and x.ndim]
            return any(bool(x.any()) for x in found)
    return None
