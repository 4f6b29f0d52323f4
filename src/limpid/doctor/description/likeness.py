"""A tensor held against another that might be the same one: in another order, all but some rows, nearly."""

from __future__ import annotations

import torch
from torch import Tensor

from limpid.doctor.description.words import counted, number

ROOM = 2**22
"""Numbers that are compared to find rows of one tensor in another."""
HALF = 0.5
"""Share of equal numbers, and correlation, from which on two tensors are held to have to do with each other."""


def same_rows(kept: Tensor, own: Tensor, known: str) -> str:
    """Where its rows are those of another, which is called `known`: all, in another order, most; empty if not."""
    if 0 in (own.ndim, kept.ndim) or own.shape[1:] != kept.shape[1:] or own.dtype != kept.dtype or len(own) < len(kept):
        return ""
    rows, others = _rows(kept, own)
    equal = int((rows == others).all(1).sum())
    if equal == len(kept):
        return known
    if torch.equal(rows.double().sum(1).sort().values, others.double().sum(1).sort().values):
        return f"the rows of {known}, in another order"
    if equal > HALF * len(kept):
        return f"{known}, but for {counted(len(kept) - equal, 'row')} of {number(len(kept))}"
    return ""


def shared_rows(kept: Tensor, own: Tensor, known: str) -> str:
    """How many rows of measured numbers it has from another; empty where that can not be said."""
    if min(own.ndim, kept.ndim) < 2 or own.shape[1:] != kept.shape[1:] or own.dtype != kept.dtype:
        return ""
    if not kept.is_floating_point() or len(own) * kept.numel() > ROOM:
        return ""
    rows, others = kept.detach().reshape(len(kept), -1), own.detach().reshape(len(own), -1)
    shared = int((rows[:, None] == others[None]).all(2).any(1).sum())
    return f"{number(shared) if shared else 'none'} of its rows {'is' if shared < 2 else 'are'} among {known}"


def likeness(kept: Tensor, own: Tensor, known: str) -> str:
    """How near other rows are to it; empty where they are not."""
    if 0 in (own.ndim, kept.ndim) or own.shape[1:] != kept.shape[1:] or own.dtype != kept.dtype or len(own) < len(kept):
        return ""
    rows, others = _rows(kept, own)
    if not kept.is_floating_point():
        same = float((rows == others).float().mean())
        return f"{same:.0%} of them equal to {known}" if same > HALF else ""
    pair = torch.stack([rows.flatten().double(), others.flatten().double()])
    if pair.shape[1] < 3 or not bool((pair.std(1) > 0).all()):
        return ""
    together = float(torch.corrcoef(pair)[0, 1])
    return f"correlation {together:.3g} with {known}" if together > HALF else ""


def _rows(kept: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    return own.detach()[: len(kept)].reshape(len(kept), -1), kept.detach().reshape(len(kept), -1)
