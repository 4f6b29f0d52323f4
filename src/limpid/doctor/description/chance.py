"""What chance does to outputs in training mode, and how large evaluation mode makes them beside that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.doctor.calls import find_rows
from limpid.doctor.description.others import outputs

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam

PASSES = 8
"""In training mode, of a few rows: together half of a step of 16 × 256 tokens."""


@dataclass(frozen=True)
class Chance:
    """Passes in training mode with one input, other random numbers each."""

    varies: float  # deviation of an output between them, relative to how outputs differ among inputs and classes
    evaluated: float  # how many times as large these differences are in evaluation mode as in the mean of the passes
    evaluation_varies: bool  # whether two passes in evaluation mode differ

    def told(self) -> Iterator[str]:
        """In a sentence."""
        if not self.varies:
            yield "random numbers change no output in training mode"
        else:
            yield (
                f"outputs without their mean: {PASSES} passes in training mode differ by "
                f"{self.varies:.2g} of their size (rms); evaluation mode gives {self.evaluated:.2f} times what these "
                "give on average"
            )
        if self.evaluation_varies:
            yield "outputs in evaluation mode are others with other random numbers"


def chance(exam: Exam) -> Chance | None:
    """Measured on a few rows; None of norms that know the batch in one mode alone, and where no pass can be made."""
    call = exam.few_rows
    if call is None or exam.info.norms_of_the_batch or exam.info.translates:
        return None
    call = call.without_loss()
    evaluated = outputs(exam, call, find_rows)
    if evaluated is None:
        return None
    again = outputs(exam, call, find_rows, seed=1)
    varies = again is not None and again.shape == evaluated.shape and not torch.equal(again, evaluated)
    found: list[Tensor] = []
    for seed in range(PASSES):
        one = outputs(exam, call, find_rows, training=True, seed=seed)
        if one is None or one.shape != evaluated.shape:
            return None
        if seed == 1 and torch.equal(one, found[0]):
            return Chance(0.0, 1.0, varies)
        found.append(one)
    passes = torch.stack(found).double()
    spread, mean, fixed = passes.var(0).mean(), _apart(passes.mean(0)), _apart(evaluated.double())
    size = mean.square().mean() - spread / len(passes)  # what of the mean's size is not chance
    if not size > spread / len(passes) or not bool(fixed.isfinite().all()):
        return None
    return Chance(float((spread / size).sqrt()), float((fixed * mean).mean() / size), varies)


def _apart(made: Tensor) -> Tensor:
    """How outputs differ from their mean over rows and places: constants, as of biases, are in both modes alike."""
    return made - (made.reshape(-1, made.shape[-1]) if made.ndim > 1 else made).mean(0)
