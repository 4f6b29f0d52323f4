"""The processes that train one model together: which device and place each has, who writes, what all agree on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from limpid.config.parallel import AXES, Parallel, parallel_of
from limpid.errors import ConfigError, DataError
from limpid.model.spread import whole
from limpid.training import alone
from limpid.training.elastic import meeting
from limpid.training.heartbeat import Heartbeat, Phase
from limpid.training.parallel import sharding
from limpid.training.parallel import tensor as tensor_parallel

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from limpid.model import Transformer
    from limpid.training.parallel.stage import Stage

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
    parallel: Parallel = field(default_factory=Parallel)  # how they divide the step
    heartbeat: Heartbeat | None = None  # by which several tell each other where they stand
    group: ProcessGroup | None = None  # in which they agree; None is PyTorch's default

    def laid_out(self, text: str) -> Mesh:
        """The same processes along the axes that `--parallel` names; without a text all of them shard.

        Raises  ConfigError where the axes multiply to another number of processes
        """
        return replace(self, parallel=parallel_of(text, self.world))

    def beside(self) -> Mesh:
        """The same processes, who agree apart: a thread of each may wait there while they train."""
        if self.world == 1:
            return self
        import torch.distributed as dist
        from torch.distributed import distributed_c10d

        world = distributed_c10d._get_default_group()
        waits = world._get_backend(torch.device("cpu")).options._timeout  # as long as the others
        return replace(self, group=dist.new_group(backend="gloo", timeout=waits))

    def at(self, step: int, phase: Phase) -> None:
        """Tell the other processes what this one does from here on."""
        if self.heartbeat is not None:
            self.heartbeat.at(step, phase)

    @property
    def is_main(self) -> bool:
        """Whether this process decides, writes and speaks."""
        return self.rank == 0

    @cached_property
    def axes(self) -> DeviceMesh:
        """PyTorch's mesh of the axes along which there are several processes; all of them must ask at once."""
        from torch.distributed.device_mesh import init_device_mesh

        sizes = {axis: getattr(self.parallel, axis) for axis in AXES}
        held = [axis for axis in AXES if sizes[axis] > 1 or (axis == "shard" and sizes["replicate"] > 1)]
        axes = init_device_mesh(self.device.type, tuple(sizes[axis] for axis in held), mesh_dim_names=tuple(held))
        if self.heartbeat is not None:
            self.wait_at_most(self.heartbeat.patience)  # new groups wait for PyTorch's own 30 minutes
        return axes

    @property
    def data_world(self) -> int:
        """How many parts the rows of a step are dealt out in."""
        return self.parallel.data

    @property
    def data_rank(self) -> int:
        """Which of these parts this process works on, alone or with those along the other axes."""
        return self.rank // self.parallel.tensor % self.parallel.data

    @property
    def stage(self) -> int:
        """Which stage of the pipeline this process is."""
        return self.rank // (self.parallel.tensor * self.parallel.data)

    @property
    def answers(self) -> bool:
        """Whether this process says what came of its rows: one of those that share them, at the pipeline's end."""
        last = self.parallel.holder(self.parallel.stages - 1)
        return self.rank % self.parallel.tensor == 0 and self.stage == last

    def agree(self, value: T) -> T:
        """The main process's value, on every process."""
        if self.world == 1:
            return value
        import torch.distributed as dist

        shared: list[T] = [value]
        dist.broadcast_object_list(shared, src=0, group=self.group, device=torch.device("cpu"))
        return shared[0]

    def decided(self, work: Callable[[], T]) -> T:
        """What the main process makes of `work`, which it alone does, on every process; or its error."""
        if self.world == 1:
            return work()
        made: tuple[T | None, Exception | None] = (None, None)
        if self.is_main:
            with alone.working(self._patience):
                try:
                    made = (work(), None)
                except Exception as error:  # the others wait for an answer, whatever it is
                    made = (None, error)
        else:
            alone.wait(self._patience)
        answer, failed = self.agree(made)
        if failed is not None:
            raise failed
        return answer  # type: ignore[return-value]

    @property
    def _patience(self) -> float | None:
        """Seconds that the others wait for what the main process does alone; None where none waits, or not long.

        Threads that agree apart do nothing that takes long.
        """
        return None if self.heartbeat is None or self.group is not None else self.heartbeat.patience

    def all_sum(self, tensor: Tensor) -> Tensor:
        """The sum of every process's tensor, on every process."""
        if self.world == 1:
            return tensor
        import torch.distributed as dist

        total = tensor.clone()
        dist.all_reduce(total, group=self.group)
        return total

    def any(self, flag: bool) -> bool:
        """Whether the flag is up on any process."""
        return flag if self.world == 1 else bool(self.all_sum(torch.tensor(float(flag))) > 0)

    def wait(self) -> None:
        """Until every process is here."""
        if self.world > 1:
            import torch.distributed as dist

            dist.barrier(self.group)

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This process's items, dealt out in turn."""
        return items if self.world == 1 else items[self.data_rank :: self.data_world]

    def share_evenly(self, items: Sequence[T]) -> Iterator[tuple[T, bool]]:
        """The same, as many for each process, which all must take part; and whether an item is not one too many."""
        for place in range(self.data_rank, -(-len(items) // self.data_world) * self.data_world, self.data_world):
            yield items[min(place, len(items) - 1)], place < len(items)

    @contextlib.contextmanager
    def main_first(self) -> Iterator[None]:
        """What the main process does before the others begin: they find what it left."""
        if self.is_main:
            with alone.working(self._patience):
                yield
        else:
            alone.wait(self._patience)
            yield

    def joined(self, mine: Sequence[float], count: int) -> tuple[float, ...]:
        """One number for each of `count` items, from the processes that `share` dealt them to."""
        if self.world == 1:
            return tuple(mine)
        numbers = torch.zeros(count, dtype=torch.float64)
        if self.answers:
            numbers[self.data_rank :: self.data_world] = torch.tensor(mine, dtype=torch.float64)
        return tuple(self.all_sum(numbers).tolist())

    def spread(self, model: Transformer | Stage) -> None:
        """Divide a model, or a stage of one: matrices along `tensor`, then parameters along `replicate` and `shard`."""
        if self.parallel.tensor > 1:
            tensor_parallel.divide(model, self.axes["tensor"])
        if self.parallel.data > 1:
            held = ("replicate", "shard") if self.parallel.replicate > 1 else ("shard",)
            sharding.divide(model, self.axes[held], self.parallel)

    def before_backward(self, model: nn.Module, *, last: bool) -> None:
        """Say whether the next backward pass is the last one of the step: some gradients are added up only then."""
        if self.parallel.data > 1:
            sharding.before_backward(model, self.parallel, last=last)

    def after_backward(self, model: nn.Module) -> None:
        """Bring every gradient into the places of its parameter, once all of the step are there."""
        if self.parallel.tensor > 1:
            tensor_parallel.settle(model)

    @contextlib.contextmanager
    def unsharded_at_most(self, model: Transformer) -> Iterator[None]:
        """Put back what a forward pass without a backward pass leaves in one piece."""
        yield
        if self.parallel.data > 1:
            sharding.put_back(model)

    def gathered(self, model: nn.Module) -> dict[str, Tensor]:
        """The parameters in one piece, in the main process's memory; of the others none."""
        return self.put_together({name: parameter.detach() for name, parameter in model.named_parameters()})

    def put_together(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors that the processes share, in one piece, in the main process's memory; of the others none."""
        if self.world == 1:
            return tensors
        pieces = ((name, whole(tensor)) for name, tensor in tensors.items())
        speaks = self.rank % (self.parallel.tensor * self.parallel.data) == 0  # the first of its stage
        mine = {name: tensor.cpu() for name, tensor in pieces if speaks}
        if self.parallel.pipeline == 1:
            return mine
        import torch.distributed as dist

        every: list[dict[str, Tensor]] = [{}] * self.world
        dist.gather_object(mine, every if self.is_main else None, dst=0)
        return {name: tensor for some in every for name, tensor in some.items()}

    def named_by_any(self, names: Iterable[str]) -> list[str]:
        """The names that any process has: those of a pipeline hold different parameters."""
        if self.parallel.pipeline == 1:
            return list(names)
        import torch.distributed as dist

        every: list[list[str]] = [[]] * self.world
        dist.all_gather_object(every, list(names), group=self.group)
        return list(dict.fromkeys(name for some in every for name in some))

    def wait_at_most(self, seconds: float) -> None:
        """How long a process waits for another before that is an error."""
        if self.world > 1:
            from torch.distributed import distributed_c10d

            for group in distributed_c10d._world.pg_map:
                distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)
        if self.heartbeat is not None:
            self.heartbeat.patience = seconds

    def require_alike(self, what: str, mine: str) -> None:
        """Raises  DataError when a process holds something else than the main one"""
        if self.world == 1:
            return
        import torch.distributed as dist

        every = [""] * self.world
        dist.all_gather_object(every, mine)
        odd = [rank for rank, theirs in enumerate(every) if theirs != every[0]]
        if odd:
            raise DataError(
                f"rank {odd[0]} reads other {what} than rank 0 ({every[odd[0]]} and {every[0]}): give every machine "
                "the same files"
            )

    def require_one(self, what: str, instead: str) -> None:
        """Raises  ConfigError when there are several processes"""
        if self.world > 1:
            raise ConfigError(f"{what} needs one process, and there are {self.world}: {instead}")


@contextlib.contextmanager
def open_mesh() -> Iterator[Mesh]:
    """The mesh that this process belongs to: that of torchrun, or of a process group there is already; else its own."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        yield from _of_group()
        return
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Mesh()
        return
    on_cuda = torch.cuda.is_available()
    if on_cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_cuda else "gloo", **meeting())
    try:
        yield from _of_group()
    finally:
        dist.destroy_process_group()


def _of_group() -> Iterator[Mesh]:
    """This process in the group that there is, telling the others where it stands."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    rank, world = dist.get_rank(), dist.get_world_size()
    heartbeat = Heartbeat(distributed_c10d._get_default_store(), rank, world) if world > 1 else None
    try:
        yield Mesh(device, rank, world, local_rank, heartbeat=heartbeat).laid_out("")
    finally:
        if heartbeat is not None:
            heartbeat.end()
