"""What a fault is: a few lines on the base loop, the proof that they bite, and the answers that count as right."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.doctor.loop import Inject, Loop
from benchmarks.doctor.models import ARCHITECTURES
from benchmarks.doctor.ranks import RankedLoop, on_ranks
from benchmarks.doctor.settings import Settings

FAMILIES = {
    "NUM": "numerics", "OPT": "optimisation", "DAT": "data", "GRA": "graph", "LOS": "loss", "DIS": "distributed",
    "CFG": "configuration",
}  # fmt: skip


@dataclass(frozen=True)
class Proven:
    """How a proof went."""

    bites: bool
    with_fault: float
    without: float
    says: str


@dataclass(frozen=True)
class Exact:
    """An exact property that the healthy twin has and the injected run has not."""

    says: str
    measure: Callable[[Loop], float]  # of a loop that has not begun
    bites: Callable[[float, float], bool]  # injected, twin

    def prove(self, make: Callable[[bool, int], Loop]) -> Proven:
        injected, twin = self.measure(make(True, 0)), self.measure(make(False, 0))
        return Proven(self.bites(injected, twin), injected, twin, self.says)


@dataclass(frozen=True)
class Worse:
    """The twin ends with the better validation loss, by more than three standard errors over seeds."""

    seeds: int = 3
    errors: float = 3.0

    def prove(self, make: Callable[[bool, int], Loop]) -> Proven:
        ends = [(end(make(True, seed)), end(make(False, seed))) for seed in range(self.seeds)]
        injected, twin = (statistics.fmean(side) for side in zip(*ends, strict=True))
        if injected == float("inf"):
            return Proven(True, injected, twin, "validation loss, nats")
        gains = [a - b for a, b in ends]
        error = statistics.stdev(gains) / len(gains) ** 0.5
        says = f"validation loss, nats; {statistics.fmean(gains) / error:.0f} standard errors over {self.seeds} seeds"
        return Proven(statistics.fmean(gains) > self.errors * error, injected, twin, says)


def end(loop: Loop) -> float:
    return loop.run().validation()


@dataclass(frozen=True)
class Fault:
    """One way to break the base loop."""

    name: str  # family-number, then the variant
    does: str  # what was done, in a few words
    inject: Inject
    accepted: tuple[str, ...]  # rules whose being named first counts as right
    proof: Exact | Worse
    settings: dict[str, Any] = field(default_factory=dict)  # of the fault and its twin alike
    onset: int = 0
    architectures: tuple[str, ...] = ARCHITECTURES
    why_not: str = ""  # what keeps the fault from the other architectures
    ranks: int = 1

    @property
    def family(self) -> str:
        return FAMILIES[self.name[:3]]

    def loop(self, architecture: str, seed: int, *, injected: bool = True) -> Loop:
        made = loop_kind(self.ranks)(architecture, seed, replace(Settings(), **self.settings))
        if injected:
            self.inject(made)
        return made

    def prove(self, architecture: str) -> Proven:
        def here() -> Proven:
            return self.proof.prove(lambda injected, seed: self.loop(architecture, seed, injected=injected))

        return here() if self.ranks == 1 else on_ranks(here, self.ranks)[0]


@dataclass(frozen=True)
class Healthy:
    """A run without fault, and why one might think otherwise."""

    name: str
    does: str
    arrange: Inject
    settings: dict[str, Any] = field(default_factory=dict)
    architectures: tuple[str, ...] = ARCHITECTURES
    ranks: int = 1

    def loop(self, architecture: str, seed: int, *, injected: bool = False) -> Loop:
        loop = loop_kind(self.ranks)(architecture, seed, replace(Settings(), **self.settings))
        self.arrange(loop)
        return loop


def loop_kind(ranks: int) -> type[Loop]:
    return Loop if ranks == 1 else RankedLoop


def above(threshold: float) -> Callable[[float, float], bool]:
    """The injected run is above, the twin is not."""
    return lambda injected, twin: injected > threshold >= twin


def below(threshold: float) -> Callable[[float, float], bool]:
    return lambda injected, twin: injected < threshold <= twin
