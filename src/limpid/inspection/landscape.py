"""The loss around the trained weights: curvature, curves, noise, and the flow of gradients through the blocks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from limpid.config import UpdateConfig
from limpid.inspection.forward_pass import cast_model
from limpid.inspection.gradient_flow import GradientFlow, flow_variants, fresh_flows, loss_flow
from limpid.inspection.gradient_noise import GradientNoise, gradient_noise
from limpid.inspection.hessian import DifferentiableLoss, Sharpness, draw_density, sharpness
from limpid.inspection.loss_curves import LossCurves, draw_along, draw_surface, loss_curves
from limpid.inspection.model_and_text import ModelAndText
from limpid.reporter import SILENT, Reporter

ROWS, NOISE_ROWS = 16, 64
"""Rows that curvature is measured on, and rows whose gradients are taken one by one."""
MEMORY = 1 << 30
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
    curves: LossCurves
    noise: GradientNoise
    clipping: Clipping
    gradient: GradientFlow  # of the loss
    variants: tuple[GradientFlow, ...]
    fresh: tuple[GradientFlow, ...]  # of weights drawn anew
    seed: int

    def draw(self, folder: Path) -> list[Path]:
        """Pictures of the spectrum of the Hessian, and of the loss along lines and on a plane."""
        return [
            draw_density(self.sharpness, folder / "spectrum.png"),
            draw_along(self.curves, folder / "loss-curves.png"),
            draw_surface(self.curves, folder / "loss-surface.png"),
        ]


def measure_landscape(sample: ModelAndText, reporter: Reporter = SILENT) -> Landscape:
    """Measure it all."""
    inputs, targets = sample.rows(ROWS)
    loss = DifferentiableLoss(sample.model, inputs, targets)
    seed = 0 if sample.config is None else sample.config.run.seed
    curvature = sharpness(loss, seed, reporter=reporter)
    curves = loss_curves(loss, seed, reporter)
    single = DifferentiableLoss(sample.model, *sample.rows(max(8, min(NOISE_ROWS, MEMORY // (4 * loss.size)))))
    exact = cast_model(sample.model, torch.float64)
    return Landscape(
        loss=loss.value(),
        rows=len(inputs),
        length=inputs.shape[1],
        parameters=loss.size,
        sharpness=curvature,
        curves=curves,
        noise=gradient_noise(single, seed, reporter),
        clipping=_clipping(float(loss.gradient().norm()), sample),
        gradient=loss_flow(exact, inputs[:4], targets[:4]),
        variants=flow_variants(exact, inputs[:4]),
        fresh=fresh_flows(exact, inputs[:4], seed),
        seed=seed,
    )


def _clipping(before: float, sample: ModelAndText) -> Clipping:
    if sample.config is None:
        return Clipping(before, UpdateConfig().max_grad_norm, "limpid's default")
    return Clipping(before, sample.config.update.max_grad_norm, "the run's max_grad_norm")
