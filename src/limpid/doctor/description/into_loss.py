"""What lies between the model's outputs and what a loss function is given: a factor, a number for each class, a cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from limpid.doctor.description.pushes import by_row, rank_correlation
from limpid.doctor.description.words import share

if TYPE_CHECKING:
    from limpid.doctor.step_record import StepRecord

ENTRIES = 2**18
"""Of outputs, and of what is given to a loss function, that are held against each other."""
EXACT = 1e-4
"""Deviation of what is left, over that of what is given, below which one explains the other."""
ROWS, SHUT_OUT = 3, -1e4
"""Rows from which on columns are held apart, and what scores that are taken out lie below."""
SHOWN, FEWEST = 8, 4
"""Numbers of classes that are told one by one, and from which on they are held against others."""


@dataclass(frozen=True)
class IntoLoss:
    """One thing given to a loss function, explained by the outputs."""

    function: str
    how: str
    added: Tensor | None = None  # by class or by candidate
    of_candidates: bool = False

    def told(self, record: StepRecord, labels: Counter[int]) -> Iterator[str]:
        """In a sentence.

        labels   how often each label has come in the run
        """
        said = f"{self.function} is given {self.how}"
        added = self.added
        if added is not None:
            each = " ".join(f"{float(one):.3g}" for one in added[:SHOWN]) + (" …" if len(added) > SHOWN else "")
            said += f" and a number for each {'candidate' if self.of_candidates else 'class'}: {each}"
            said += "".join(_with(added, name, other) for name, other in self._beside(record, labels).items())
        yield said

    def _beside(self, record: StepRecord, labels: Counter[int]) -> dict[str, Tensor]:
        if self.added is None or len(self.added) < FEWEST:
            return {}
        if not self.of_candidates:
            counts = [labels[label] for label in range(len(self.added))]
            return {"how often the class is a label": torch.tensor(counts).double()} if sum(counts) else {}
        return {f"the candidate's {name}": x for name, x in by_row(record).items() if len(x) == len(self.added)}


def into_loss(function: str, given: Tensor, outputs: Sequence[Tensor]) -> IntoLoss | None:
    """How it comes of them; None where it is one of them, or nothing that is known."""
    if given.ndim < 1 or not 1 < given.numel() <= ENTRIES or not given.is_floating_point():
        return None
    x = given.detach().double()
    alike = [made.double().reshape(x.shape) for made in outputs if made.numel() == given.numel()]
    if any(bool((x == made).all()) for made in alike):
        return None
    if alike:
        return _of_one(function, x, max(alike, key=lambda made: _correlation(x, made)))
    if x.ndim == 2:
        pairs = [(a, b) for a in outputs for b in outputs if a.ndim == b.ndim == 2 and a.shape[1] == b.shape[1]]
        for a, b in pairs:
            if (len(a), len(b)) == tuple(x.shape):
                found = _of_products(function, x, a.double(), b.double())
                if found is not None:
                    return found
    return None


def _of_one(function: str, x: Tensor, made: Tensor) -> IntoLoss | None:
    same = float((x == made).double().mean())
    if same > 0.5:
        low, high = float(x.min()), float(x.max())
        return IntoLoss(
            function, f"the model's outputs, but for {share(1 - same)} of them; it is given {low:.3g} "
            f"to {high:.3g}, the outputs are {float(made.min()):.3g} to {float(made.max()):.3g}"
        )  # fmt: skip
    found = _explained(function, "the model's outputs", x, made, False)
    together = _correlation(x, made)
    if found is None and x.numel() > FEWEST and together:
        return IntoLoss(
            function, f"something else than a multiple of the model's outputs: correlation {together:.2f} with them, "
            f"between {float(x.min()):.3g} and {float(x.max()):.3g}"
        )  # fmt: skip
    return found


def _correlation(x: Tensor, made: Tensor) -> float:
    """Of two tensors entry by entry; 0 where one of them is level."""
    pair = torch.stack([x.flatten(), made.flatten()])
    return float(torch.corrcoef(pair)[0, 1]) if bool((pair.std(1) > 0).all()) else 0.0


def _of_products(function: str, x: Tensor, a: Tensor, b: Tensor) -> IntoLoss | None:
    """Scores of candidates as products of vectors, of their own lengths or of length one."""
    plain = _explained(function, "the products of outputs of two rows", x, a @ b.T, True)
    unit = F.normalize(a, dim=1) @ F.normalize(b, dim=1).T
    return plain or _explained(function, "the cosines of outputs of two rows", x, unit, True)


def _explained(function: str, what: str, x: Tensor, made: Tensor, of_candidates: bool) -> IntoLoss | None:
    """As a multiple, with a number for each column where there are several; candidates that are shut out left aside."""
    columns = x.shape[-1] if x.ndim > 1 and len(x) >= ROWS else 1
    shaped, other = x.reshape(-1, columns), made.reshape(-1, columns)
    found = _multiple(shaped, other, shaped.isfinite() & (shaped > SHUT_OUT))
    if found is None:
        return None
    factor, added, rounding = found
    times = what if abs(factor - 1) < EXACT else f"{factor:.4g} × {what}"
    if float(added.max() - added.min()) > rounding:
        return IntoLoss(function, times, added, of_candidates)
    if float(added.abs().max()) > rounding:
        return IntoLoss(function, f"{times}, and {float(added[0]):.3g}")
    return IntoLoss(function, times) if times != what else None


def _multiple(x: Tensor, made: Tensor, there: Tensor) -> tuple[float, Tensor, float] | None:
    """The factor, what is added to each column, and what of that is rounding; None where something is left over."""
    count = there.sum(0).clamp(min=1)
    means, others = (one.masked_fill(~there, 0).sum(0) / count for one in (x, made))
    centred, other = (x - means)[there], (made - others)[there]
    size = float(other.square().sum())
    factor = float((centred * other).sum()) / size if size else 0.0
    left, whole = (float(one.square().mean().sqrt()) for one in (centred - factor * other, centred))
    if not factor or not whole or left > EXACT * whole:
        return None
    return factor, means - factor * others, EXACT * whole


def _with(added: Tensor, name: str, other: Tensor) -> str:
    if other.unique().numel() < 2:
        return ""
    return f"; rank correlation with {name} {rank_correlation(added, other.double()):.2f}"
