"""What a model costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from limpid.jsonable import Finite


@dataclass(frozen=True)
class PlanFigure:
    """One planned number with what it follows from."""

    name: str
    value: Finite
    unit: str
    shown: str
    equation: str
    readable: str
    numbers: dict[str, Finite]  # that the equation uses
    source: str
    note: str
    why: tuple[str, ...]  # equation, numbers put in, result and source, a line each


@dataclass(frozen=True)
class PlanSection:
    """Figures that belong together."""

    title: str
    figures: tuple[PlanFigure, ...]


@dataclass(frozen=True)
class PlanDocument:
    """What a model costs."""

    name: str
    sections: tuple[PlanSection, ...]
    fits: bool | None  # None where no memory was given
    advice: tuple[str, ...]
    notes: tuple[str, ...]
    limited: str  # the figure that has to fit


@dataclass(frozen=True)
class PlanLayout:
    """One way to divide a step among the devices."""

    zero: int
    tensor: int
    pipeline: int
    recompute: str
    gradient_accumulation_steps: int
    replicas: int
    memory: Finite  # bytes of one device
    fits: bool | None  # None where no memory was given
    step: Finite | None  # seconds of one step; None where the device's speed is not known
    per_row: Finite | None  # seconds that a sequence takes, all devices together


@dataclass(frozen=True)
class PlanLayouts:
    """Every way, those that fit first, the fastest of them first."""

    layouts: tuple[PlanLayout, ...]


@dataclass(frozen=True)
class PlanOption:
    """One field of the form."""

    name: str
    kind: Literal["number", "whole", "word", "choice"]
    default: Any
    choices: tuple[str, ...]
    about: str


@dataclass(frozen=True)
class PlanLaw:
    """L(N, D) = E + A / N^alpha + B / D^beta, nats per token: what curves of equal loss are drawn from."""

    name: str
    source: str
    E: Finite
    A: Finite
    B: Finite
    alpha: Finite
    beta: Finite


@dataclass(frozen=True)
class PlanForm:
    """What may be asked of the planner."""

    names: tuple[str, ...]  # published models
    devices: tuple[str, ...]
    options: tuple[PlanOption, ...]
    laws: tuple[PlanLaw, ...]
