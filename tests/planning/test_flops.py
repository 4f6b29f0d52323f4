"""Planned FLOPs against PyTorch's counter, and against the sum over the operations of an opened step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import limpid.model.kernels.attention
from limpid.config import ModelConfig
from limpid.maths import Chain
from limpid.maths.step import forward
from limpid.model import Transformer, initialise
from limpid.planning.architecture import architecture, of_config
from limpid.planning.flops import figures, forward_flops_per_token, megatron_flops
from limpid.planning.huggingface import read_config
from limpid.planning.published import published
from limpid.quantities import parameters
from planning.families import their_config

BATCH, POSITIONS = 3, 17
PLAIN = {"norm": "layer", "mlp": "plain", "positions": "learned", "attention_bias": True, "mlp_bias": True}
CONFIGS = [
    ModelConfig(vocab_size=101, context_length=POSITIONS, d_model=48, num_heads=6, num_layers=2, d_ff=52, **changes)
    for changes in (
        {}, PLAIN, {"tied": False, "num_kv_heads": 2}, {"num_kv_heads": 1, "qk_norm": True}, {"d_head": 10},
        {"norm_placement": "post", "activation": "relu2", "mlp": "plain"}, {"attention_window": 5},
    )
]  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS)
def test_flops_equal_those_that_pytorch_counts_forward_and_backward(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # its counter knows no fused attention of processors
    monkeypatch.setattr(limpid.model.kernels.attention, "materialised_positions", lambda itemsize: POSITIONS)
    model = initialise(Transformer(config), 0)
    tokens = torch.randint(0, config.vocab_size, (BATCH, POSITIONS))
    planned = {figure.name: figure.value for figure in figures(of_config(config), POSITIONS)}
    with FlopCounterMode(display=False) as counter:
        loss = model(tokens).sum()
        forward = counter.get_total_flops()
        loss.backward()
    assert forward == BATCH * POSITIONS * planned["flops.forward"]
    assert counter.get_total_flops() == BATCH * POSITIONS * planned["flops.step"]


@pytest.mark.parametrize(
    "family",
    ["llama", "qwen3", "gemma2", "gpt_neox", "gpt2", "olmo2", "phi", "bloom", "starcoder2", "glm4", "nemotron"],
)
def test_flops_of_strangers_equal_those_that_pytorch_counts(family: str) -> None:
    from transformers import AutoModelForCausalLM

    theirs = their_config(family, {"num_key_value_heads": 2})
    theirs._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(theirs, attn_implementation="eager")
    ours = read_config({**theirs.to_dict(), "model_type": family})
    with FlopCounterMode(display=False) as counter:
        model(torch.randint(3, 100, (BATCH, POSITIONS)), use_cache=False)
    counted = {str(key): value for key, value in counter.get_flop_counts()["Global"].items()}
    rotation = 2 * POSITIONS * (ours.d_head // 2) if family != "gpt2" else 0  # positions times frequencies
    assert sum(counted.values()) - BATCH * POSITIONS * forward_flops_per_token(ours, POSITIONS) in _rotations(rotation)


def _rotations(one: int) -> set[int]:
    """Transformers makes its table of angles by a product, for every row or once, and not for every family."""
    return {0, one, BATCH * one, 2 * one, 2 * BATCH * one} | {part * one // 4 for part in (1, BATCH)}


@pytest.mark.parametrize("config", CONFIGS[:4])
def test_flops_equal_the_sum_over_the_operations_of_a_step(config: ModelConfig) -> None:
    rng = np.random.default_rng(0)
    learned = {p.name: rng.standard_normal(p.shape) for p in parameters(config)}
    tokens = rng.integers(0, config.vocab_size, (BATCH, POSITIONS))
    chain = Chain({**learned, "tokens": tokens, "targets": np.roll(tokens, -1, 1)})
    forward(chain, config)
    summed = sum(link.operation.flops(*(chain.values[name] for name in link.inputs)) for link in chain.links)
    assert summed == BATCH * POSITIONS * forward_flops_per_token(of_config(config), POSITIONS)


def test_experts_that_a_token_is_not_sent_to_cost_nothing() -> None:
    found = {figure.name: figure.value for figure in figures(published("mixtral-8x7b"), 1)}
    assert found["flops.six_n"] == 6 * 12_879_925_248
    assert found["flops.exact_over_six_n"] == pytest.approx(1, abs=0.02)


def test_the_exact_count_is_megatrons_formula() -> None:
    heads, hidden, layers, seq, vocab = 64, 6144, 48, 2048, 51200
    model = architecture(vocab_size=vocab, d_model=hidden, num_layers=layers, num_heads=heads, d_ff=4 * hidden)
    ours = 3 * 4 * seq * forward_flops_per_token(model, seq)
    assert megatron_flops(4, seq, layers, hidden, vocab) == pytest.approx(ours, rel=1e-12)
