"""The vocabulary counts right: parameters of published models, and one quantity per name."""

from dataclasses import replace
from typing import get_args

import pytest

from limpid.config import ModelConfig, OptimizerName, UpdateConfig
from limpid.maths.step import rule
from limpid.planning import flops_per_token, parameter_count
from limpid.quantities import MOMENTS, parameters, quantities, update_rule

GPT2 = ModelConfig(
    vocab_size=50257, context_length=1024, d_model=768, num_layers=12, num_heads=12, norm="layer", positions="learned",
    attention_bias=True, attention_output_bias=True, mlp="plain", activation="gelu_tanh", mlp_bias=True,
)  # fmt: skip
LLAMA_3_8B = ModelConfig(
    vocab_size=128256, context_length=8192, d_model=4096, num_layers=32, num_heads=32, num_kv_heads=8, d_ff=14336,
    tied=False,
)  # fmt: skip


@pytest.mark.parametrize(("config", "count"), [(GPT2, 124_439_808), (LLAMA_3_8B, 8_030_261_248)])
def test_parameter_counts_of_published_models(config: ModelConfig, count: int) -> None:
    assert parameter_count(config) == count


@pytest.mark.parametrize("config", [GPT2, LLAMA_3_8B])
def test_a_score_takes_the_place_of_the_vocabulary_and_a_value_stands_beside_it(config: ModelConfig) -> None:
    rating = replace(config, head="score")
    gone = 0 if config.tied else config.vocab_size * config.d_model
    counted = sum(parameter.size for parameter in parameters(rating))
    assert counted == parameter_count(config) - gone + config.d_model == parameter_count(rating)
    valuing = replace(config, head="vocabulary_and_value")
    counted = sum(parameter.size for parameter in parameters(valuing))
    assert counted == parameter_count(config) + config.d_model == parameter_count(valuing)


@pytest.mark.parametrize("config", [GPT2, LLAMA_3_8B])
def test_every_name_is_used_once(config: ModelConfig) -> None:
    for names in ([p.name for p in parameters(config)], [q.name for q in quantities(config)]):
        assert len(names) == len(set(names))


def test_gains_and_biases_do_not_decay() -> None:
    for parameter in parameters(GPT2):
        assert parameter.decayed == (not (parameter.name.endswith("bias") or "norm" in parameter.name))


def test_flops_of_a_tiny_model_by_hand() -> None:
    config = ModelConfig(vocab_size=7, context_length=4, d_model=2, num_layers=1, num_heads=1, d_ff=3)
    projections = 4 * 2 * 2
    mlp = 3 * 2 * 3
    logits = 2 * 7
    attention = 2 * 4 * 2  # 4 keys × d_head 2, once for scores and once for mixing
    assert flops_per_token(config, 4) == 2 * (projections + mlp + logits + attention)


@pytest.mark.parametrize("optimizer", get_args(OptimizerName))
def test_the_rules_of_the_mathematics_remember_the_moments_of_the_vocabulary(optimizer: OptimizerName) -> None:
    for parameter in parameters(GPT2):
        assert rule(UpdateConfig(optimizer), parameter).moments == MOMENTS[update_rule(optimizer, parameter)]
