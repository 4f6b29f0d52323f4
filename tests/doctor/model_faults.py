"""Mistakes planted in a small decoder, each with the rule that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from doctor.bench import Decoder, turn


def no_mask(model: Decoder) -> None:
    for block in model.blocks:
        block.causal = False


def no_residual(model: Decoder) -> None:
    for block in model.blocks:
        block.residual = False


def no_scale(model: Decoder) -> None:
    for block in model.blocks:
        block.scale = 1.0


def one_sided(model: Decoder) -> None:
    for block in model.blocks:
        block.turned = ("query",)


def large(model: Decoder) -> None:
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            nn.init.normal_(parameter, std=1.0)


def equal_rows(model: Decoder) -> None:
    nn.init.constant_(model.blocks[0].up.weight, 0.01)


def copied_head(model: Decoder) -> None:
    model.head.weight = nn.Parameter(model.tokens.weight.detach().clone())


def cut(model: Decoder) -> None:
    block = model.blocks[0]
    forward = block.forward
    block.forward = lambda x: forward(x).detach()


def frozen_block(model: Decoder) -> None:
    model.blocks[1].requires_grad_(False)


def mixes_rows(model: Decoder) -> None:
    forward = model.forward
    model.forward = lambda ids: forward(ids) + model.tokens.weight.mean() + forward(ids).mean(0, keepdim=True)


def attend_by(model: Decoder, attend: Callable[..., torch.Tensor]) -> None:
    """Replace the attention of all blocks, whose residuals and MLPs stay."""
    for block in model.blocks:

        def forward(x: torch.Tensor, block: Any = block) -> torch.Tensor:
            heads = (*x.shape[:2], 2, -1)
            q, k, v = (part.view(heads).transpose(1, 2) for part in block.qkv(block.norm1(x)).chunk(3, -1))
            x = x + block.out(attend(q, k, v).transpose(1, 2).flatten(-2))
            return x + block.down(F.gelu(block.up(block.norm2(x))))

        block.forward = forward


def scaled_before(model: Decoder) -> None:
    """Queries are divided by √d_head, and the scores no more."""
    attend_by(
        model,
        lambda q, k, v: F.scaled_dot_product_attention(q * q.shape[-1] ** -0.5, k, v, is_causal=True, scale=1.0),
    )


def scaled_twice(model: Decoder) -> None:
    attend_by(model, lambda q, k, v: F.scaled_dot_product_attention(q / q.shape[-1] ** 0.5, k, v, is_causal=True))


def spelled(model: Decoder, factor: float) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = factor * torch.einsum("bhid,bhjd->bhij", q, k)
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return torch.einsum("bhij,bhjd->bhid", scores.masked_fill(hidden, -1e9).softmax(-1), v)

    attend_by(model, attend)


def over_rows(model: Decoder) -> None:
    """Attention over the rows of the batch, each to those before it."""

    def attend(*given: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(*(x.transpose(0, 2) for x in given), is_causal=True).transpose(0, 2)

    attend_by(model, attend)


def one_place(model: Decoder) -> None:
    assert model.places is not None
    model.places.register_forward_pre_hook(lambda module, given: (torch.zeros_like(given[0]),))


def turned_by_head(model: Decoder) -> None:
    """Rotations by the number of the head instead of that of the position."""
    turned = lambda x: turn(x.transpose(1, 2)).transpose(1, 2)  # noqa: E731
    attend_by(model, lambda q, k, v: F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True))


def ends_in_softmax(model: Decoder) -> None:
    model.register_forward_hook(lambda module, given, out: out.softmax(-1))


def squares_in_half(model: Decoder) -> None:
    """Norms that square in float16: infinite, and 0 after the division."""
    forward = model.norm.forward
    model.norm.forward = lambda x: forward(x) * torch.rsqrt((x.half() * 1e4).square().mean(-1, keepdim=True)).float()


def negated(model: Decoder) -> None:
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: -gradient)


def hardly_kept(model: Decoder) -> None:
    model.blocks[0].dropout.p = 0.9


MODEL_FAULTS: list[tuple[Callable[[Decoder], None], str, bool]] = [
    (no_mask, "not-causal", False),
    (no_residual, "residual-missing", False),
    (no_scale, "scores-not-scaled", False),
    (one_sided, "rotary-not-relative", True),
    (large, "initialisation-too-large", False),
    (equal_rows, "initialisation-degenerate", False),
    (copied_head, "tied-weights-apart", False),
    (cut, "gradient-cut", False),
    (frozen_block, "parameters-frozen", False),
    (mixes_rows, "batch-leaks", False),
    (over_rows, "batch-leaks", False),
    (scaled_twice, "scores-not-scaled", False),
    (lambda model: spelled(model, 1.0), "scores-not-scaled", False),
    (one_place, "positions-ignored", False),
    (turned_by_head, "rotary-not-relative", True),
    (ends_in_softmax, "softmax-twice", False),
    (squares_in_half, "overflow-in-half", False),
    (negated, "gradient-ascent", False),
    (hardly_kept, "dropout-too-high", False),
]
