"""One layout: its steps in bounds of rounding, what each process holds, how often processes speak to each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from benchmarks.layouts.reference import Step
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from limpid.config import TrainConfig
from limpid.config.parallel import Parallel
from limpid.data.batches import MicroBatch
from limpid.model.spread import own_part, whole
from limpid.training.mesh import Mesh
from limpid.training.state import fresh_state, set_weights
from limpid.training.step import backward, step
from limpid.training.update import clip, read_moments

KINDS = {"gather": ("all_gather", "allgather"), "scatter": ("reduce_scatter",), "reduce": ("all_reduce", "allreduce")}


class Spoken(TorchDispatchMode):
    """Counts collectives, as PyTorch's CommDebugMode does, whose account by modules cannot follow FSDP's root."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it is taken apart first
        if func.namespace in ("c10d", "_c10d_functional"):
            name = str(func)
            self.counts.update(kind for kind, words in KINDS.items() if any(word in name for word in words))
        return func(*args, **(kwargs or {}))


@dataclass
class Measured:
    """What came of a layout; distances in bounds, above 1 is not rounding."""

    loss: float = 0.0
    gradient: float = 0.0
    norm: float = 0.0
    worst: str = ""
    """The parameter whose gradient lies furthest off."""
    drift: float = 0.0
    """Largest distance of any loss, in nats, where the layout goes its own way for as many steps."""
    bytes_held: dict[str, int] = field(default_factory=dict)
    """Of weights, gradients and moments, on the fullest process."""
    messages: dict[str, int] = field(default_factory=dict)
    """Collectives of the forward and backward passes of one step."""


def measured(
    mesh: Mesh, config: TrainConfig, batches: Sequence[Sequence[MicroBatch]], steps: Sequence[Step]
) -> Measured:
    """Each step from where one process began it; then as many steps of the layout's own."""
    found, state = Measured(), fresh_state(config, mesh)
    for number, (batch, alone) in enumerate(zip(batches, steps, strict=True)):
        set_weights(state.model, alone.weights)
        state.step = number
        with Spoken() as spoken:
            losses = backward(state, batch, config)
        loss = sum(mesh.joined([float(one.value) for one in losses], len(batch)))
        gradients = {name: one.grad for name, one in state.model.named_parameters() if one.grad is not None}
        held = sum(own_part(gradient).nbytes for gradient in gradients.values())
        for name, gradient in gradients.items():
            gap = (whole(gradient) - alone.gradients[name]).double().square()
            off = float(((gap.mean(-1) if gap.ndim else gap).sqrt() / alone.gradient_limits[name]).max())
            if off > found.gradient:
                found.gradient, found.worst = off, name
        norm = clip(state.model, state.optimizer, state.scaler, None, state.pipeline)
        found.loss = max(found.loss, abs(loss - alone.loss) / alone.loss_limit)
        found.norm = max(found.norm, abs(norm - alone.norm) / alone.norm_limit)
    found.messages = {kind: spoken.counts[kind] for kind in KINDS}
    found.worst = _of_the_furthest(mesh, found)
    found.drift, moments = walked_apart(mesh, config, batches, steps)
    weights = sum(own_part(one).nbytes for one in state.model.parameters())
    every = [torch.tensor([weights, held, moments]) for _ in range(mesh.world)]
    torch.distributed.all_gather(every, torch.tensor([weights, held, moments]))
    fullest = torch.stack(every).amax(0).tolist()
    found.bytes_held = dict(zip(("weights", "gradients", "moments"), fullest, strict=True))
    return found


def _of_the_furthest(mesh: Mesh, found: Measured) -> str:
    """Let `found` hold the largest distance of a gradient on any process; returns its name."""
    every: list[tuple[float, str]] = [(0.0, "")] * mesh.world
    torch.distributed.all_gather_object(every, (found.gradient, found.worst))
    found.gradient, worst = max(every)
    return worst


def walked_apart(
    mesh: Mesh, config: TrainConfig, batches: Sequence[Sequence[MicroBatch]], steps: Sequence[Step]
) -> tuple[float, int]:
    """The largest distance of a loss when nothing brings the layout back; and the bytes of its moments here."""
    state = fresh_state(config, mesh)
    outcomes = [step(state, batch, config) for batch in batches]
    moments = read_moments(state.model, state.optimizer, config.update)
    drift = max(abs(one.loss - alone.loss) for one, alone in zip(outcomes, steps, strict=True))
    return drift, sum(own_part(one).nbytes for one in moments.values())


def expected_messages(config: TrainConfig, parallel: Parallel, micro_batches: int) -> dict[str, int]:
    """Collectives of the forward and backward passes of one step, by theory.

    The main process's: of a pipeline those of its stages, the first and, of a schedule that goes there and back, the
    last; what stages tell each other is no collective. There a pass of 1F1B finds parameters as the one before left
    them, and one of a zero-bubble schedule all of the step's; gradients are scattered, and settled, once.
    FSDP gathers the parameters of each block twice a pass and those around them once (ZeRO-3), or all once a step, and
    scatters sums of gradients after each pass, or once a step (ZeRO-1). Copies add up gradients once a step. Tensor
    parallelism gathers positions before attention and MLP and scatters sums after them, in backward the other way
    round; it puts the table of tokens, its vectors and the last hidden state together, and adds up gradients of norms.
    """
    blocks, micro = config.model.num_layers // parallel.stages, micro_batches // parallel.data
    if parallel.pipeline > 1:
        return _of_stages(config, parallel, blocks, micro)
    groups, syncs = blocks + 1, 1 if parallel.zero == 1 or parallel.shard == 1 else micro
    found = {"gather": 0, "scatter": 0, "reduce": 0}
    if parallel.shard > 1:
        found["gather"] += micro * (2 * blocks + 1) if parallel.zero == 3 else groups
        found["scatter"] += groups * syncs
    if parallel.replicate > 1:
        found["reduce"] += groups
    if parallel.tensor > 1:
        found["gather"] += micro * (4 * blocks + 4)
        found["scatter"] += micro * 4 * blocks
        found["reduce"] += syncs * (1 + blocks * (4 if config.model.qk_norm else 2))
    return found


def _of_stages(config: TrainConfig, parallel: Parallel, blocks: int, micro: int) -> dict[str, int]:
    """The same of a pipeline."""
    held = parallel.held(0)
    ends = sum(stage in (0, parallel.stages - 1) for stage in held)  # what is around blocks is a group of its own
    passes = 1 if parallel.schedule.endswith("zerobubble") else micro + 1
    sharded, blocks = int(parallel.shard > 1), blocks * len(held)
    found = {"gather": sharded * (blocks * passes + ends), "scatter": sharded * (blocks + ends), "reduce": 0}
    if parallel.tensor > 1:  # the vectors of tokens and their gradient are put together, too
        found["gather"] += micro * (4 * blocks + 2)
        found["scatter"] += micro * 4 * blocks
        found["reduce"] += blocks * (4 if config.model.qk_norm else 2)
    return found
