"""Attention that a function says of itself that it computes, as the probe sees it."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from limpid.doctor.attention_probe import AttentionProbe


def attention_by_position(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Heads after positions, in some kernel."""
    if has_torch_function((query, key, value)):
        return handle_torch_function(attention_by_position, (query, key, value), query, key, value)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


attention_by_position.is_attention = True


def test_a_function_that_says_that_it_is_attention_is_seen_and_not_changed() -> None:
    query, key, value = (torch.randn(2, 9, 3, 16) for _ in range(3))
    expected = attention_by_position(query, key, value)
    with AttentionProbe() as probe:
        found = attention_by_position(query, key, value)
    assert torch.equal(found, expected)
    (one,) = probe.attentions
    assert one.query.shape == (2, 3, 9, 16)
    assert math.isclose(one.factor, 0.25)
    assert one.largest >= float((query.transpose(1, 2) @ key.transpose(1, 2).mT).abs().max()) / 4
