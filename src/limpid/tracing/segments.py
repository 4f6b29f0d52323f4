"""A step in pieces: each from quantities that were recorded on one path to the next one that was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from limpid.maths.chain import Link, Outline
from limpid.maths.operation import Constant
from limpid.tracing.record import Place, Record


@dataclass(frozen=True)
class Segment:
    """One kernel's work: the operations between its inputs and its result, all of which are recorded.

    fast    one operation, or several where a kernel fuses them, or a whole compiled block
    plain   always one operation: it makes a quantity that the fast path never forms, or uses one
    """

    path: Place
    links: tuple[Link, ...]
    makes: bool = True  # False where only the gradients of its inputs are of interest

    @property
    def link(self) -> Link:
        """The operation that completes it."""
        return self.links[-1]

    @property
    def name(self) -> str:
        return self.link.name

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """What comes in from outside, in the order in which it is first used."""
        made = {link.name for link in self.links}
        used = (name for link in self.links for name in link.inputs)
        return tuple(dict.fromkeys(name for name in used if name not in made))


def outline(record: Record) -> list[Link]:
    """Every operation of the recorded step, in order, without its numbers."""
    known = {name.removeprefix("before/"): np.empty(0) for name in record.names if name.startswith("before/")}
    chain = Outline({**known, **record.batch()})
    record.objective.chain(chain, record.config.model)
    return chain.links


def segments(record: Record) -> list[Segment]:
    """Every piece of the step, in the order of the step: each quantity is the result of one."""
    links = outline(record)
    found: list[Segment] = []
    pending: dict[str, tuple[Link, ...]] = {}  # how a quantity that is not recorded on the fast path is made
    for link in links:
        formed = record.formed_fast(link.name)
        fused = [pending[name] for name in link.inputs if name in pending]
        whole = (*(part for parts in fused for part in parts), link)
        if not formed or fused:
            found.append(Segment("plain", (link,), makes=not formed))
        if formed:
            found.append(Segment("fast", _in_order(whole, links)))
        elif record.recorded_fast:
            pending[link.name] = whole
    return found


def cut(record: Record) -> frozenset[str]:
    """What the path that trains made of trained parameters, and to which no gradient came, which is a gradient of 0."""
    if not record.recorded_fast:
        return frozenset()
    trained = {parameter.name for parameter in record.trained}
    found = set()
    for link in outline(record):
        if trained.intersection(link.inputs) and not isinstance(link.operation, Constant):
            trained.add(link.name)
            if record.formed_fast(link.name) and f"fast/grad({link.name})" not in record.names:
                found.add(link.name)
    return frozenset(found)


def _in_order(some: Sequence[Link], links: Sequence[Link]) -> tuple[Link, ...]:
    chosen = {link.name for link in some}
    return tuple(link for link in links if link.name in chosen)
