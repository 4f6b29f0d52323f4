"""A stage of a pipeline: some blocks in a row, and the ends of the model that belong to them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from limpid.data.batches import MicroBatch
from limpid.model import Transformer
from limpid.model.observe import FAST, Mode
from limpid.model.spread import own_part
from limpid.training.heartbeat import Phase

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass
class Work:
    """What a pass through the pipeline computes."""

    micro_batches: Sequence[MicroBatch]
    ends: Callable[[Transformer, MicroBatch], tuple[Tensor | None, Any]]
    """By the last stage, on a model that begins where the stage does: what backward begins with, and what is found."""
    mode: Mode = FAST
    enter: Callable[[Phase], None] = lambda _: None  # told what is computed
    mask_seeds: Sequence[int] = ()  # of dropout, one for each micro-batch
    found: dict[int, Any] = field(default_factory=dict)  # of each micro-batch, where the last stage is


class Stage(nn.Module):
    """Some blocks in a row, before them the embedding on the first, after them norm and heads on the last."""

    def __init__(self, model: Transformer, index: int, count: int, sharers: DeviceMesh | None = None) -> None:
        """`sharers` are the processes that share its matrices, and have some positions of the stream each."""
        super().__init__()
        self.index, self.is_first, self.is_last = index, index == 0, index == count - 1
        self.places = cut(model.config.num_layers, count)[index]
        self.policy, self.sharers = (model,), sharers  # not a part of this module: its parts are
        self.blocks = nn.ModuleList(model.blocks[i] for i in self.places)
        if self.is_first or (self.is_last and model.config.tied):
            self.embed = model.embed
        if self.is_last:
            self.final_norm, self.logits = model.final_norm, model.logits
            self.score, self.value = model.score, model.value
        self.work: Work | None = None

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        """The stream after this stage's blocks, or what backward begins with, of micro-batch number `place`."""
        assert self.work is not None
        model, work, index = self.policy[0], self.work, int(place)
        micro = work.micro_batches[index]
        work.enter("forward")
        model.mask_seed = work.mask_seeds[index] if work.mask_seeds else None
        if not self.is_first:
            x = self._joined(x, micro["tokens"].shape[1])
        if self.is_last:
            end = copy.copy(model)
            end.hidden = lambda *_: model.ended(self.stream(x, work.mode), work.mode)  # type: ignore[method-assign]
            y, work.found[index] = work.ends(end, micro)
            x = x if y is None else y
        else:
            x = own_part(self.stream(x, work.mode))
        work.enter("backward")
        return x

    def stream(self, x: Tensor, mode: Mode) -> Tensor:
        """The residual stream after this stage's blocks, from tokens or from the stream before them."""
        model = self.policy[0]
        positions = torch.arange(x.shape[1], device=x.device)
        x = model.entered(x, positions, mode) if self.is_first else x
        return model.through(x, positions, self.places, None, mode)

    def sent(self, length: int) -> int:
        """How many of so many positions of the stream this process sends on, and is sent."""
        if self.sharers is None:
            return length
        each, part = -(-length // self.sharers.size()), self.sharers.get_local_rank()
        return max(0, min(each, length - part * each))

    def _joined(self, x: Tensor, length: int) -> Tensor:
        """What was sent, with what the others who share this stage's matrices were sent: some positions each."""
        if self.sharers is None:
            return x
        from torch.distributed.tensor import DTensor, Shard

        shape = torch.Size((x.shape[0], length, x.shape[2]))
        strides = (length * x.shape[2], x.shape[2], 1)
        return DTensor.from_local(x, self.sharers, [Shard(1)], run_check=False, shape=shape, stride=strides)


def cut(blocks: int, count: int) -> list[range]:
    """Blocks of each stage; those that get one more come first, for the last stage has the head."""
    more, each = blocks % count, blocks // count
    starts = [index * each + min(index, more) for index in range(count + 1)]
    return [range(start, end) for start, end in pairwise(starts)]


def let_go(model: Transformer, stages: Sequence[Stage]) -> None:
    """Give up every parameter that no stage of this process has."""
    kept = {place for stage in stages for place in stage.places}
    for place in set(range(model.config.num_layers)) - kept:
        model.blocks[place] = nn.Identity()
    if not any(stage.is_last for stage in stages):
        model.final_norm = model.logits = model.score = model.value = None
    if any(stage.is_first for stage in stages):
        return
    if model.config.tied and any(stage.is_last for stage in stages):
        model.embed.positions = None
    else:
        del model.embed
