"""Tokens and positions to vectors; the tables are made in float64, so that only one rounding reaches the step."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from limpid.config import ModelConfig
from limpid.model.kernels import native_rotation
from limpid.model.kernels.native_rotation import NativeRotation
from limpid.model.kernels.rotation import FusedRotation, rotation
from limpid.model.kernels.unseen import is_unseen
from limpid.model.observe import FAST, Mode

Angles = tuple[Float[Tensor, "... position 1 pairs"], Float[Tensor, "... position 1 pairs"]]
"""Cosines and sines."""


class Table(nn.Embedding):
    """One learned vector per row: fast twin of maths.Embedding. Initialised by `model.initialise`."""

    def reset_parameters(self) -> None:
        """Nothing is drawn here."""

    def forward(self, input: Int[Tensor, "..."], mode: Mode = FAST) -> Float[Tensor, "... d"]:
        weight = self.weight
        few = mode.is_beside_output and input.numel() < len(weight) and weight.device.type == "cpu"
        if few and weight.requires_grad and not mode.plain and is_unseen(input) and type(weight) is nn.Parameter:
            if not hasattr(weight, "made_whole"):
                weight.made_whole = True  # type: ignore[attr-defined]
                weight.register_post_accumulate_grad_hook(_make_whole)
            rows: Tensor = _Rows.apply(weight, input)
            return rows
        return super().forward(input)


class _Rows(torch.autograd.Function):
    """Rows of a table; its gradient is those rows alone, each once, which PyTorch adds to that of the whole."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, tokens: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.shape = table.shape
        return table[tokens]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, bar: Tensor) -> tuple[Tensor, None]:
        (tokens,) = ctx.saved_tensors
        read, places = torch.unique(tokens, return_inverse=True)
        sums = bar.new_zeros(len(read), bar.shape[-1]).index_add_(0, places.flatten(), bar.flatten(0, -2))
        rows = torch.sparse_coo_tensor(read[None], sums, ctx.shape, is_coalesced=True, check_invariants=False)
        return rows, None


def _make_whole(table: Tensor) -> None:
    """Optimizers take whole gradients, also of a loss that has not read the whole table."""
    if table.grad is not None and table.grad.is_sparse:
        table.grad = table.grad.to_dense()


class Embed(nn.Module):
    """The start of the residual stream: token vectors, and position vectors where the model adds them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = Table(config.vocab_size, config.d_model)
        self.positions = Table(config.context_length, config.d_model) if config.positions == "learned" else None

    def forward(
        self, tokens: Int[Tensor, "batch position"], positions: Int[Tensor, "*rows position"], mode: Mode = FAST
    ) -> Float[Tensor, "batch position d_model"]:
        x = mode.report("embed.tokens", self.tokens(tokens, mode))
        if self.positions is not None:
            added = self.positions(positions)
        elif self.config.positions == "sinusoidal":
            added = sinusoidal(positions, self.config.d_model, self.config.rotary_base).to(x.dtype)
        else:
            return x
        return mode.report("embed.sum", x + mode.report("embed.positions", added))


def sinusoidal(positions: Int[Tensor, "*rows position"], d_model: int, base: float) -> Float[Tensor, "... d_model"]:
    """Sines at even, cosines at odd features, in wavelengths from 2π to 2π·base.

    Source: Vaswani et al. 2017, section 3.5, arXiv:1706.03762.
    """
    features = torch.arange(0, d_model, 2, dtype=torch.float64, device=positions.device)
    angles = positions[..., None].double() * base ** (-features / d_model)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def frequencies(config: ModelConfig) -> Float[Tensor, " pairs"]:
    """Radians by which each pair of features turns per position.

    Sources: Su et al. 2021, section 3.2.2, arXiv:2104.09864; linear, Chen et al. 2023, arXiv:2306.15595;
    yarn, Peng et al. 2023, eq. 17–23, arXiv:2309.00071; llama3, Llama 3.1's release.
    """
    pairs = torch.arange(0, config.sizes.d_head, 2, dtype=torch.float64)
    plain = config.rotary_base ** (-pairs / config.sizes.d_head)
    stretched = plain / config.rotary_factor
    match config.rotary_scaling:
        case "linear":
            return stretched
        case "llama3":
            turns = config.sizes.rotary_original_context * plain / (2 * math.pi)
            keep = ((turns - config.rotary_low) / (config.rotary_high - config.rotary_low)).clamp(0, 1)
            return keep * plain + (1 - keep) * stretched
        case "yarn":
            first, last = (
                config.sizes.d_head
                * math.log(config.sizes.rotary_original_context / (2 * math.pi * turns))
                / (2 * math.log(config.rotary_base))
                for turns in (config.rotary_high, config.rotary_low)
            )
            first, last = max(math.floor(first), 0), min(math.ceil(last), config.sizes.d_head - 1)
            divide = ((pairs / 2 - first) / max(last - first, 1e-3)).clamp(0, 1)
            return (1 - divide) * plain + divide * stretched
    return plain


class Rotation:
    """Turns each pair of features of a query or key by an angle that grows with its position."""

    def __init__(self, config: ModelConfig) -> None:
        scale = 1.0
        if config.rotary_scaling == "yarn":
            scale = config.rotary_attention_factor or 0.1 * math.log(max(1.0, config.rotary_factor)) + 1
        self.scale, self.frequencies = scale, frequencies(config)

    def at(self, positions: Int[Tensor, "*rows position"], dtype: torch.dtype) -> Angles:
        """Cosines and sines of these positions, ready to meet (batch, position, head, pair)."""
        frequencies = self.frequencies.to(positions.device)
        if type(frequencies) is Tensor:  # not one of a rehearsal: it stays where it is read, for to copy it waits
            self.frequencies = frequencies
        angles = (positions[..., None].double() * frequencies)[..., None, :]
        return (self.scale * angles.cos()).to(dtype), (self.scale * angles.sin()).to(dtype)


def rotate(
    x: Float[Tensor, "batch position head d_head"], angles: Angles, layout: str, mode: Mode = FAST
) -> Float[Tensor, "batch position head d_head"]:
    """Fast twin of maths.Rotary."""
    halves = layout == "half"
    if mode.plain or torch.compiler.is_compiling():
        return rotation(x, *angles, halves)
    turn = NativeRotation if native_rotation.serves(x, angles[0]) else FusedRotation
    y: Tensor = turn.apply(x, *angles, halves)
    return y
