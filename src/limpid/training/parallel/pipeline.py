"""Pipeline parallelism by torch.distributed.pipelining: a model cut into stages, and the order in which they work.

Each process holds one stage, or two of a schedule that takes turns: some blocks in a row, before them the embedding on
the first, after them norm, head and loss on the last. Parameters keep their names, so that checkpoints, moments and
clipping know no stages. PyTorch's schedules move activations and gradients; the objective is called by the last stage,
on a model that begins where the stage before ended.
Sources: 1F1B, Narayanan et al. 2019, section 3.3, doi:10.1145/3341301.3359646; interleaved, Narayanan et al. 2021,
section 2.2, arXiv:2104.04473; zero bubble, Qi et al. 2023, arXiv:2401.10241.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from limpid.config import TrainConfig
from limpid.config.options import require
from limpid.config.parallel import Parallel
from limpid.data.batches import MicroBatch
from limpid.model import Transformer
from limpid.model.observe import FAST, Mode
from limpid.model.spread import own_part, whole
from limpid.objectives import Loss
from limpid.training.heartbeat import Phase
from limpid.training.parallel import sharding

if TYPE_CHECKING:
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineSchedule

    from limpid.training.mesh import Mesh

SCHEDULES = {
    "1f1b": "1F1B",
    "interleaved1f1b": "Interleaved1F1B",
    "interleavedzerobubble": "InterleavedZeroBubble",
    "zbvzerobubble": "ZBVZeroBubble",
}
"""What PyTorch calls them."""


@dataclass
class Work:
    """What a pass through the pipeline computes."""

    micro_batches: Sequence[MicroBatch]
    ends: Callable[[Transformer, MicroBatch], Loss]  # by the last stage, on a model that begins where it does
    mode: Mode = FAST
    enter: Callable[[Phase], None] = lambda _: None  # told what is computed
    found: dict[int, Loss] = field(default_factory=dict)  # of each micro-batch, where the last stage is


class Stage(nn.Module):
    """Some blocks in a row, and the ends of the model that belong to them."""

    def __init__(self, model: Transformer, index: int, count: int) -> None:
        super().__init__()
        self.index, self.is_first, self.is_last = index, index == 0, index == count - 1
        self.places = cut(model.config.num_layers, count)[index]
        self.policy = (model,)  # not a part of this module: its parts are
        self.blocks = nn.ModuleList(model.blocks[i] for i in self.places)
        if self.is_first or (self.is_last and model.config.tied):
            self.embed = model.embed
        if self.is_last:
            self.final_norm, self.logits = model.final_norm, model.logits
        self.work: Work | None = None

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        """The stream after this stage's blocks, or the loss of micro-batch number `place`."""
        assert self.work is not None
        model, work, index = self.policy[0], self.work, int(place)
        work.enter("forward")
        if self.is_last:
            end = copy.copy(model)
            end.hidden = lambda *_: model.ended(self.stream(x, work.mode), work.mode)  # type: ignore[method-assign]
            made = work.ends(end, work.micro_batches[index])
            work.found[index] = Loss(made.value.detach().clone(), made.metrics)
            x = made.value
        else:
            x = self.stream(x, work.mode)
        work.enter("backward")
        return x

    def stream(self, x: Tensor, mode: Mode) -> Tensor:
        """The residual stream after this stage's blocks, from tokens or from the stream before them."""
        model = self.policy[0]
        positions = torch.arange(x.shape[1], device=x.device)
        x = model.entered(x, positions, mode) if self.is_first else x
        return model.through(x, positions, self.places, None, mode)


class Pipeline:
    """The stages of this process, and the passes that it takes with the others of its pipeline."""

    def __init__(self, model: Transformer, mesh: Mesh) -> None:
        logging.getLogger("torch.distributed.pipelining.schedules").setLevel(logging.CRITICAL)  # errors are raised, too
        self.model, self.mesh, self.group = model, mesh, mesh.axes.get_group("pipeline")
        self.parallel, self.count = mesh.parallel, mesh.parallel.stages
        self.stages = [Stage(model, index, self.count) for index in mesh.parallel.held(mesh.stage)]
        _let_go(model, self.stages)
        self._schedules: dict[tuple[int, ...], _PipelineSchedule] = {}

    def backward(self, work: Work) -> list[Loss]:
        """Forward, loss and backward of all micro-batches by the schedule; the losses where the last stage is."""
        count = len(work.micro_batches)
        tokens = torch.as_tensor(np.concatenate([micro["tokens"] for micro in work.micro_batches])).to(self.mesh.device)
        schedule = self._schedule(count, tokens.shape[0] // count, tokens.shape[1])
        places = torch.arange(count, device=self.mesh.device)
        self._set(work)
        given = (tokens,) if self.stages[0].is_first else ()
        schedule.step(*given, place=places, target=places, losses=[], return_outputs=False)
        self._add_up_tied()
        return [work.found[index] for index in sorted(work.found)]

    def forward(self, batches: Sequence[MicroBatch], ends: Callable[[Transformer, MicroBatch], Loss]) -> list[Loss]:
        """What becomes of batches of any size without a backward pass, where the last stage is; elsewhere nothing."""
        work = Work(batches, ends)
        self._set(work)
        for index, micro in enumerate(batches):
            x = torch.as_tensor(micro["tokens"]).to(self.mesh.device)
            shape = (*x.shape, self.model.config.d_model)
            for stage in self.stages:
                x = stage(self._received(x, shape, stage.index), torch.tensor(index))
                self._send(x, stage.index)
        if self.parallel.data > 1:
            for stage in self.stages:
                sharding.put_back(stage)
        return [work.found[index] for index in sorted(work.found)]

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
        """PyTorch's schedule for so many micro-batches of a shape, which it allocates buffers for."""
        key = (count, rows, length)
        if key not in self._schedules:
            from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

            made = [self._pytorch_stage(stage, rows, length) for stage in self.stages]
            kind = get_schedule_class(SCHEDULES[self.parallel.schedule])
            given = made if issubclass(kind, PipelineScheduleMulti) else made[0]
            self._schedules[key] = kind(given, count, loss_fn=lambda loss, _: loss, scale_grads=False)
        return self._schedules[key]

    def _pytorch_stage(self, stage: Stage, rows: int, length: int) -> PipelineStage:
        """A stage as PyTorch knows it; told what comes in and goes out, it need not try."""
        from torch.distributed.pipelining import PipelineStage

        dtype = next(self.model.parameters()).dtype
        stream = torch.empty(rows, length, self.model.config.d_model, dtype=dtype, device="meta", requires_grad=True)
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


def cut(blocks: int, count: int) -> list[range]:
    """Blocks of each stage; those that get one more come first, for the last stage has the head."""
    more, each = blocks % count, blocks // count
    starts = [index * each + min(index, more) for index in range(count + 1)]
    return [range(start, end) for start, end in pairwise(starts)]


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
    refused = {
        "tensor": (parallel.tensor > 1, "tensor is divided within a stage by no schedule yet: choose shard beside it"),
        "dropout": (model.drops, "dropout draws one block's mask after the other's: leave it out"),
        "precision": (config.run.precision == "fp16", "fp16 scales the loss by what all stages find: choose bf16"),
        "objective": (config.tune is not None, "limpid tune reads whole answers in one process: choose shard"),
        "zero bubble": (
            parallel.schedule.endswith("zerobubble") and parallel.data > 1,
            f"{parallel.schedule} forms gradients of weights apart, where PyTorch's FSDP does not add them up: choose "
            "schedule interleaved1f1b beside shard and replicate",
        ),
    }
    for is_so, why in refused.values():
        require(not is_so, f"pipeline is {parallel.pipeline}: {why}")


def _let_go(model: Transformer, stages: Sequence[Stage]) -> None:
    """Give up every parameter that no stage of this process has."""
    kept = {place for stage in stages for place in stage.places}
    for place in set(range(model.config.num_layers)) - kept:
        model.blocks[place] = nn.Identity()
    if not any(stage.is_last for stage in stages):
        model.final_norm = model.logits = None
    if any(stage.is_first for stage in stages):
        return
    if model.config.tied and any(stage.is_last for stage in stages):
        model.embed.positions = None
    else:
        del model.embed
