"""One step as the doctor saw it, and the past that it is judged against."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from limpid.doctor.attention_probe import AttentionScores
from limpid.doctor.calls import Call, Micro
from limpid.doctor.loss_gradient import LossGradient
from limpid.doctor.streams import Stream
from limpid.doctor.update_sample import UpdateSample


class LogitLevel(NamedTuple):
    """Where logits stand as a whole, which softmax does not see."""

    log_z: float  # mean
    largest: float
    mean: float  # over positions and vocabulary
    classes: int  # how many there are
    format: str


@dataclass
class StepRecord:
    """What happened between two updates."""

    number: int
    sampled: bool = False  # updates, attention, modes
    read: bool = False  # the loss read from its gradient
    events: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    rng: list[Tensor] = field(default_factory=list)  # random state before each forward pass
    autocast: list[torch.dtype | None] = field(default_factory=list)  # format of autocast around each forward pass
    loss_gradients: dict[int, LossGradient] = field(default_factory=dict)  # by forward pass
    dropped: set[int] = field(default_factory=set)  # forward passes whose gradients were cleared before the update
    heads: list[AttentionScores] = field(default_factory=list)
    roots: list[Tensor] = field(default_factory=list)  # what backward was called on
    loss: float | None = None  # as told, or the sum of the roots
    norm: float | None = None  # of the gradient, before clipping
    norm_tensor: Tensor | None = None
    clipped_to: float | None = None
    clips: list[tuple[set[int], Tensor]] = field(
        default_factory=list
    )  # whose gradients each clip had, their norm before
    unclipped: tuple[float, float] | None = None  # norms of the gradients that no clip had, and of all before clipping
    norm_at_update: float | None = None
    rates: list[float] = field(default_factory=list)
    scale: float = 1.0
    updated: bool = False
    skipped: bool = False  # loss scaling saw infinities
    reported: bool = False
    stale: float = 0.0  # largest gradient left over from the step before, when backward began
    no_gradients: bool = False
    in_eval: list[str] = field(default_factory=list)  # modules in evaluation mode during backward
    update: UpdateSample | None = None
    micros: list[Micro] = field(default_factory=list)
    labels: int = 0
    spread_out: tuple[tuple[int, ...], tuple[int, ...]] | None = None  # shapes that a loss compared all with all
    level: LogitLevel | None = None  # of the logits, as the loss gets them where seen
    outer_called: bool = False
    inner_called: bool = False
    broken: bool = False


@dataclass
class History:
    """What earlier steps were like."""

    losses: Stream = field(default_factory=Stream)
    norms: Stream = field(default_factory=Stream)
    rates: list[float] = field(default_factory=list)
    last_rates: list[float] = field(default_factory=list)  # of the parameter groups, at the last update
    counts: Counter = field(default_factory=Counter)
    skips: deque[bool] = field(default_factory=lambda: deque(maxlen=400))
    skips_in_a_row: int = 0
    schedule_per_update: list[int] = field(default_factory=list)
    clip_misplaced: int = 0
    clipped_hard: int = 0
    empty_steps: int = 0
    zero_rates: int = 0
    decay_done: float = 0.0  # Σ η λ so far, of what should not decay
    updates: list[tuple[int, UpdateSample]] = field(default_factory=list)
    scores: list[tuple[int, float, int]] = field(default_factory=list)  # step, largest, which attention
    levels: list[tuple[int, LogitLevel]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)  # what single checks remember
    previous: Call | None = None
    previous_rng: Tensor | None = None


def not_number(value: float | None) -> bool:
    return value is not None and not torch.isfinite(torch.tensor(value)).item()
