"""What several processes have in common, compared through the key-value store that they already share.

Nothing here waits: each process writes a short line and reads those of the others when they are there. A process that
is not watched, or lags behind, is never waited for, so no training can hang on it.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from limpid.doctor.hooks import Hooks
from limpid.doctor.model_info import ModelInfo
from limpid.doctor.pace import Pace
from limpid.doctor.weights import sample

KEPT = 64
"""Steps for which a process's lines stay in the store: one that lags further behind is not compared."""
WATCHES = itertools.count()
"""One number for each time that training is watched in this process: the store outlives them."""


@dataclass
class RankHistory:
    """What earlier steps showed of the processes."""

    start_gap: float = 0.0  # largest distance of any process's weights from the first one's, before the first update
    odd_rank: int | None = None  # one that computed something else than the others
    paces: list[list[list[float]]] = field(default_factory=list)  # of the last steps, by process
    slow: set[tuple[int, int]] = field(default_factory=set)  # who was said to be slow, at what
    usual: list[float] = field(default_factory=list)  # largest gradient element of each step, over all processes


@dataclass(frozen=True)
class RankLines:
    """What every process said of one step."""

    number: int
    first: bool  # whether it is the first step that is seen
    lines: list[dict[str, Any]]

    @property
    def world(self) -> int:
        return len(self.lines)

    @property
    def weights(self) -> list[list[float]]:
        """Sums of samples of the weights after the step, where they were exchanged."""
        return [line["weights"] for line in self.lines if "weights" in line]

    @property
    def starts(self) -> list[list[float]]:
        """The same before the first update; none unless every process gave them."""
        starts = [line.get("started") for line in self.lines]
        return [start for start in starts if start] if all(starts) else []

    @property
    def rows(self) -> list[list[int]]:
        """Hashes of rows; empty where they were not exchanged."""
        return [line.get("rows") or [] for line in self.lines]

    @property
    def local(self) -> list[tuple[str, float | None]]:
        """The parameter with the largest gradient element before averaging, and that element; None if no number."""
        return [line["local"] for line in self.lines]

    @property
    def paces(self) -> list[list[float]]:
        """Seconds of each process: reading rows, in blocks, in the whole step; none unless every process gave them."""
        paces = [line.get("pace") for line in self.lines]
        return [pace for pace in paces if pace] if all(paces) else []

    @staticmethod
    def gap(rows: list[list[float]]) -> float:
        """Largest distance of any process's sums from the first one's."""
        gaps = [abs(a - b) for row in rows[1:] for a, b in zip(rows[0], row, strict=True)]
        return max((math.inf if math.isnan(g) else g for g in gaps), default=0.0)


class Ranks:
    """This process among the others."""

    def __init__(self, info: ModelInfo, first: int) -> None:
        import torch.distributed as dist
        from torch.distributed import distributed_c10d as c10d

        self.info = info
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.watch = next(WATCHES)
        self.store: Any = c10d._get_default_store()
        self.local: dict[str, float] = {}  # largest gradient of each parameter before it is averaged
        self.waiting: list[int] = []
        self.nodes: list[Any] = []  # kept alive: hooks die with their node
        self.started: list[float] | None = None
        self.pace: Pace | None = None
        self.first = first  # step of the first update that is seen

    def watch_pace(self, hooks: Hooks) -> None:
        """See how long this process works where nobody waits."""
        self.pace = Pace(self.info, hooks)

    def watch_gradients(self, hooks: Hooks) -> None:
        """See each gradient before it is averaged: in front of the node that accumulates it, after all its hooks."""
        if self.info.sharded:
            return
        for name, parameter in self.info.parameters.items():
            if not parameter.requires_grad:
                continue
            view: Any = parameter.expand_as(parameter).grad_fn
            node = view.next_functions[0][0]
            hooks.undo.append(node.register_prehook(self._look(name)).remove)
            self.nodes.append(node)

    def _look(self, name: str) -> Any:
        def look(gradients: tuple[Tensor | None, ...]) -> None:
            if gradients and gradients[0] is not None and not gradients[0].is_sparse:
                self.local[name] = max(self.local.get(name, 0.0), _largest(gradients[0]))

        return look

    def fingerprint(self) -> list[float]:
        """Sums in float64 of samples of the parameters, in 8 groups: equal weights give equal sums, to the bit."""
        sums = [0.0] * 8
        for index, parameter in enumerate(self.info.parameters.values()):
            sums[index % 8] += float(sample(parameter, 64).double().sum())
        return sums

    def before_update(self, number: int) -> None:
        if number == self.first and not self.info.sharded:
            self.started = self.fingerprint()

    def exchange(self, number: int, hashes: list[int]) -> list[RankLines]:
        """Write this process's line for the step, and read those steps whose lines are complete."""
        often = number < self.first + 3 or number % 10 == 0
        line: dict[str, Any] = {"local": _summary(self.local), "pace": self.pace and self.pace.taken()}
        if often:
            line["rows"] = hashes[:64]
        if often and not self.info.sharded:
            line |= {"weights": self.fingerprint(), "started": self.started if number == self.first else None}
        self.local = {}
        self.store.set(self._key(number, self.rank), json.dumps(line))
        self.store.delete_key(self._key(number - KEPT, self.rank))
        self.waiting.append(number)
        del self.waiting[:-KEPT]
        complete = []
        for step in list(self.waiting):
            keys = [self._key(step, rank) for rank in range(self.world)]
            if self.store.check(keys):
                self.waiting.remove(step)
                lines = [json.loads(self.store.get(key)) for key in keys]
                complete.append(RankLines(step, step == self.first, lines))
        return complete

    def _key(self, number: int, rank: int) -> str:
        return f"limpid/doctor/{self.watch}/{number}/{rank}"


def _largest(gradient: Tensor) -> float:
    low, high = torch.aminmax(gradient.detach())
    value = max(abs(float(low)), abs(float(high)))
    return math.inf if math.isnan(value) or math.isnan(float(low)) else value


def _summary(local: dict[str, float]) -> list[Any] | None:
    """The parameter with the largest element, and that element (None when it is no number: JSON has no word for it)."""
    if not local:
        return None
    name = max(local, key=lambda n: local[n])
    return [name, local[name] if math.isfinite(local[name]) else None]
