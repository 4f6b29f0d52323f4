"""What is fused where nobody looks gives the bits of what an observer or a hook sees, in whole passes."""

from typing import Any

import pytest
import torch
from torch import Tensor

from limpid import kernel_limits
from limpid.config import ModelConfig
from limpid.model import Transformer, initialise, mlp, transformer
from limpid.model.kernels.linear_cross_entropy import linear_cross_entropy
from limpid.native import build

GPT = {
    "positions": "learned", "norm": "layer", "mlp": "plain", "activation": "gelu", "attention_bias": True,
    "attention_output_bias": True, "mlp_bias": True,
}  # fmt: skip


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_limits, "PACKED_PRODUCT", 1)


def passed(model: Transformer, tokens: Tensor, **options: Any) -> list[Tensor]:
    """The loss and every gradient of a pass."""
    model.zero_grad()
    model.mask_seed = 1
    hidden = model(tokens, form_logits=False, **options)
    loss = linear_cross_entropy(hidden.stream, hidden.output_matrix, tokens, tokens.numel())
    loss.backward()
    return [loss.detach(), *(one.grad.clone() for one in model.parameters() if one.grad is not None)]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is fused from now on."""
    calls: list[str] = []
    for module, name in ((mlp, "native_activated_product"), (transformer, "native_joined_norm")):
        made = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, made=made, name=name: calls.append(name) or made(*given))
    return calls


@pytest.mark.parametrize(
    "options", [{}, GPT, GPT | {"activation": "gelu_tanh", "dropout": 0.1}], ids=["llama", "gpt", "dropout"]
)
def test_fused_observed_and_hooked_passes_agree_to_the_bit(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ModelConfig(vocab_size=65, d_model=64, num_layers=2, num_heads=2, d_ff=96, context_length=32, **options)
    model = initialise(Transformer(config, torch.bfloat16), 0).train()
    tokens = torch.randint(0, 65, (3, 32), generator=torch.Generator().manual_seed(0))
    calls = counted(monkeypatch)
    fused = passed(model, tokens)
    there = build.library() is not None
    assert len(calls) == 3 * config.num_layers * there
    model.recomputed = True
    recomputed = passed(model, tokens)
    model.recomputed = False
    calls.clear()
    observed = passed(model, tokens, observe=lambda _, value: value)
    hooks = [part.register_forward_hook(lambda *_: None) for part in model.modules()]
    hooked = passed(model, tokens)
    for hook in hooks:
        hook.remove()
    assert not calls
    for other in (recomputed, observed, hooked):
        assert all(torch.equal(one, same) for one, same in zip(fused, other, strict=True))


def test_frozen_parts_are_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ModelConfig(vocab_size=65, d_model=64, num_layers=1, num_heads=2, d_ff=96, context_length=32)
    model = initialise(Transformer(config, torch.bfloat16), 0).train()
    model.blocks[0].mlp.output.weight.requires_grad_(False)
    calls = counted(monkeypatch)
    passed(model, torch.zeros((1, 32), dtype=torch.long))
    assert "native_activated_product" not in calls
