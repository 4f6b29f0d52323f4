"""What a narrow format does to an update: lost when it is below half a step of the format."""

from __future__ import annotations

import torch
from torch import Tensor

from limpid.doctor.model_info import local

SAMPLE = 4096


def sample(tensor: Tensor, count: int = SAMPLE) -> Tensor:
    """Up to `count` elements of what this process holds, spread evenly, flat."""
    flat = local(tensor.detach()).reshape(-1)
    return flat if flat.numel() <= count else flat[:: flat.numel() // count][:count]


def lost_share(weight: Tensor, update: float) -> float:
    """Share of the elements that an update of this size, either way, leaves as they are."""
    w = sample(weight)
    down, up = ((w.float() + sign * update).to(w.dtype) == w for sign in (-1.0, 1.0))
    return float((down.double().mean() + up.double().mean()) / 2)


def spacing(value: float, dtype: torch.dtype) -> float:
    """Distance of neighbouring numbers of a format at a value."""
    return float(torch.finfo(dtype).eps) * 2.0 ** torch.tensor(abs(value) or 1.0).log2().floor().item()
