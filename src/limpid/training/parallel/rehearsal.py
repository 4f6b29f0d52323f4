"""One step of one rank among many that are not there: what it would hold and send.

PyTorch's fake process group answers at once whatever is asked, and fake tensors have shapes and no numbers: the model,
the layout and the order of the step are the real ones.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from limpid.config import TrainConfig
from limpid.config.options import require
from limpid.config.parallel import Parallel, parallel_of, require_divides
from limpid.data.batches import MicroBatch
from limpid.errors import ConfigError
from limpid.model import Transformer
from limpid.objectives import POLICY
from limpid.planning.communication import Links
from limpid.training.mesh import Mesh
from limpid.training.parallel.held import holding
from limpid.training.precision import Arithmetic, arithmetic
from limpid.training.state import State, set_up
from limpid.training.step import backward
from limpid.training.update import make_optimizer


@dataclass(frozen=True, order=True)
class Sent:
    """Collectives of one kind over groups of one size."""

    kind: str
    ranks: int
    """Of the group."""
    span: int
    """Ranks from its first to its last: those that a node would have to hold."""
    count: int
    bytes: int
    """That one rank sends for them, over a ring."""


@dataclass(frozen=True)
class Rehearsal:
    """What one rank holds and sends in a step."""

    parallel: Parallel
    ranks: int
    held: Mapping[str, int]
    """Bytes of its own parts of weights, gradients and moments."""
    peak: int
    """Bytes of all tensors at the worst moment of the step."""
    sent: tuple[Sent, ...]
    own_tokens: int
    """Of those that share its rows, in a step."""

    @property
    def sent_bytes(self) -> int:
        """What one rank sends in a step."""
        return sum(one.bytes for one in self.sent)

    def seconds(self, links: Links) -> float:
        """How long sending takes in a step."""
        return sum(one.bytes / links.of(one.span) for one in self.sent)

    @property
    def tokens(self) -> int:
        """Of all ranks in a step."""
        return self.parallel.data * self.own_tokens

    def document(self) -> dict[str, Any]:
        """As plain values."""
        return {"parallel": str(self.parallel), "ranks": self.ranks, **self.held, "peak": self.peak,
                "tokens": self.tokens, "sent": [vars(one) for one in self.sent]}  # fmt: skip


def rehearse(config: TrainConfig, ranks: int, parallel: str = "", micro_batches: int = 1) -> Rehearsal:
    """One step of rank 0 among `ranks`, laid out as `--parallel` says; nothing is computed.

    micro_batches  that each rank takes
    Raises  ConfigError for a layout that the model cannot take, and where this process belongs to a group already
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    asked = parallel_of(parallel, ranks)
    require_divides(config.model, asked)
    require(
        asked.pipeline == 1, f"pipeline is {asked.pipeline}, and stages are not rehearsed: divide by the other axes"
    )
    narrow = config.model.base_precision
    require(narrow == "fp32", f"base_precision is {narrow}, which one process alone can hold: leave it out")
    formats = arithmetic(config.run.precision)
    with _fake_group(ranks):
        mesh = Mesh(torch.device("cpu"), 0, ranks).laid_out(parallel)
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        with fake:
            model = _model(config, formats)
        mesh.spread(model)  # which makes meshes of numbers
        batch = _batch(config, micro_batches * mesh.data_world)
        with fake:
            optimizer = make_optimizer(model, config.update)
            unscaled = torch.amp.GradScaler(mesh.device.type, enabled=False)  # a scale is a number
            state = State({POLICY: model}, optimizer, unscaled, mesh=mesh)
            _step(state, batch, config)  # the optimizer has its memory from here on
            sending = Sending()
            with holding() as memory, sending:
                for one in (*state.model.parameters(), *_moments(state)):
                    memory.see(one)
                gradients = _step(state, batch, config)
        held = {"weights": _bytes(model.parameters()), "gradients": gradients, "optimizer": _bytes(_moments(state))}
    own = micro_batches * config.run.batch_size * config.model.context_length
    return Rehearsal(mesh.parallel, ranks, held, memory.peak, sending.sent, own)


def layouts(config: TrainConfig, ranks: int, devices_per_node: int) -> Iterator[str]:
    """Ways for so many ranks to divide the step, as `--parallel` says them: those that this model can take."""
    yield from (f"shard={ranks},zero={stage}" for stage in (1, 2, 3))
    if ranks > devices_per_node and ranks % devices_per_node == 0:
        yield f"replicate={ranks // devices_per_node},shard={devices_per_node}"
    for tensor in (2, 4, 8):
        with contextlib.suppress(ConfigError):
            if tensor <= devices_per_node and ranks % tensor == 0:
                require_divides(config.model, Parallel(shard=ranks // tensor, tensor=tensor))
                yield f"shard={ranks // tensor},tensor={tensor}"


@contextlib.contextmanager
def _fake_group(ranks: int) -> Iterator[None]:
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise ConfigError("a rehearsal takes a process that trains with no others: start it without torchrun")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _model(config: TrainConfig, formats: Arithmetic) -> Transformer:
    """As `fresh_state` has it; made in its format at once, for fake tensors cannot be given another one."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(formats.parameters)
    try:
        model = Transformer(config.model, formats.compute)
    finally:
        torch.set_default_dtype(usual)
    set_up(model, config)
    return model


def _batch(config: TrainConfig, count: int) -> list[MicroBatch]:
    """As many micro-batches as the ranks share."""
    size = config.run.batch_size, config.model.context_length
    micro = MicroBatch({"tokens": np.zeros(size, np.int64), "targets": np.zeros(size, np.int64)})
    return [micro] * count


def _step(state: State, batch: list[MicroBatch], config: TrainConfig) -> int:
    """Forward, backward, clip and update; returns the bytes of the gradients."""
    backward(state, batch, config)
    gradients = _bytes(one.grad for one in state.model.parameters() if one.grad is not None)
    nn.utils.clip_grad_norm_(
        state.model.parameters(), math.inf if config.update.max_grad_norm is None else config.update.max_grad_norm
    )
    state.optimizer.step()
    return gradients


def _moments(state: State) -> list[Tensor]:
    return [one for entry in state.optimizer.state.values() for one in entry.values() if torch.is_tensor(one)]


def _bytes(tensors: Any) -> int:
    return sum((one.to_local() if hasattr(one, "to_local") else one).nbytes for one in tensors)


KINDS = {
    "_allgather_base_": "all-gather", "all_gather_into_tensor": "all-gather", "allgather_": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter", "reduce_scatter_tensor": "reduce-scatter",
    "allreduce_": "all-reduce", "all_reduce": "all-reduce", "broadcast_": "broadcast",
    "alltoall_base_": "all-to-all", "all_to_all_single": "all-to-all",
}  # fmt: skip
"""PyTorch's operators, by what they are."""


@dataclass
class Sending(TorchDispatchMode):
    """Counts collectives, and the bytes that one rank sends for each over a ring."""

    counts: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    bytes: Counter[tuple[str, int, int]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        super().__init__()

    @property
    def sent(self) -> tuple[Sent, ...]:
        return tuple(sorted(Sent(*key, count, self.bytes[key]) for key, count in self.counts.items()))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.distributed.tensor import DTensor

        if DTensor in types:
            return NotImplemented  # it becomes operators on what this rank holds
        made = func(*args, **(kwargs or {}))
        space, name = func.name().partition(".")[0].split("::")
        if space in ("c10d", "_c10d_functional") and (kind := KINDS.get(name)):
            self._count(kind, args, made)
        return made

    def _count(self, kind: str, args: Any, made: Any) -> None:
        ranks, span = _group(args)
        tensors = [one for one in torch.utils._pytree.tree_leaves((args, made)) if isinstance(one, Tensor)]
        largest = max(one.nbytes for one in tensors)
        share = (2 if kind == "all-reduce" else 1) * (ranks - 1)
        self.counts[kind, ranks, span] += 1
        self.bytes[kind, ranks, span] += largest * share // ranks


def _group(args: Any) -> tuple[int, int]:
    """Ranks of the group that an operator names, or is given, and how far apart the first and the last are."""
    from torch.distributed import distributed_c10d as groups

    for one in args:
        name = one if isinstance(one, str) else None
        if isinstance(one, torch.ScriptObject):
            with contextlib.suppress(RuntimeError):  # not a group but what is done to numbers, such as their sum
                name = groups.ProcessGroup.unbox(one).group_name
        if name is not None:
            with contextlib.suppress(LookupError, ValueError, RuntimeError):
                ranks = groups.get_process_group_ranks(groups._resolve_process_group(name))  # type: ignore[attr-defined, arg-type]
                return len(ranks), max(ranks) - min(ranks) + 1
    return 1, 1
