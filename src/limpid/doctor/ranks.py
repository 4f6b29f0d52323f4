"""What several processes have in common, compared through the key-value store that they already share.

Nothing here waits: each process writes a short line and reads those of the others when they are there. A process that
is not watched, or lags behind, is never waited for, so no training can hang on it.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from limpid.doctor.finding import Finding
from limpid.doctor.hooks import Hooks
from limpid.doctor.model_info import ModelInfo
from limpid.doctor.rounding import sample
from limpid.doctor.step_record import StepRecord

KEPT = 64
"""Steps for which a process's lines stay in the store: one that lags further behind is not compared."""
WATCHES = itertools.count()
"""One number for each time that training is watched in this process: the store outlives them."""


def processes() -> int:
    """How many processes train together."""
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


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
        self.first = first  # step of the first update that is seen
        self.shared_steps = 0
        self.usual: list[float] = []
        self.odd: dict[str, Any] | None = None

    def listen(self, taps: Hooks) -> None:
        """See each gradient before it is averaged: in front of the node that accumulates it, after all its hooks."""
        if self.info.sharded:
            return
        for name, parameter in self.info.parameters.items():
            if not parameter.requires_grad:
                continue
            view: Any = parameter.expand_as(parameter).grad_fn
            node = view.next_functions[0][0]
            taps.undo.append(node.register_prehook(self._look(name)).remove)
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

    def before_update(self, record: StepRecord) -> None:
        if record.number == self.first and not self.info.sharded:
            self.started = self.fingerprint()

    def after_step(self, record: StepRecord, rows: list[int]) -> list[Finding]:
        """Write this process's line for the step, and judge those steps whose lines are complete.

        rows    hashes of the rows of the step
        """
        often = record.number < self.first + 3 or record.number % 10 == 0
        line: dict[str, Any] = {"local": _summary(self.local)}
        if often:
            line["rows"] = rows[:64]
        if often and not self.info.sharded:
            line |= {"weights": self.fingerprint(), "started": self.started if record.number == self.first else None}
        self.local = {}
        self.store.set(self._key(record.number, self.rank), json.dumps(line))
        self.store.delete_key(self._key(record.number - KEPT, self.rank))
        self.waiting.append(record.number)
        del self.waiting[:-KEPT]
        found: list[Finding] = []
        for number in list(self.waiting):
            keys = [self._key(number, rank) for rank in range(self.world)]
            if not self.store.check(keys):
                continue
            lines = [json.loads(self.store.get(key)) for key in keys]
            self.waiting.remove(number)
            found.extend(self.judge(number, lines))
        return found

    def _key(self, number: int, rank: int) -> str:
        return f"limpid/doctor/{self.watch}/{number}/{rank}"

    def judge(self, number: int, lines: list[dict[str, Any]]) -> Iterator[Finding]:
        yield from self.apart(number, lines)
        yield from self.same_rows(number, lines)
        yield from self.one_rank_off(number, lines)

    def apart(self, number: int, lines: list[dict[str, Any]]) -> Iterator[Finding]:
        if "weights" not in lines[0]:
            return
        starts = [line.get("started") or [] for line in lines]
        weights = [line["weights"] for line in lines]
        if number == self.first and all(starts):
            gap = _gap(starts)
            self.start_gap = gap
            if gap > 0:
                yield Finding(
                    rule="ranks-start-apart",
                    severity="fault",
                    step=number,
                    where="weights",
                    says=f"{self.world} ranks start from different weights (sampled sums differ by {gap:.3g}) before "
                    "the first update.",
                    cause="each rank draws its own weights, and nothing broadcasts them",
                    fix="the same seed on every rank, or DistributedDataParallel, which broadcasts",
                    refuted_by="equal sums on all ranks",
                    evidence={"gap": gap, "ranks": self.world},
                )
        if self.start_gap == 0.0:
            gap = _gap(weights)
            if gap > 0 and self.odd is not None:
                return
            if gap > 0:
                yield Finding(
                    rule="gradients-not-averaged",
                    severity="fault",
                    step=number,
                    where="weights",
                    says=f"ranks hold different weights after step {number} (sampled sums differ by {gap:.3g}) "
                    "although they started equal: gradients are not averaged, or not all of them.",
                    cause="the raw module was called instead of its wrapper, or every micro-batch ran inside no_sync()",
                    fix="call the wrapper; leave no_sync() for all micro-batches but the last",
                    sure=0.98,
                    refuted_by="equal sums on all ranks",
                    evidence={"gap": gap, "ranks": self.world},
                )

    start_gap = 0.0

    def same_rows(self, number: int, lines: list[dict[str, Any]]) -> Iterator[Finding]:
        rows = [line.get("rows") for line in lines]
        if not all(rows):
            return
        first, *others = [set(r) for r in rows if r]
        common = min(len(first & other) / max(1, min(len(first), len(other))) for other in others)
        self.shared_steps = self.shared_steps + 1 if common >= 0.5 else 0
        if self.shared_steps == 2:
            yield Finding(
                rule="ranks-same-data",
                severity="fault",
                step=number,
                where="data",
                says=f"all {self.world} ranks got the same rows ({common:.0%} of {len(first)}): the global batch is "
                f"{len(first)} rows, not {len(first) * self.world}.",
                cause="no DistributedSampler, or the same seed on every rank",
                fix="DistributedSampler with set_epoch, or a seed that holds the rank",
                refuted_by="different row hashes on the ranks",
                evidence={"common": common, "ranks": self.world},
            )

    def one_rank_off(self, number: int, lines: list[dict[str, Any]]) -> Iterator[Finding]:
        values = [line["local"] for line in lines]
        if not all(values):
            return
        largest = [math.inf if v[1] is None else v[1] for v in values]
        ordered = sorted(largest)
        usual = max([*self.usual[-32:], ordered[0], 1e-30])
        worst = largest.index(ordered[-1])
        if ordered[-1] > 1000 * max(ordered[-2], usual) and math.isfinite(ordered[-2]):
            name = values[worst][0]
            self.odd = {"rank": worst, "step": number}
            shown = "not a number" if not math.isfinite(ordered[-1]) else f"{ordered[-1]:.2g}"
            yield Finding(
                rule="rank-computes-wrong",
                severity="fault",
                step=number,
                where=f"rank {worst}: {name}",
                says=f"rank {worst}'s gradient of {name} has an element of {shown} before averaging; the largest of "
                f"the other ranks is {ordered[-2]:.2g}.",
                cause=f"hardware or memory of rank {worst}, not the model",
                fix="exclude this machine; compute the batch on another",
                sure=0.9,
                refuted_by="the same batch with the same gradient on another rank",
                evidence={"rank": worst, "largest": ordered[-1], "others": ordered[-2]},
            )
        else:
            self.usual.append(max(v for v in ordered if math.isfinite(v)) if any(map(math.isfinite, ordered)) else 0.0)


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


def _gap(rows: list[list[float]]) -> float:
    """Largest distance of any process's sums from the first one's."""
    gaps = [abs(a - b) for row in rows[1:] for a, b in zip(rows[0], row, strict=True)]
    return max((math.inf if math.isnan(g) else g for g in gaps), default=0.0)
