"""The reliability plot: how often a model is right, by how sure it says it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from limpid.plots import FIRST, INK, SECOND, panels, plain, save

if TYPE_CHECKING:
    from limpid.evaluation.evaluation import TextResult


def reliability(texts: tuple[TextResult, ...], file: Path) -> Path:
    """Accuracy against confidence, loss against entropy; a calibrated model lies on the diagonals."""
    drawing, (left, right) = panels(2, 2, 5.2, 4.6)
    for result, colour in zip(texts, (FIRST, SECOND), strict=False):
        bins, name = result.calibration.bins, result.text.model.title
        confidence = np.array([b.confidence for b in bins])
        spread = 1.96 * np.array([b.spread for b in bins])
        left.errorbar(
            confidence, [b.accuracy for b in bins], yerr=spread, color=colour, marker="o", markersize=4, linewidth=1,
            elinewidth=0.8, capsize=2, label=f"{name}: error {result.calibration.error:.2%}",
        )  # fmt: skip
        entropy = [b.entropy for b in bins]
        right.plot(entropy, [b.loss for b in bins], color=colour, marker="o", markersize=4, linewidth=1, label=name)
    left.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    left.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    most = 1.05 * max(right.get_xlim()[1], right.get_ylim()[1])
    right.plot([0, most], [0, most], color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    right.set(xlim=(0, most), ylim=(0, most), aspect="equal")
    plain(left, "reliability", "probability of the likeliest token", "share of times it came")
    plain(right, "loss", "entropy of the prediction, nats", "loss, nats")
    for axes in (left, right):
        axes.legend(fontsize=8, frameon=False, loc="upper left")
    drawing.supxlabel("bins of equal mass; bars: what chance does to 95% of bins of this size", fontsize=8, color=INK)
    return save(drawing, file)
