"""What stands for an operation computes what it computes; its statistics are numbers of their own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from limpid.operations.gradients.rules import RULES

aten = torch.ops.aten
DRAW = torch.Generator().manual_seed(0)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=DRAW, dtype=torch.float64)


X, GAIN, SHIFT, BAR = drawn(4, 6, 5), drawn(6), drawn(6), drawn(4, 6, 5)
LAST = (drawn(5), drawn(5))
LAYER = aten.native_layer_norm(X, [5], *LAST, 1e-5)
GROUP = aten.native_group_norm(X, GAIN, SHIFT, 4, 6, 5, 3, 1e-5)
RUNNING = (drawn(6), drawn(6).square())
BATCH = aten.native_batch_norm(X, GAIN, SHIFT, *[one.clone() for one in RUNNING], True, 0.1, 1e-5)
Q, K, V, OUT = drawn(2, 4, 5, 8), drawn(2, 4, 7, 8), drawn(2, 4, 7, 8), drawn(2, 4, 5, 8)
MASK = drawn(2, 1, 5, 7)
flash = aten._scaled_dot_product_flash_attention_for_cpu
FLASH = flash(Q, K, V, attn_mask=MASK)
SQUARE = flash(Q, Q, Q, is_causal=True)
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "softmax": (aten._softmax, (X, 1, False), {}),
    "log_softmax": (aten._log_softmax, (X, 1, False), {}),
    "layer norm": (aten.native_layer_norm, (X, [5], *LAST, 1e-5), {}),
    "layer norm without a gain": (aten.native_layer_norm, (X, [6, 5], None, None, 1e-5), {}),
    "layer norm back": (aten.native_layer_norm_backward, (BAR, X, [5], *LAYER[1:], *LAST, [True] * 3), {}),
    "layer norm back in part": (aten.native_layer_norm_backward, (BAR, X, [5], *LAYER[1:], None, None, [True, False,
                                                                                                 False]), {}),
    "group norm": (aten.native_group_norm, (X, GAIN, SHIFT, 4, 6, 5, 3, 1e-5), {}),
    "group norm back": (aten.native_group_norm_backward, (BAR, X, *GROUP[1:], GAIN, 4, 6, 5, 3, [True] * 3), {}),
    "batch norm": (aten.native_batch_norm, (X, GAIN, SHIFT, None, None, True, 0.1, 1e-5), {}),
    "batch norm of before": (aten.native_batch_norm, (X, GAIN, SHIFT, *RUNNING, False, 0.1, 1e-5), {}),
    "batch norm back": (aten.native_batch_norm_backward, (BAR, X, GAIN, *RUNNING, *BATCH[1:], True, 1e-5, [True] * 3),
                        {}),
    "batch norm of before back": (aten.native_batch_norm_backward, (BAR, X, GAIN, *RUNNING, *BATCH[1:], False, 1e-5,
                                                                     [True] * 3), {}),
    "attention": (flash, (Q, K, V), {"attn_mask": MASK, "scale": 0.3}),
    "attention to what was before": (flash, (Q, Q, Q, 0.0, True), {}),
    "attention back": (aten._scaled_dot_product_flash_attention_for_cpu_backward,
                       (OUT, Q, K, V, *FLASH, 0.0, False), {"attn_mask": MASK}),
    "attention to what was before, back": (aten._scaled_dot_product_flash_attention_for_cpu_backward,
                                           (OUT, Q, Q, Q, *SQUARE, 0.0, True), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_a_rule_computes_what_pytorch_computes(name: str) -> None:
    operation, args, kwargs = CASES[name]
    rule = RULES[operation._qualified_op_name.partition("::")[2]]
    expected, found = operation(*args, **kwargs), rule(*args, **kwargs)
    pairs = [(expected, found)] if isinstance(expected, Tensor) else list(zip(expected, found, strict=True))
    for one, other in pairs:
        assert (one is None) == (other is None)
        if one is not None and one.numel():
            torch.testing.assert_close(other.reshape(one.shape), one)


def test_an_lstm_both_ways_is_onednns() -> None:
    torch.manual_seed(0)
    x, hidden, cell = torch.randn(5, 3, 4), torch.randn(3, 6), torch.randn(3, 6)
    weights = [torch.randn(24, 4), torch.randn(24, 6), torch.randn(24), torch.randn(24)]
    form = ([], 2, 6, 1, True, False, False, True)
    for reverse in (False, True):
        made = aten.mkldnn_rnn_layer(x, *weights, hidden, cell, reverse, *form)
        found = RULES["mkldnn_rnn_layer"](x, *weights, hidden, cell, reverse, *form)
        for one, other in zip(made[:3], found[:3], strict=True):
            torch.testing.assert_close(other.reshape(one.shape), one)
        bars = [torch.randn_like(one) for one in made[:3]]
        args = (x, *weights, hidden, cell, *made[:3], *bars, reverse, 2, 6, 1, True, True, False, [], False, made[3])
        for one, other in zip(aten.mkldnn_rnn_layer_backward(*args), RULES["mkldnn_rnn_layer_backward"](*args),
                              strict=True):  # fmt: skip
            torch.testing.assert_close(other.detach().reshape(one.shape), one, rtol=1e-4, atol=1e-4)
