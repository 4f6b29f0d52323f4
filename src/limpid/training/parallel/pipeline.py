"""Pipeline parallelism by torch.distributed.pipelining: a model cut into stages, and the order in which they work.

Each process holds one stage, or two of a schedule that takes turns. Parameters keep their names, so that checkpoints,
moments and clipping know no stages. PyTorch's schedules move activations and gradients; the objective is called by the
last stage, on a model that begins where the stage before ended, and every process hears what came of it.
Sources: 1F1B, Narayanan et al. 2019, section 3.3, doi:10.1145/3341301.3359646; interleaved, Narayanan et al. 2021,
section 2.2, arXiv:2104.04473; zero bubble, Qi et al. 2023, arXiv:2401.10241.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from limpid.config import TrainConfig
from limpid.config.options import require
from limpid.config.parallel import Parallel
from limpid.data.batches import MicroBatch
from limpid.model import Transformer
from limpid.model.spread import own_part, whole
from limpid.training.parallel import sharding
from limpid.training.parallel.stage import Stage, Work, let_go

if TYPE_CHECKING:
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineSchedule

    from limpid.training.mesh import Mesh

T = TypeVar("T")

SCHEDULES = {
    "1f1b": "1F1B",
    "interleaved1f1b": "Interleaved1F1B",
    "interleavedzerobubble": "InterleavedZeroBubble",
    "zbvzerobubble": "ZBVZeroBubble",
}
"""What PyTorch calls them."""


class Pipeline:
    """The stages of this process, and the passes that it takes with the others of its pipeline."""

    def __init__(self, model: Transformer, mesh: Mesh) -> None:
        logging.getLogger("torch.distributed.pipelining.schedules").setLevel(logging.CRITICAL)  # errors are raised, too
        self.model, self.mesh, self.group = model, mesh, mesh.axes.get_group("pipeline")
        self.parallel, self.count = mesh.parallel, mesh.parallel.stages
        sharers = mesh.axes["tensor"] if mesh.parallel.tensor > 1 else None
        self.stages = [Stage(model, index, self.count, sharers) for index in mesh.parallel.held(mesh.stage)]
        let_go(model, self.stages)
        self._made: tuple[tuple[int, ...], _PipelineSchedule] | None = None

    def backward(self, work: Work) -> list[Any]:
        """Forward, loss and backward of all micro-batches by the schedule; returns what was found of each."""
        count = len(work.micro_batches)
        tokens = torch.as_tensor(np.concatenate([micro["tokens"] for micro in work.micro_batches])).to(self.mesh.device)
        schedule = self._schedule(count, tokens.shape[0] // count, tokens.shape[1])
        places = torch.arange(count, device=self.mesh.device)
        self._set(work)
        given = (tokens,) if self.stages[0].is_first else ()
        schedule.step(*given, place=places, target=places, losses=[], return_outputs=False)
        self.mesh.after_backward(self.model)
        self._add_up_tied()
        return self._found(work)

    def forward(self, batches: Sequence[MicroBatch], ends: Callable[[Transformer, MicroBatch], T]) -> list[T]:
        """What becomes of batches of any size without a backward pass; what it holds must have no place on a device."""
        work = Work(batches, lambda model, micro: (None, ends(model, micro)))
        self._set(work)
        for index, micro in enumerate(batches):
            x = torch.as_tensor(micro["tokens"]).to(self.mesh.device)
            rows, length = x.shape
            for stage in self.stages:
                shape = rows, stage.sent(length), self.model.config.d_model
                x = stage(self._received(x, shape, stage.index), torch.tensor(index))
                self._send(x.detach(), stage.index)
        if self.parallel.data > 1:
            for stage in self.stages:
                sharding.put_back(stage)
        return self._found(work)

    def _found(self, work: Work) -> list[Any]:
        """What the last stage found of each micro-batch, on every process of the pipeline."""
        shared = [[work.found[index] for index in sorted(work.found)]]
        source = self.parallel.holder(self.count - 1)
        dist.broadcast_object_list(shared, group=self.group, group_src=source, device=torch.device("cpu"))
        return shared[0]

    def share_overflow(self, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
        """Let every process know that a gradient of one is not finite: all lower the loss scale, or none."""
        if not scaler.is_enabled():
            return
        for found in scaler._found_inf_per_device(optimizer).values():
            dist.all_reduce(own_part(found), dist.ReduceOp.MAX, self.group)

    def grad_norm(self) -> Tensor:
        """The norm of all gradients of all stages; a tied token table is counted by the first."""
        first, last = (any(getattr(stage, end) for stage in self.stages) for end in ("is_first", "is_last"))
        again = self.model.embed.tokens.weight if self.model.config.tied and last and not first else None
        gradients = [one.grad for one in self.model.parameters() if one.grad is not None and one is not again]
        squared = whole(torch.nn.utils.get_total_norm(gradients)).double().square()
        dist.all_reduce(squared, group=self.group)
        return squared.sqrt()

    def _set(self, work: Work) -> None:
        for stage in self.stages:
            stage.work = work

    def _schedule(self, count: int, rows: int, length: int) -> _PipelineSchedule:
        """PyTorch's schedule for so many micro-batches of a shape; its buffers stay for the next step of that shape."""
        shape = count, rows, length
        if self._made is None or self._made[0] != shape:
            from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

            made = [self._pytorch_stage(stage, rows, length) for stage in self.stages]
            kind = get_schedule_class(SCHEDULES[self.parallel.schedule])
            given = made if issubclass(kind, PipelineScheduleMulti) else made[0]
            self._made = shape, kind(given, count, loss_fn=lambda loss, _: loss, scale_grads=False)
        return self._made[1]

    def _pytorch_stage(self, stage: Stage, rows: int, length: int) -> PipelineStage:
        """A stage as PyTorch knows it; told what comes in and goes out, it need not try."""
        from torch.distributed.pipelining import PipelineStage

        dtype = next(self.model.parameters()).dtype
        shape = rows, stage.sent(length), self.model.config.d_model
        stream = torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)
        tokens = torch.empty(rows, length, dtype=torch.int64, device="meta")
        loss = torch.empty((), dtype=dtype, device="meta", requires_grad=True)
        comes, goes = tokens if stage.is_first else stream, loss if stage.is_last else stream
        return PipelineStage(
            stage, stage.index, self.count, self.mesh.device, input_args=comes, output_args=goes, group=self.group
        )

    def _received(self, x: Tensor, shape: Sequence[int], index: int) -> Tensor:
        """What a stage begins with: what was given to the first, or what the stage before sent."""
        if index == 0 or (before := self.parallel.holder(index - 1)) == self.mesh.stage:
            return x
        x = torch.empty(shape, dtype=next(self.model.parameters()).dtype, device=self.mesh.device)
        dist.recv(x, group=self.group, group_src=before)
        return x

    def _send(self, x: Tensor, index: int) -> None:
        if index < self.count - 1 and (after := self.parallel.holder(index + 1)) != self.mesh.stage:
            dist.send(x.contiguous(), group=self.group, group_dst=after)

    def _add_up_tied(self) -> None:
        """The token table is read by the first stage and by the last: each adds the other's gradient to its own."""
        ends = [self.parallel.holder(0), self.parallel.holder(self.count - 1)]
        if not self.model.config.tied or ends[0] == ends[1] or self.mesh.stage not in ends:
            return
        gradient = self.model.embed.tokens.weight.grad
        if gradient is None:
            return
        mine = own_part(gradient)
        other, peer = torch.empty_like(mine), ends[self.mesh.stage == ends[0]]
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, mine, group=self.group, group_peer=peer),
                dist.P2POp(dist.irecv, other, group=self.group, group_peer=peer),
            ]
        )
        for one in works:
            one.wait()
        mine += other


def require_stages(config: TrainConfig, parallel: Parallel) -> None:
    """Raise ConfigError for a run whose model cannot be cut into stages, or not yet."""
    if parallel.pipeline == 1:
        require(parallel.schedule == "1f1b", f"schedule is {parallel.schedule}, which orders the stages of a pipeline: "
                "give pipeline too, or leave it out")  # fmt: skip
        return
    count, model = parallel.stages, config.model
    require(
        model.num_layers >= count,
        f"pipeline is {parallel.pipeline}, which takes {count} stages by schedule {parallel.schedule}, and num_layers "
        f"is {model.num_layers}: choose at least as many layers, or fewer stages",
    )
    both_ends = parallel.holder(0) == parallel.holder(count - 1)
    require(
        not (both_ends and model.tied and parallel.data * parallel.tensor > 1),
        f"schedule is {parallel.schedule}, which gives the first and the last stage to one process, and tied is yes: "
        "the table that they share can be divided once only, so choose interleavedzerobubble, or say tied no",
    )
