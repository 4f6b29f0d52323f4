"""What is different where a model does not lie on the host: reading waits, and an index out of range is fatal."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from limpid.doctor.finding import is_lost
from limpid.doctor.weights import local

aten = torch.ops.aten
OWN_NUMBERS = ("cuda", "xpu")
"""Devices with random numbers of their own, whose state is read and set device by device."""


def on_host(tensor: Tensor) -> bool:
    """Whether its numbers lie in the memory of the host, where reading them waits for nothing."""
    return tensor.device.type == "cpu"


class HostCopies:
    """Numbers of a step's tensors on the host, each copied once; a tensor that the next step has again is not anew."""

    def __init__(self, earlier: HostCopies | None = None) -> None:
        self._own: dict[int, tuple[weakref.ref[Tensor], int, Tensor]] = {}  # by identity: version, copy
        self._earlier = {} if earlier is None else earlier._own

    def has(self, tensor: Tensor) -> bool:
        """Whether this step has asked for it."""
        return self._known(self._own, tensor) is not None

    def of(self, tensor: Tensor) -> Tensor:
        """The copy, made now where there is none."""
        copy = self._known(self._own, tensor)
        if copy is None:
            copy = self._known(self._earlier, tensor)
            copy = tensor.detach().cpu() if copy is None else copy
            self._own[id(tensor)] = weakref.ref(tensor), _version(tensor), copy
        return copy

    @staticmethod
    def _known(copies: dict[int, tuple[weakref.ref[Tensor], int, Tensor]], tensor: Tensor) -> Tensor | None:
        held, version, copy = copies.get(id(tensor), (None, 0, None))
        return copy if held is not None and held() is tensor and version == _version(tensor) else None


def _version(tensor: Tensor) -> int:
    """How often it was written over, where that is counted."""
    return 0 if tensor.is_inference() else tensor._version


def same_numbers(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal, wherever they lie; of what processes share, this one's part."""
    shared = [hasattr(tensor, "to_local") for tensor in (one, other)]
    if any(shared):
        return all(shared) and one.shape == other.shape and same_numbers(local(one), local(other))
    return one.shape == other.shape and torch.equal(one, other.to(one.device))


def joined(parts: list[Tensor]) -> Tensor:
    """Tensors in a row, on the device of the first."""
    return torch.cat([one.to(parts[0].device) for one in parts]) if parts else torch.zeros(0)


def together(parts: list[Tensor]) -> list[Tensor]:
    """Tensors on the host: those that lie elsewhere by one copy for each device and format, flat."""
    found = list(parts)
    places: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for place, part in enumerate(parts):
        if not on_host(part):
            places.setdefault((part.device, part.dtype), []).append(place)
    for chosen in places.values():
        flat = [parts[place].detach().reshape(-1) for place in chosen]
        copies = torch.cat(flat).cpu().split([len(one) for one in flat])
        for place, copy in zip(chosen, copies, strict=True):
            found[place] = copy
    return found


def loss_of(error: BaseException | None) -> BaseException | None:
    """The error that says that the device is lost, where one does; libraries on CUDA fail with words of their own."""
    if is_lost(error) or not isinstance(error, RuntimeError) or not torch.cuda.is_initialized():
        return error if is_lost(error) else None
    try:
        torch.cuda.synchronize()
    except RuntimeError as first:
        return first if is_lost(first) else None
    return None


def random_state(device: torch.device) -> tuple[Tensor, ...]:
    """Of the host's random numbers, and of those of the device, where it has its own."""
    if device.type not in OWN_NUMBERS:
        return (torch.get_rng_state(),)
    return torch.get_rng_state(), torch.get_device_module(device).get_rng_state(device)


def set_random_state(device: torch.device, state: tuple[Tensor, ...]) -> None:
    torch.set_rng_state(state[0])
    if len(state) > 1:
        torch.get_device_module(device).set_rng_state(state[1], device)


def must_lie_in_range(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Say of an index that lies outside what the CPU would say: a device that is handed it is lost.

    Raises  IndexError
    """
    check = CHECKS.get(func)
    if check is None or not any(isinstance(one, Tensor) and not on_host(one) for one in args):
        return
    for values, low, size, what in check(*args, **kwargs):
        if values.numel():
            outside = values[(values < low) | (values >= size)]
            if outside.numel():
                raise IndexError(what.format(int(outside[0])))


Checked = list[tuple[Tensor, int, int, str]]
"""Indices, the least that is allowed, what they must lie below, and what the CPU says of one that does not."""


def _embedding(weight: Tensor, indices: Tensor, *_: Any, **__: Any) -> Checked:
    return [(indices, 0, len(weight), "index out of range in self")]


def _nll_loss(
    logarithms: Tensor, target: Tensor, weight: Any = None, reduction: int = 1, ignored: int = -100, **_: Any
) -> Checked:
    classes = logarithms.shape[1] if logarithms.ndim > 1 else len(logarithms)
    return [(target[target != ignored], 0, classes, "Target {} is out of bounds.")]


def _along(tensor: Tensor, axis: int, index: Tensor, *_: Any, **__: Any) -> Checked:
    size = tensor.shape[axis] if tensor.ndim else 1
    return [(index, 0, size, f"index {{}} is out of bounds for dimension {axis} with size {size}")]


def _index(tensor: Tensor, indices: list[Tensor | None], *_: Any, **__: Any) -> Checked:
    found: Checked = []
    axis = 0
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            axis += index.ndim
            continue
        if index is not None:
            size = tensor.shape[axis]
            found.append((index, -size, size, f"index {{}} is out of bounds for dimension {axis} with size {size}"))
        axis += 1
    return found


CHECKS: dict[Any, Callable[..., Checked]] = {
    aten.embedding.default: _embedding,
    aten.nll_loss_forward.default: _nll_loss,
    aten.nll_loss2d_forward.default: _nll_loss,
    aten.gather.default: _along,
    aten.scatter.src: _along,
    aten.scatter.value: _along,
    aten.scatter_add.default: _along,
    aten.index_select.default: _along,
    aten.index_add.default: _along,
    aten.index.Tensor: _index,
    aten.index_put.default: _index,
    aten.index_put_.default: _index,
}
