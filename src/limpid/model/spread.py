"""Tensors that are spread over processes (DTensor), and whole ones."""

from __future__ import annotations

from torch import Tensor


def whole(tensor: Tensor) -> Tensor:
    """A tensor put together where it is spread over processes, all of which must ask; else itself."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def spread_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, known to every process, spread over them as `like` is; itself where that is not spread."""
    if not hasattr(like, "to_local"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)  # type: ignore[attr-defined]


def own_part(tensor: Tensor) -> Tensor:
    """This process's part of a tensor that is spread over several; else itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
