"""What the doctor was given to watch."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import nn

from limpid.doctor.model_info import ModelInfo
from limpid.doctor.schedules import planned_steps


@dataclass
class Watched:
    """A model and what trains it."""

    info: ModelInfo
    optimizers: list[Any] = field(default_factory=list)
    schedulers: list[Any] = field(default_factory=list)
    scaler: Any = None
    total_steps: int | None = None
    pretrained: bool | None = None

    @cached_property
    def planned(self) -> int | None:
        """Updates that the run is to make, as told or as its schedule says."""
        return self.total_steps or planned_steps(self.schedulers)

    @property
    def scaling(self) -> bool:
        """Whether the loss is scaled against underflow."""
        return self.scaler is not None and bool(self.scaler.is_enabled())

    @property
    def scale(self) -> float:
        return float(self.scaler.get_scale()) if self.scaling else 1.0

    def sentinels(self) -> list[nn.Parameter]:
        """Three small parameters that stand for all: first, middle, last of those that are trained.

        What no optimizer has, none can clear.
        """
        held = {id(p) for o in self.optimizers for group in o.param_groups for p in group["params"]}
        trained = [p for p in self.info.parameters.values() if p.requires_grad and (not held or id(p) in held)]
        small = sorted(trained, key=lambda p: p.numel())[: max(3, len(trained) // 4)]
        return [small[i] for i in sorted({0, len(small) // 2, len(small) - 1})] if small else []


def unwrapped(given: Any, inside: str) -> list[Any]:
    """None, one object or several, as a list; accelerate's wrappers hold the object itself as their `inside`."""
    several = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    return [getattr(entry, inside, entry) for entry in several]
