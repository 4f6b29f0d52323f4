"""Data parallelism by PyTorch's FSDP2: what a group of processes divides, and what each of its copies holds."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, cast

from torch import nn

from limpid.config.parallel import Parallel
from limpid.model.transformer import Hidden, Transformer

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

    from limpid.training.parallel.stage import Stage


def divide(model: Transformer | Stage, ranks: DeviceMesh, parallel: Parallel) -> None:
    """Spread parameters, gradients and moments over (replicate, shard) or (shard): FSDP2, block by block.

    ZeRO-3 frees a block's parameters after its forward pass, ZeRO-2 and 1 keep them through the step. Copies
    (replicate without shard) keep all, and hold their gradients whole.
    Source: Rajbhandari et al. 2020, section 5, arXiv:1910.02054; Zhao et al. 2023, section 3.2, arXiv:2304.11277.
    """
    from torch.distributed.fsdp import fully_shard
    from torch.utils._pytree import SUPPORTED_NODES, register_dataclass

    warnings.filterwarnings("ignore", "FSDP2-wrapped module")  # a view is returned, which nothing here writes into
    for part in (*model.blocks, model):
        fully_shard(part, mesh=ranks, reshard_after_forward=None if _frees_parameters(parallel) else False)
        sharded = cast("FSDPModule", part)
        sharded.set_gradient_divide_factor(1.0)  # each loss is a share of the step's: gradients add up,
        sharded.set_force_sum_reduction_for_comms(True)  # and gloo knows no sum with a factor
    if Hidden not in SUPPORTED_NODES:
        register_dataclass(Hidden)  # FSDP looks for tensors in what a forward pass returns, to prepare for backward


def before_backward(model: nn.Module, parallel: Parallel, *, last: bool) -> None:
    """What waits for the last backward pass of a step: gradients that are held whole, and the sum over copies."""
    sharded = cast("FSDPModule", model)
    if not _frees_parameters(parallel):
        sharded.set_reshard_after_backward(last)
    if parallel.shard == 1 or parallel.zero == 1:
        sharded.set_requires_gradient_sync(last)
    elif parallel.replicate > 1:
        sharded.set_requires_all_reduce(last)


def put_back(model: Transformer | Stage) -> None:
    """Free the parameters that a forward pass without a backward pass leaves in one piece: they may change now."""
    for part in (*model.blocks, model):
        cast("FSDPModule", part).reshard()


def _frees_parameters(parallel: Parallel) -> bool:
    """Whether a block's parameters are freed after its forward pass; what forms gradients of weights later, of the
    parameters that it finds then, must find those of the forward pass."""
    return parallel.shard > 1 and parallel.zero == 3 and not parallel.schedule.endswith("zerobubble")
