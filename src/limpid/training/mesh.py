"""The processes that train one model together: which device and rank this one has, who writes, what all agree on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn

from limpid.errors import ConfigError
from limpid.model.transformer import Hidden

T = TypeVar("T")


def best_device() -> torch.device:
    """The graphics processor when there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def is_main_process() -> bool:
    """Whether this process writes and speaks, as torchrun numbers them; known before any of them meet."""
    return int(os.environ.get("RANK", "0")) == 0


@dataclass(frozen=True)
class Mesh:
    """This process among those that train together. One alone wraps nothing and asks nobody."""

    device: torch.device = field(default_factory=best_device)
    rank: int = 0
    world: int = 1
    local_rank: int = 0  # on its machine

    @property
    def is_main(self) -> bool:
        """Whether this process decides, writes and speaks."""
        return self.rank == 0

    def agree(self, value: T) -> T:
        """The main process's value, on every process."""
        if self.world == 1:
            return value
        import torch.distributed as dist

        shared: list[T] = [value]
        dist.broadcast_object_list(shared, src=0, device=torch.device("cpu"))
        return shared[0]

    def decided(self, work: Callable[[], T]) -> T:
        """What the main process makes of `work`, which it alone does, on every process; or its error."""
        if self.world == 1:
            return work()
        made: tuple[T | None, Exception | None] = (None, None)
        if self.is_main:
            try:
                made = (work(), None)
            except Exception as error:  # the others wait for an answer, whatever it is
                made = (None, error)
        answer, failed = self.agree(made)
        if failed is not None:
            raise failed
        return answer  # type: ignore[return-value]

    def all_sum(self, tensor: Tensor) -> Tensor:
        """The sum of every process's tensor, on every process."""
        if self.world == 1:
            return tensor
        import torch.distributed as dist

        total = tensor.clone()
        dist.all_reduce(total)
        return total

    def any(self, flag: bool) -> bool:
        """Whether the flag is up on any process."""
        return flag if self.world == 1 else bool(self.all_sum(torch.tensor(float(flag))) > 0)

    def wait(self) -> None:
        """Until every process is here."""
        if self.world > 1:
            import torch.distributed as dist

            dist.barrier()

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This process's items, dealt out in turn."""
        return items if self.world == 1 else items[self.rank :: self.world]

    def share_evenly(self, items: Sequence[T]) -> Iterator[tuple[T, bool]]:
        """The same, as many for each process, which all must take part; and whether an item is not one too many."""
        for place in range(self.rank, -(-len(items) // self.world) * self.world, self.world):
            yield items[min(place, len(items) - 1)], place < len(items)

    @contextlib.contextmanager
    def main_first(self) -> Iterator[None]:
        """What the main process does before the others begin: they find what it left."""
        if not self.is_main:
            self.wait()
        try:
            yield
        finally:
            if self.is_main:
                self.wait()

    def joined(self, mine: Sequence[float], count: int) -> tuple[float, ...]:
        """One number for each of `count` items, from the processes that `share` dealt them to."""
        if self.world == 1:
            return tuple(mine)
        numbers = torch.zeros(count, dtype=torch.float64)
        numbers[self.rank :: self.world] = torch.tensor(mine, dtype=torch.float64)
        return tuple(self.all_sum(numbers).tolist())

    def shard(self, model: nn.Module) -> None:
        """Spread parameters, gradients and moments over the processes: PyTorch's FSDP2, block by block."""
        if self.world == 1:
            return
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard
        from torch.utils._pytree import SUPPORTED_NODES, register_dataclass

        ranks = init_device_mesh(self.device.type, (self.world,))
        for part in (*model.blocks, model):  # type: ignore[misc]
            fully_shard(part, mesh=ranks)
            assert isinstance(part, FSDPModule)
            part.set_gradient_divide_factor(1.0)  # each loss is a share of the step's: gradients add up,
            part.set_force_sum_reduction_for_comms(True)  # and gloo knows no sum with a factor
        if Hidden not in SUPPORTED_NODES:
            register_dataclass(Hidden)  # FSDP looks for tensors in what a forward pass returns, to prepare for backward

    @contextlib.contextmanager
    def unsharded_at_most(self, model: nn.Module) -> Iterator[None]:
        """Put back what a forward pass without a backward pass leaves in one piece."""
        yield
        if self.world > 1:
            model.reshard()  # type: ignore[operator]

    def gathered(self, model: nn.Module) -> dict[str, Tensor]:
        """The parameters in one piece, in the main process's memory; of the others none."""
        parameters = ((name, parameter.detach()) for name, parameter in model.named_parameters())
        if self.world == 1:
            return dict(parameters)
        pieces = ((name, whole(tensor)) for name, tensor in parameters)
        return {name: tensor.cpu() for name, tensor in pieces if self.is_main}

    def require_one(self, what: str, instead: str) -> None:
        """Raises  ConfigError when there are several processes"""
        if self.world > 1:
            raise ConfigError(f"{what} needs one process, and there are {self.world}: {instead}")


def whole(tensor: Tensor) -> Tensor:
    """A tensor put together where it is spread over processes, all of which must ask; else itself."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def spread_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, known to every process, spread over them as `like` is; itself where that is not spread."""
    if not hasattr(like, "to_local"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)  # type: ignore[attr-defined]


@contextlib.contextmanager
def open_mesh() -> Iterator[Mesh]:
    """The mesh that this process belongs to: that of torchrun, or of a process group there is already; else its own."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        yield _of_group()
        return
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Mesh()
        return
    on_cuda = torch.cuda.is_available()
    if on_cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_cuda else "gloo")
    try:
        yield _of_group()
    finally:
        dist.destroy_process_group()


def _of_group() -> Mesh:
    import torch.distributed as dist

    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    return Mesh(device, dist.get_rank(), dist.get_world_size(), local_rank)
