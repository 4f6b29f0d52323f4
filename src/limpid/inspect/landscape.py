"""The loss around the trained weights: curvature, curves, noise, and the way back through the blocks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from limpid.config import UpdateConfig
from limpid.inspect import curves, sharpness
from limpid.inspect.curves import Curves
from limpid.inspect.hvp import Loss
from limpid.inspect.jacobians import Path as Way
from limpid.inspect.jacobians import gradient_path, paths, redrawn
from limpid.inspect.noise import Noise, noise
from limpid.inspect.sharpness import Sharpness
from limpid.inspect.subject import Subject
from limpid.inspect.watch import in_format
from limpid.progress import Report

ROWS, NOISE_ROWS = 16, 64
"""Rows that curvature is measured on, and rows whose gradients are taken one by one."""
ROOM = 1 << 30
"""Bytes that the gradients of single rows may take: larger models get fewer of them."""


@dataclass(frozen=True)
class Clipping:
    """The global norm of the loss's gradient, and what clipping makes of it."""

    before: float
    limit: float | None
    whose: str  # where the limit comes from

    @property
    def after(self) -> float:
        return self.before if self.limit is None else min(self.before, self.limit)


@dataclass(frozen=True)
class Landscape:
    """Everything that is measured around the weights."""

    loss: float  # nats per token
    rows: int
    length: int  # tokens of a row
    parameters: int
    sharpness: Sharpness
    curves: Curves
    noise: Noise
    clipping: Clipping
    gradient: Way
    ways: tuple[Way, ...]
    fresh: tuple[Way, ...]
    seed: int
    pictures: tuple[Path, ...]


def landscape(subject: Subject, output: Path, report: Report | None = None) -> Landscape:
    """Measure it all, and draw it into `output`."""
    inputs, targets = subject.rows(ROWS)
    loss = Loss(subject.model, inputs, targets)
    seed = 0 if subject.config is None else subject.config.run.seed
    curvature = sharpness.sharpness(loss, seed, report=report)
    around = curves.curves(loss, seed, report)
    single = Loss(subject.model, *subject.rows(max(8, min(NOISE_ROWS, ROOM // (4 * loss.size)))))
    exact = in_format(subject.model, torch.float64)
    return Landscape(
        loss=loss.value(),
        rows=len(inputs),
        length=inputs.shape[1],
        parameters=loss.size,
        sharpness=curvature,
        curves=around,
        noise=noise(single, seed, report),
        clipping=_clipping(float(loss.gradient().norm()), subject),
        gradient=gradient_path(exact, inputs[:4], targets[:4]),
        ways=paths(exact, inputs[:4]),
        fresh=redrawn(exact, inputs[:4], seed),
        seed=seed,
        pictures=(
            sharpness.draw(curvature, output / "spectrum.png"),
            curves.draw_along(around, output / "loss-curves.png"),
            curves.draw_surface(around, output / "loss-surface.png"),
        ),
    )


def _clipping(before: float, subject: Subject) -> Clipping:
    if subject.config is None:
        return Clipping(before, UpdateConfig().max_grad_norm, "limpid's default")
    return Clipping(before, subject.config.update.max_grad_norm, "the run's max_grad_norm")
