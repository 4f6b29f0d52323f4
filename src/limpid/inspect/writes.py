"""One logit as a sum: what the embedding, each head and each MLP wrote to the residual stream towards it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from limpid.inspect.watch import Quantities, blocks, stages
from limpid.model import Transformer
from limpid.model.norm import LayerNorm
from limpid.model.transformer import Block


@dataclass(frozen=True)
class Write:
    """One summand of a logit."""

    name: str
    block: int | None
    logit: float  # nats that it adds to the logit
    above_mean: float  # nats that it adds to this logit beyond the mean over all tokens: what softmax can see


@dataclass(frozen=True)
class Writes:
    """A logit and its summands, in the order in which they were written."""

    position: int
    token: int
    logit: float
    mean_logit: float
    parts: tuple[Write, ...]

    @property
    def off(self) -> float:
        """How far the sum of the parts is from the logit: rounding, nothing else."""
        return abs(sum(part.logit for part in self.parts) - self.logit)


class Stream:
    """The residual stream of one position, kept as the separate vectors whose sum it is."""

    def __init__(self) -> None:
        self.names: list[tuple[str, int | None]] = []
        self.vectors: list[Float[Tensor, " d_model"]] = []

    def add(self, name: str, vector: Float[Tensor, " d_model"], block: int | None = None) -> None:
        self.names.append((name, block))
        self.vectors.append(vector)

    def through(self, norm: nn.Module, name: str, whole: Float[Tensor, " d_model"], block: int | None = None) -> None:
        """Carry every part through a norm; `whole` is what the norm met, and its bias is a part of its own."""
        self.vectors = list(carried(torch.stack(self.vectors), norm, whole))
        if isinstance(norm, LayerNorm):
            self.add(f"{name}.bias", norm.bias, block)


def carried(
    parts: Float[Tensor, "part d_model"], norm: nn.Module, whole: Float[Tensor, " d_model"]
) -> Float[Tensor, "part d_model"]:
    """Each part as the norm of their sum passes it on: centred by a layer norm, over the sum's own scale, times gain.

    With its scale held at the value it has, the norm is linear, so the parts still add up exactly.
    """
    if isinstance(norm, LayerNorm):
        parts, whole = parts - parts.mean(-1, keepdim=True), whole - whole.mean()
    scale = (whole.square().mean() + cast(float, norm.eps)).sqrt()
    return parts / scale * cast(Tensor, norm.weight)


def writes(model: Transformer, seen: Quantities, position: int, token: int) -> Writes:
    """The logit of `token` at `position` of the first row, taken apart."""
    stream = Stream()
    stream.add("embed.tokens", seen["embed.tokens"][0, position])
    if "embed.positions" in seen:
        added = seen["embed.positions"]
        stream.add("embed.positions", (added[0] if added.ndim == 3 else added)[position])
    for index, block in enumerate(blocks(model)):
        _write_block(stream, block, index, seen, position)
    if model.final_norm is not None:
        whole = seen[stages(model)[-1][0]][0, position]
        stream.through(model.final_norm, "final_norm", whole)
    matrix = model.output_matrix
    vectors = torch.stack(stream.vectors)
    towards, mean = vectors @ matrix[token], vectors @ matrix.mean(0)
    parts = tuple(
        Write(name, block, float(logit), float(logit - average))
        for (name, block), logit, average in zip(stream.names, towards, mean, strict=True)
    )
    logits = seen["logits"][0, position]
    return Writes(position, token, float(logits[token]), float(logits.mean()), parts)


def _write_block(stream: Stream, block: Block, index: int, seen: Quantities, position: int) -> None:
    """Its heads, the bias of their output matrix and its MLP; norms in between where the block has them after."""
    at = f"blocks.{index}"
    mixed = seen[f"{at}.attention.mixed"][0, position]
    matrix = block.attention.output.weight.unflatten(1, mixed.shape)  # (d_model, head, d_head)
    for head, values in enumerate(mixed):
        stream.add(f"{at}.attention.head.{head}", matrix[:, head] @ values, index)
    if block.attention.output.bias is not None:
        stream.add(f"{at}.attention.output.bias", block.attention.output.bias, index)
    if not block.pre:
        stream.through(block.norm1, f"{at}.norm1", seen[f"{at}.residual1"][0, position], index)
    stream.add(f"{at}.mlp.output", seen[f"{at}.mlp.output"][0, position], index)
    if not block.pre:
        stream.through(block.norm2, f"{at}.norm2", seen[f"{at}.residual2"][0, position], index)
