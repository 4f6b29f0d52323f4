"""Arrays that the backward pass forms again: the same bits, fewer kept, with and without gradient checkpointing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import limpid.model.formed
from limpid.model import Transformer, initialise
from limpid.model.formed import formed_again, keeping_less
from planning.measured import configured

PLAIN = {"norm": "layer", "mlp": "plain", "activation": "gelu", "positions": "learned", "attention_bias": True}


def gradients(options: dict, compute: torch.dtype, recomputed: bool, backward_twice: bool = False) -> list[Tensor]:
    config = configured(**{"batch_size": 2, "num_layers": 2, **options}).model
    model = initialise(Transformer(config, compute), 0).train()
    model.recomputed = recomputed
    tokens = torch.arange(2 * config.context_length).view(2, -1) % config.vocab_size
    loss = model(tokens).float().square().mean()
    if backward_twice:
        loss.backward(retain_graph=True)
        model.zero_grad()
    loss.backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "options",
    [{}, PLAIN, {"activation": "relu"}, {**PLAIN, "activation": "relu2"}, {"norm_placement": "post"}],
    ids=str,
)
def test_gradients_are_the_same_to_the_bit(
    options: dict, compute: torch.dtype, recomputed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    formed = gradients(options, compute, recomputed)
    again = gradients(options, compute, recomputed, backward_twice=not recomputed)
    monkeypatch.setattr(limpid.model.formed, "PLAIN", ())  # then nothing is marked
    kept = gradients(options, compute, recomputed)
    for one, other, third in zip(kept, formed, again, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, third)


def test_what_is_formed_again_is_not_kept_and_is_formed_once_for_all_readers() -> None:
    calls = []

    def form(x: Tensor) -> Tensor:
        calls.append(x)
        return x.exp() + 1

    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    z = x * 1
    read = formed_again(form(z), form, z)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one) or one, lambda one: one):
        ys = []
        for _ in range(3):
            with keeping_less(read):
                ys.append(torch.nn.functional.linear(read, weight))
    assert not any(one.data_ptr() == read.data_ptr() for one in kept)
    calls.clear()
    sum(y.square().sum() for y in ys).backward()
    assert len(calls) == 1
    theirs, w = x.detach().requires_grad_(), weight.detach().requires_grad_()
    (3 * ((theirs.exp() + 1) @ w.T).square().sum()).backward()
    torch.testing.assert_close(x.grad, theirs.grad)
    torch.testing.assert_close(weight.grad, w.grad)


def test_an_array_that_needs_no_gradient_is_not_marked() -> None:
    x = torch.randn(3)
    assert not hasattr(formed_again(x.exp(), torch.exp, x), "again")
    with torch.no_grad():
        assert not hasattr(formed_again(x.exp(), torch.exp, torch.nn.Parameter(x)), "again")
