"""What the odd but honest runs share: the record of what a run is for."""

import torch
from benchmarks.robustness.loops.case import Run
from torch import Tensor


def quantity(run: Run, value: Tensor | float) -> None:
    """Keep what the run is for, where that is not its loss: at least at the start and at the end; more is better."""
    vars(run).setdefault("quantity", []).append(float(value))


def accuracy(logits: Tensor, targets: Tensor) -> float:
    return float((logits.argmax(-1) == targets).float().mean())


def shapes(
    rows: int, classes: int = 4, size: int = 12, noise: float = 0.3, still: bool = False
) -> tuple[Tensor, Tensor]:
    """Small grey images of bars, blocks and crosses at random places (or in the middle), one class for each kind."""
    labels = torch.randint(0, classes, (rows,))
    images = noise * torch.randn(rows, 1, size, size)
    for row, label in enumerate(labels.tolist()):
        top, left = (4, 4) if still else torch.randint(1, size - 5, (2,)).tolist()
        patch = images[row, 0, top : top + 4, left : left + 4]
        if label in (0, 2):
            patch[:, 1] += 1.5
        if label in (1, 2):
            patch[1, :] += 1.5
        if label == 3:
            patch += 0.9
        if label == 4:
            patch.diagonal().add_(1.5)
        if label == 5:
            patch.flip(1).diagonal().add_(1.5)
    return images, labels
