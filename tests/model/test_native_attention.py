"""Attention in limpid's own kernel against its definition in float64, where the kernel is there."""

import math

import pytest
import torch
from torch import Tensor

from limpid.doctor.attention_probe import AttentionProbe
from limpid.model.kernels.attention import causal_mask
from limpid.model.kernels.native_attention import native_attention, serves
from limpid.native import build

HERE = serves("cpu", torch.bfloat16, 64)
CASES = [
    (2, 4, 4, 256, 64, None), (2, 4, 2, 100, 64, None), (1, 3, 1, 129, 32, None), (1, 2, 2, 65, 128, None),
    (1, 2, 2, 333, 80, None), (1, 4, 2, 256, 64, 50), (1, 2, 2, 257, 48, 7), (1, 2, 1, 63, 16, 1000),
    (3, 2, 2, 2, 16, None), (1, 2, 2, 130, 16, 1), (1, 1, 1, 600, 64, 130),
]  # fmt: skip


def heads(rows: int, positions: int, count: int, d_head: int) -> Tensor:
    return torch.randn(rows, positions, count, d_head).mul(1.5).bfloat16()


def defined(query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).mT / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(~causal_mask(q.shape[2], window, q.device), -math.inf).softmax(-1)
    return (weights @ v.repeat_interleave(group, 1)).transpose(1, 2)


def close(found: Tensor, expected: Tensor) -> bool:
    """Within what rounding weights and results to 8 bits leaves."""
    return float((found.double() - expected).detach().norm()) <= 5e-3 * float(expected.detach().norm()) + 1e-12


@pytest.mark.parametrize(("rows", "count", "kv", "positions", "d_head", "window"), CASES)
def test_the_kernel_is_attention_and_so_are_its_gradients(
    rows: int, count: int, kv: int, positions: int, d_head: int, window: int | None
) -> None:
    if not HERE:
        assert build.missing() or build.library() is None
        return
    torch.manual_seed(positions)
    made = [heads(rows, positions, number, d_head) for number in (count, kv, kv)]
    exact = [x.double().requires_grad_() for x in made]
    bar = heads(rows, positions, count, d_head)
    rounded = [x.requires_grad_() for x in made]
    found, expected = native_attention(*rounded, window), defined(*exact, window)
    assert close(found, expected)
    gradients = torch.autograd.grad(found, rounded, bar), torch.autograd.grad(expected, exact, bar.double())
    assert all(close(one, other) for one, other in zip(*gradients, strict=True))


def test_neither_threads_nor_neighbours_in_memory_change_a_bit() -> None:
    if not HERE:
        return
    torch.manual_seed(0)
    joined = heads(3, 70, 3 * 4, 32)
    query, key, value = (x.requires_grad_() for x in joined.chunk(3, 2))
    bar = heads(3, 4, 70, 32).transpose(1, 2)
    threads, results = torch.get_num_threads(), []
    for number, made in (
        (1, (query, key, value)),
        (2, [x.detach().clone().requires_grad_() for x in (query, key, value)]),
    ):
        torch.set_num_threads(number)
        mixed = native_attention(*made, None)
        results.append((mixed, *torch.autograd.grad(mixed, made, bar)))
    torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_large_scores_and_what_is_no_number_end_as_they_must() -> None:
    if not HERE:
        return
    query, key, value = (heads(1, 80, 2, 16) for _ in range(3))
    large = 100 * query
    expected = defined(large.double(), key.double(), value.double(), None)
    assert close(native_attention(large, key, value, None), expected)
    for spoiled in ((value, 70), (key, 70), (query, 70)):
        array, at = spoiled
        kept, array[0, at] = array[0, at].clone(), math.nan
        mixed = native_attention(query, key, value, None)
        array[0, at] = kept
        assert mixed[0, at].isnan().all()
        assert mixed[0, :64].isfinite().all()


def test_who_looks_at_pytorchs_functions_sees_the_kernel_and_changes_no_bit() -> None:
    if not HERE:
        return
    query, key, value = heads(2, 33, 4, 16), heads(2, 33, 2, 16), heads(2, 33, 2, 16)
    expected = native_attention(query, key, value, 9)
    with AttentionProbe() as probe:
        found = native_attention(query, key, value, 9)
    assert torch.equal(found, expected)
    assert [tuple(one.query.shape) for one in probe.attentions] == [(2, 4, 33, 16)]
