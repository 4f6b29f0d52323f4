"""Singular values of every matrix: how many directions it uses, and how well fewer would do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import nn

from limpid.maths.foundations import entropy
from limpid.plots import panels, plain, save

Array = np.ndarray[Any, Any]
KEPT = 0.9
"""Share of the squared Frobenius norm that the rank needed refers to."""


@dataclass(frozen=True)
class Spectrum:
    """What the singular values of one matrix tell."""

    name: str
    shape: tuple[int, int]
    values: Float[Array, " rank"]  # largest first

    @property
    def squares(self) -> Float[Array, " rank"]:
        squares: Array = np.square(self.values)
        return squares

    @property
    def effective_rank(self) -> float:
        """exp of the entropy of the normalised singular values, as limpid.maths.effective_rank, from values at hand."""
        total = self.values.sum()
        return float(np.exp(entropy(self.values / total))) if total > 0 else 0.0

    @property
    def stable_rank(self) -> float:
        """‖W‖²_F / σ₁²: how many directions as strong as the strongest there are room for."""
        return float(self.squares.sum() / self.squares[0]) if self.values[0] > 0 else 0.0

    @property
    def rank_needed(self) -> int:
        """The least rank that keeps 90 % of the squared Frobenius norm."""
        kept = np.cumsum(self.squares)
        return int(np.searchsorted(kept, KEPT * kept[-1])) + 1 if kept[-1] > 0 else 0

    @property
    def quarter(self) -> int:
        """A quarter of the full rank."""
        return min(self.shape) // 4

    @property
    def quarter_error(self) -> float:
        """‖W - W_k‖_F / ‖W‖_F of the best matrix of a quarter of the rank (Eckart & Young 1936)."""
        total = self.squares.sum()
        return float(np.sqrt(self.squares[self.quarter :].sum() / total)) if total > 0 else 0.0

    @property
    def kind(self) -> str:
        """Its name without the number of its block."""
        parts = self.name.removesuffix(".weight").split(".")
        return ".".join(parts[2:] if parts[0] == "blocks" else parts)


def spectra(model: nn.Module) -> tuple[Spectrum, ...]:
    """Every matrix of the model."""
    return tuple(
        Spectrum(
            name, (weight.shape[0], weight.shape[1]), np.linalg.svd(weight.detach().double().numpy(), compute_uv=False)
        )
        for name, weight in model.named_parameters()
        if weight.ndim == 2
    )


def draw(found: tuple[Spectrum, ...], file: Path) -> Path:
    """Singular values by kind of matrix, one line per block, from light (first) to dark (last)."""
    from matplotlib import colormaps

    kinds = list(dict.fromkeys(spectrum.kind for spectrum in found))
    drawing, axes = panels(len(kinds), 4, 3.1, 2.5)
    for axis, kind in zip(axes, kinds, strict=True):
        lines = [spectrum for spectrum in found if spectrum.kind == kind]
        for number, spectrum in enumerate(lines):
            shade = 0.35 + 0.6 * number / max(1, len(lines) - 1) if len(lines) > 1 else 0.95
            shown = spectrum.values[spectrum.values > 0]
            axis.semilogy(np.arange(1, len(shown) + 1), shown, color=colormaps["Blues"](shade), linewidth=1.3)
        rows, columns = lines[0].shape
        plain(axis, f"{kind}  {rows}×{columns}", "index", "singular value")
    drawing.suptitle("singular values, one line per block: light is the first, dark the last", fontsize=10)
    return save(drawing, file)
