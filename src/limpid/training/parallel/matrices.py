"""How the processes that share a matrix cut it, and what stands beside it: low-rank factors, magnitudes, a bias."""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel


class Columns(ColwiseParallel):
    """Each process makes some features: of B A those rows of B, and all of A, which is small."""

    def _partition_linear_fn(self, name: str, module: nn.Module, device_mesh: DeviceMesh) -> None:
        if name != "lora_a":
            _cut(module, device_mesh, 0, [name for name, _ in module.named_parameters(recurse=False)])


class Rows(RowwiseParallel):
    """Each process reads some features, and the results are added up: of B A those columns of A, and all of B."""

    def _partition_linear_fn(self, name: str, module: nn.Module, device_mesh: DeviceMesh) -> None:
        if name in ("", "lora_a"):
            _cut(module, device_mesh, 1, ["weight"])


def _cut(module: nn.Module, ranks: DeviceMesh, axis: int, names: list[str]) -> None:
    """Cut parameters along an axis; what is not cut is the same on every process."""
    for name in names:
        parameter = module.get_parameter(name)
        part = distribute_tensor(parameter, ranks, [Shard(axis)], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(part, requires_grad=parameter.requires_grad))
