"""Some entries of every weight, read together: how the description follows weights from step to step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from limpid.doctor.devices import joined, on_host
from limpid.doctor.weights import sample

if TYPE_CHECKING:
    from limpid.doctor.model_info import ModelInfo

ELEMENTS, TENSORS, CLOSER = 16, 512, 256
"""Entries that are read of a tensor at every step, tensors of which any are, and entries that are read at the end."""
BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
"""As what numpy reads formats."""
ZERO, FEW, MANY = 0.1, 8, 24
"""Share of zeros from which on, and different numbers up to which they are told, of so many entries or more."""


class Entries:
    """Up to 16 entries of each floating tensor of a model, at an odd distance, so that they lie in many columns."""

    def __init__(self, info: ModelInfo) -> None:
        usable = {} if info.sharded else info.parameters
        found = [
            (name, p)
            for name, p in usable.items()
            if not is_lazy(p) and not p.is_meta and p.numel() and p.is_floating_point()
        ]
        chosen = found[:: max(1, -(-len(found) // TENSORS))]
        self.names = [name for name, _ in chosen]
        self.tensors: list[Tensor] = [p for _, p in chosen]
        self.on_host = all(map(on_host, self.tensors))
        self._at: list[int] = []
        self._parts: list[Tensor] = []
        self._arrays: list[np.ndarray] = []

    @cached_property
    def sizes(self) -> list[int]:
        """How many entries are read of each."""
        return [len(part) for part in map(_spread, self.tensors)]

    def now(self) -> Tensor:
        """All of them as they are, flat, on the device of the first: a copy."""
        at = [one.data_ptr() for one in self.tensors]
        if at != self._at:  # none yet, or a tensor lies elsewhere
            parts = [_spread(one) for one in self.tensors]
            shared = all(part.data_ptr() == place for part, place in zip(parts, at, strict=True))
            self._parts, self._at = parts, at if shared else []
            kinds = {part.dtype for part in parts}
            bits = BITS.get(parts[0].dtype) if self.on_host and len(kinds) == 1 else None
            self._arrays = [] if bits is None else [part.view(bits).numpy() for part in parts]
        if self._arrays:  # torch copies parts with gaps one by one, at some µs each
            return torch.from_numpy(np.concatenate(self._arrays)).view(self._parts[0].dtype)
        return joined(self._parts)

    def changed(self, one: Tensor, other: Tensor, beyond: float) -> dict[int, float]:
        """By number of the tensor, how far two readings lie apart over the size of the first, where beyond so much."""
        counts = torch.tensor(self.sizes, device=one.device)
        of = torch.arange(len(counts), device=one.device).repeat_interleave(counts)
        nothing = torch.zeros(len(counts), dtype=torch.double, device=one.device)
        moved, sizes = (nothing.index_add(0, of, x.double().square()) for x in (one - other, one))
        far = torch.where(sizes > 0, (moved / sizes.clamp(min=1e-300)).sqrt(), moved.sqrt())
        return {i: far for i, far in enumerate(far.tolist()) if far > beyond}

    def zeros(self) -> dict[str, float]:
        """The share of exact zeros, of matrices with some."""
        shares = {name: float((values == 0).double().mean()) for name, values in self._matrices()}
        return {name: share for name, share in shares.items() if share > ZERO}

    def few_values(self) -> dict[str, int]:
        """How many different numbers beside 0, of matrices with few."""
        others = {name: values[values != 0] for name, values in self._matrices()}
        counts = {name: len(values.unique()) for name, values in others.items() if len(values) >= MANY}
        return {name: count for name, count in counts.items() if count <= FEW}

    def _matrices(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in zip(self.names, self.tensors, strict=True):
            if tensor.ndim > 1 and tensor.numel() >= MANY:
                yield name, _spread(tensor, CLOSER)

    def of(self, numbers: Sequence[int]) -> Tensor:
        """Which entries of a reading are of these tensors."""
        chosen = torch.zeros(len(self.sizes), dtype=torch.bool)
        chosen[list(numbers)] = True
        return chosen.repeat_interleave(torch.tensor(self.sizes))


def _spread(tensor: Tensor, count: int = ELEMENTS) -> Tensor:
    """Entries that share memory with a tensor where it lies in one piece."""
    held = tensor.detach()
    spacing = (held.numel() - 1) // count
    if spacing > 1 and held.is_contiguous():
        return held.as_strided((count,), (spacing - (spacing % 2 == 0),))
    return sample(held, count)
