"""Memory as it was at a call of the past; and numbers in float64 that lie beside memory, by its address."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


class Past:
    """What memory held, going back call by call; the engine's own is not touched."""

    def __init__(self) -> None:
        self.copies: dict[int, Tensor] = {}  # of memory that was written over since, by its place

    def value(self, tensor: Tensor) -> Tensor:
        """Its numbers as they were then."""
        place = place_of(tensor)
        return tensor if place not in self.copies else _like(tensor, self.copies[place])

    def put_back(self, tensor: Tensor, numbers: Tensor) -> None:
        """Go back before these numbers were written over."""
        place = place_of(tensor)
        if place not in self.copies:
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
            self.copies[place] = whole.clone()
        _like(tensor, self.copies[place]).copy_(numbers)


def place_of(tensor: Tensor) -> int:
    """Where its memory begins."""
    return tensor.untyped_storage().data_ptr()


def _like(tensor: Tensor, held: Tensor) -> Tensor:
    """The same view of other memory."""
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(held.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


class Beside:
    """A number in float64 for every entry of memory, of complex ones two."""

    def __init__(self) -> None:
        self.of: dict[int, Tensor] = {}

    def has(self, tensor: Tensor) -> bool:
        return place_of(tensor) in self.of

    def read(self, tensor: Tensor) -> Tensor:
        """What stands in the place of a view, as a copy."""
        return self.view(tensor).clone()

    def view(self, tensor: Tensor) -> Tensor:
        """What stands in the place of a view."""
        flat = self.of[place_of(tensor)]
        if tensor.is_complex():
            flat = torch.view_as_complex(flat.view(-1, 2))
        return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


class Exact(Beside):
    """What memory would hold, had nothing been rounded since a step began: whole numbers and truths too.

    As long as the memory is alive: its place may be another's afterwards.
    """

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, StorageWeakRef] = {}
        self.size = 0  # bytes

    def has(self, tensor: Tensor) -> bool:
        place = place_of(tensor)
        if place in self.of and self.alive[place].expired():
            self._drop(place)
        return place in self.of

    def write(self, tensor: Tensor, numbers: Tensor) -> None:
        """Numbers that a call makes there; around them, what the engine has."""
        if not self.has(tensor):
            place = place_of(tensor)
            real = torch.view_as_real(tensor).dtype if tensor.is_complex() else tensor.dtype
            whole = torch.empty(0, dtype=real, device=tensor.device).set_(tensor.untyped_storage())
            self.of[place] = whole.to(torch.float64 if whole.is_floating_point() else whole.dtype, copy=True)
            self.alive[place] = StorageWeakRef(tensor.untyped_storage())
            self.size += self.of[place].nbytes
        self.view(tensor).copy_(numbers)

    def forget(self, tensor: Tensor) -> None:
        """What its memory holds is what the engine has."""
        if self.has(tensor):
            self._drop(place_of(tensor))

    def sweep(self) -> None:
        """Let go of what lies beside memory that is no more."""
        for place in [place for place, one in self.alive.items() if one.expired()]:
            self._drop(place)

    def _drop(self, place: int) -> None:
        self.size -= self.of.pop(place).nbytes
        del self.alive[place]


class Sensitivities(Beside):
    """∂Q/∂ of every entry; what is not there is 0."""

    def clear(self, tensor: Tensor) -> None:
        """Its numbers were written here: before, they did not matter."""
        self.view(tensor).zero_()

    def forget(self, tensor: Tensor) -> None:
        """Its memory began here."""
        self.of.pop(place_of(tensor), None)

    def add(self, tensor: Tensor, more: Tensor) -> None:
        """Another part of it, of the view's shape; entries that a view has several times add up."""
        place = place_of(tensor)
        if place not in self.of:
            unit = tensor.element_size() // (2 if tensor.is_complex() else 1)
            count = tensor.untyped_storage().nbytes() // unit
            self.of[place] = torch.zeros(count, dtype=torch.float64, device=tensor.device)
        repeated = [axis for axis, step in enumerate(tensor.stride()) if step == 0 and tensor.shape[axis] > 1]
        if repeated:
            more = more.sum(repeated, keepdim=True)
            tensor = tensor[tuple(slice(0, 1) if axis in repeated else slice(None) for axis in range(tensor.ndim))]
        if torch._debug_has_internal_overlap(tensor) == 0 or tensor.is_complex():
            self.view(tensor).add_(more)
            return
        flat = self.of[place]
        index = torch.arange(flat.numel(), device=flat.device)
        index = index.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        flat.index_add_(0, index.reshape(-1), more.reshape(-1))
