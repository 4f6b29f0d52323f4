"""Fused attention and rotation, against definitions and finite differences."""

import math

import pytest
import torch

from limpid.model.kernels import attention_tiles
from limpid.model.kernels.attention import attention, causal_mask, short_attention, short_masks, softmax_of
from limpid.model.kernels.rotation import FusedRotation, rotation

BATCH, HEADS, KV_HEADS, POSITIONS, D_HEAD = 2, 6, 3, 7, 4


def heads(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    shape = (BATCH, count, POSITIONS, D_HEAD)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("window", [None, 3])
def test_mixing_in_two_products_is_attention_and_so_are_its_gradients(window: int | None) -> None:
    query, key, value = heads(HEADS), heads(KV_HEADS), heads(KV_HEADS).detach().mul(2).requires_grad_()
    like = torch.zeros(BATCH, POSITIONS, 1, dtype=torch.float64)
    mask = short_masks({window}, like, torch.float64)[window]
    assert torch.autograd.gradcheck(lambda *qkv: short_attention(*qkv, mask), (query, key, value))

    group = HEADS // KV_HEADS
    scores = query @ key.repeat_interleave(group, 1).transpose(-1, -2) / math.sqrt(D_HEAD)
    weights = scores.masked_fill(~causal_mask(POSITIONS, window, query.device), -math.inf).softmax(-1)
    defined = weights @ value.repeat_interleave(group, 1)
    torch.testing.assert_close(short_attention(query, key, value, mask), defined)
    torch.testing.assert_close(attention(query, key, value, None, window), defined)


@pytest.mark.parametrize("tile_bytes", [1, 1 << 21])
@pytest.mark.parametrize(("positions", "window"), [(129, None), (200, 150), (256, None), (300, 40)])
def test_attention_in_tiles_is_attention_and_so_are_its_gradients(
    positions: int, window: int | None, tile_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_tiles, "TILE_BYTES", tile_bytes)
    generator = torch.Generator().manual_seed(positions)
    made = [torch.randn(BATCH, count, positions, D_HEAD, generator=generator) for count in (HEADS, KV_HEADS, KV_HEADS)]
    query, key, value = (one.double().requires_grad_() for one in made)
    mask = short_masks({window}, torch.zeros(BATCH, positions, 1), torch.float64)[window]
    bar = torch.randn(query.shape, generator=generator).double()
    found = short_attention(query, key, value, mask)
    gradients = torch.autograd.grad(found, (query, key, value), bar)

    scores = query @ key.repeat_interleave(HEADS // KV_HEADS, 1).transpose(-1, -2) / math.sqrt(D_HEAD)
    weights = scores.masked_fill(~causal_mask(positions, window, query.device), -math.inf).softmax(-1)
    defined = weights @ value.repeat_interleave(HEADS // KV_HEADS, 1)
    torch.testing.assert_close(found, defined)
    for one, other in zip(gradients, torch.autograd.grad(defined, (query, key, value), bar), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("positions", [2, 7, 16, 33, 128, 511])
def test_softmax_in_its_own_place_is_softmax_to_the_bit(positions: int, dtype: torch.dtype) -> None:
    mask = torch.zeros(positions, positions).masked_fill(~causal_mask(positions, None, torch.device("cpu")), -math.inf)
    scores = (10 * torch.randn(3, positions, positions) + mask).to(dtype)
    expected = scores.softmax(-1)
    assert torch.equal(softmax_of(scores), expected)
    assert torch.equal(scores, expected), "not in the same memory"


@pytest.mark.parametrize("halves", [True, False])
def test_both_ways_to_rotate_turn_alike_there_and_back(halves: bool) -> None:
    x = torch.randn(BATCH, POSITIONS, HEADS, D_HEAD, dtype=torch.float64)
    angle = torch.randn(POSITIONS, 1, D_HEAD // 2, dtype=torch.float64)
    angles, y_bar = (angle.cos(), angle.sin()), torch.randn_like(x)
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, z = FusedRotation.apply(one, *angles, halves), rotation(other, *angles, halves)
    torch.testing.assert_close(y, z)
    torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1))
    y.backward(y_bar)
    z.backward(y_bar)
    torch.testing.assert_close(one.grad, other.grad)
