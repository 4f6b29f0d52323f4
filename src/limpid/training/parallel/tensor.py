"""Tensor parallelism by PyTorch's DTensor: every process has some heads and columns of each block, and some positions.

Matrices that widen are cut by their columns, those that narrow by their rows; between them each process holds some
positions of the residual stream, which it norms and adds up (sequence parallelism). Kernels see plain tensors of whole
heads. The last hidden state is put together, so that every objective reads it as it is.
Sources: Shoeybi et al. 2019, section 3, arXiv:1909.08053; Korthikanti et al. 2022, section 4.2, arXiv:2205.05198.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

from torch import nn

from limpid.model.transformer import Block, Transformer

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ParallelStyle

    from limpid.training.parallel.stage import Stage


def divide(model: Transformer | Stage, ranks: DeviceMesh) -> None:
    """Make every parameter of the model a DTensor over the processes of one axis."""
    from torch.distributed.tensor.parallel import parallelize_module

    frozen = [name for name, one in model.named_parameters() if not one.requires_grad]
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)  # of two axes one after another
    for block in model.blocks:
        parallelize_module(block, ranks, _present(block, _block_plan()))
        cast(Block, block).attention.weights_dropout.part = ranks.get_local_rank(), ranks.size()
    parallelize_module(model, ranks, _present(model, _model_plan()))
    for name in frozen:  # what PyTorch puts on every process it takes for trained
        model.get_parameter(name).requires_grad_(False)


def _block_plan() -> dict[str, ParallelStyle]:
    """How a block is cut: its parts read all positions, and give back some of them."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import PrepareModuleInput, SequenceParallel

    from limpid.training.parallel.matrices import Columns, Rows

    some, every = Shard(1), Replicate()

    def reads_all(others: int) -> ParallelStyle:
        return PrepareModuleInput(
            input_layouts=(some, *[None] * others), desired_input_layouts=(every, *[None] * others)
        )

    def gives_some() -> ParallelStyle:
        return Rows(output_layouts=some, use_local_output=False)

    return {
        "norm1": SequenceParallel(),
        "norm2": SequenceParallel(),
        "attention": reads_all(others=4),
        "attention.query": Columns(),
        "attention.key": Columns(),
        "attention.value": Columns(),
        "attention.query_norm": SequenceParallel(sequence_dim=2, use_local_output=True),  # of this process's heads
        "attention.key_norm": SequenceParallel(sequence_dim=2, use_local_output=True),
        "attention.output": gives_some(),
        "mlp": reads_all(others=1),
        "mlp.gate": Columns(use_local_output=False),
        "mlp.up": Columns(use_local_output=False),
        "mlp.output": gives_some(),
    }


def _model_plan() -> dict[str, ParallelStyle]:
    """How the model's ends are cut: tables by their features, what makes logits by its rows."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleOutput, SequenceParallel

    every = Replicate()
    return {
        "embed": PrepareModuleOutput(output_layouts=every, desired_output_layouts=Shard(1), use_local_output=False),
        "embed.tokens": ColwiseParallel(output_layouts=every),
        "embed.positions": ColwiseParallel(output_layouts=every),
        "final_norm": SequenceParallel(),
        "logits": ColwiseParallel(),
        "score": SequenceParallel(),  # one row, which every process has
        "value": SequenceParallel(),
    }


def _present(module: nn.Module, plan: dict[str, ParallelStyle]) -> dict[str, ParallelStyle]:
    """Of a plan what this model has; a plan with other names is refused by PyTorch with a warning."""
    parts = dict(module.named_modules())
    return {name: style for name, style in plan.items() if name in parts}


def settle(model: nn.Module) -> None:
    """Bring each gradient into the places of its parameter: that of a norm is a sum over the processes' positions."""
    from torch.distributed.tensor import DTensor

    for parameter in model.parameters():
        gradient = parameter.grad
        if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
            parameter.grad = gradient.redistribute(placements=parameter.placements)
