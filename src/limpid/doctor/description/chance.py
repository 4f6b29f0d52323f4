"""What chance does to outputs in training mode, and how large evaluation mode makes them beside that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from limpid.doctor.calls import Call, find_rows
from limpid.doctor.undisturbed import seeded, undisturbed

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam

PASSES = 16
"""In training mode: where an output varies by half of its size, its mean is known to an eighth of that."""


@dataclass(frozen=True)
class Chance:
    """Passes in training mode with one input, other random numbers each."""

    varies: float  # deviation of an output between them, relative to how outputs differ among inputs and classes
    evaluated: float  # how many times as large these differences are in evaluation mode as in the mean of the passes

    def told(self) -> Iterator[str]:
        """In a sentence, where chance takes part at all."""
        if self.varies:
            yield (
                f"outputs before the first update, without their mean: {PASSES} passes in training mode differ by "
                f"{self.varies:.2g} of their size (rms); evaluation mode gives {self.evaluated:.2f} times what these "
                "give on average"
            )


def chance(exam: Exam) -> Chance | None:
    """Measured on a few rows; None of norms that know the batch in one mode alone, and where no pass can be made."""
    call = exam.few_rows
    if call is None or exam.info.norms_of_the_batch or exam.info.translates:
        return None
    evaluated, first, second = (_outputs(exam, call, mode, seed) for mode, seed in ((False, 0), (True, 0), (True, 1)))
    if evaluated is None or first is None or second is None or not evaluated.shape == first.shape == second.shape:
        return None
    if torch.equal(first, second):
        return Chance(0.0, 1.0)
    more = [_outputs(exam, call, True, seed) for seed in range(2, PASSES)]
    passes = torch.stack([first, second, *(one for one in more if one is not None)]).double()
    spread, mean, fixed = passes.var(0).mean(), _apart(passes.mean(0)), _apart(evaluated.double())
    size = mean.square().mean() - spread / len(passes)  # what of the mean's size is not chance
    if not size > spread / len(passes) or not bool(fixed.isfinite().all()):
        return None
    return Chance(float((spread / size).sqrt()), float((fixed * mean).mean() / size))


def _apart(outputs: Tensor) -> Tensor:
    """How outputs differ from their mean over rows and places: constants, as of biases, are in both modes alike."""
    return outputs - outputs.reshape(-1, outputs.shape[-1]).mean(0) if outputs.ndim > 1 else outputs - outputs.mean()


def _outputs(exam: Exam, call: Call, training: bool, seed: int) -> Tensor | None:
    """Of one pass; None where the model does not take such a call."""
    try:
        with undisturbed(exam.shield):
            exam.model.train(training)
            seeded(seed)
            found = find_rows(call.without_loss().make(exam.model))
            return None if found is None or found.ndim < 1 else found.detach().float()
    except (RuntimeError, ValueError, IndexError, TypeError):
        return None
