"""The standard memory model: what layers save, and what parallelism, ZeRO and recomputation take away."""

from __future__ import annotations

import pytest

from limpid.errors import ConfigError
from limpid.planning.activations import korthikanti
from limpid.planning.cluster import Layout
from limpid.planning.flops import forward_flops_per_token
from limpid.planning.huggingface import read_config
from limpid.planning.memory import decoding, training
from limpid.planning.parameters import count
from limpid.planning.published import published


def total(name: str, **layout: object) -> float:
    return training(published(name), Layout(**layout))[-1].value


def test_a_layer_saves_what_the_paper_says() -> None:
    s, b, h, a, t = 2048, 4, 6144, 64, 8
    found = korthikanti(s, b, h, a, t)
    assert found["no_parallel"] == pytest.approx(s * b * h * (34 + 5 * a * s / h), rel=1e-12)
    assert found["tensor_sequence"] == pytest.approx(s * b * h / t * (34 + 5 * a * s / h), rel=1e-12)
    assert found["tensor"] == pytest.approx(s * b * h * (10 + 24 / t + 5 * a * s / (h * t)), rel=1e-12)
    assert found["tensor_sequence_selective"] == pytest.approx(34 * s * b * h / t, rel=1e-12)
    assert found["full_recompute"] == pytest.approx(2 * s * b * h, rel=1e-12)


def test_zero_divides_more_at_every_stage() -> None:
    stages = [total("llama-3-8b", devices=8, zero=stage) for stage in range(4)]
    assert stages == sorted(stages, reverse=True)
    assert stages[0] - stages[1] == pytest.approx(12 * 8030261248 * 7 / 8)
    assert stages[1] - stages[2] == pytest.approx(2 * 8030261248 * 7 / 8)


def test_tensor_and_pipeline_parallel_divide_the_weights() -> None:
    found = {one.name: one.value for one in training(published("llama-3-8b"), Layout(devices=8, tensor=8))}
    assert found["memory.weights"] == pytest.approx(2 * 8030261248 / 8)
    cut = {one.name: one.value for one in training(published("llama-3-8b"), Layout(devices=4, pipeline=4))}
    assert 2 * 8030261248 / 4 < cut["memory.weights"] < 2 * 8030261248 / 3


def test_recomputation_saves_less() -> None:
    saved = [total("gpt3-175b", recompute=how, attention="materialised") for how in ("none", "selective", "full")]
    assert saved == sorted(saved, reverse=True)


def test_windowed_layers_cache_their_window_only() -> None:
    short, long = (
        {one.name: one.value for one in decoding(published("gemma-3-27b"), Layout(context=s), "bf16")}
        for s in (1000, 100_000)
    )
    assert long["decoding.cache"] < 100 * short["decoding.cache"] / 4
    assert short["decoding.cache"] == 1000 * short["decoding.cache_per_token"]


def test_muon_has_one_moment_of_matrices_inside_blocks_and_two_of_the_rest() -> None:
    model = published("llama-3-8b")
    matrices = count(model, "attention", "mlp")  # Llama has no biases
    bytes_of = {
        optimizer: {one.name: one.value for one in training(model, Layout(optimizer=optimizer))}["memory.optimizer"]
        for optimizer in ("adamw", "muon", "momentum")
    }
    assert bytes_of["adamw"] - bytes_of["muon"] == 4 * matrices
    assert bytes_of["momentum"] == (4 + 4) * count(model)
    halved = {one.name: one.value for one in training(model, Layout(devices=2, zero=1, optimizer="muon"))}
    assert halved["memory.optimizer"] == bytes_of["muon"] / 2


@pytest.mark.parametrize("precision", ["bf16", "fp8", "int8", "int4"])
def test_devices_that_share_a_model_divide_what_generating_takes(precision: str) -> None:
    model = published("llama-3.1-405b")
    whole, shared = (
        {one.name: one.value for one in decoding(model, Layout(devices=t, tensor=t, context=8192), precision)}
        for t in (1, 8)
    )
    assert shared["decoding.total"] == pytest.approx(whole["decoding.total"] / 8)
    stages = {one.name: one.value for one in decoding(model, Layout(devices=7, pipeline=7), precision)}
    assert stages["decoding.weights"] < whole["decoding.weights"] / 6


def test_heads_that_do_not_divide_and_latents_are_held_more_than_once() -> None:
    def cache(name: str, tensor: int) -> float:
        figures = decoding(published(name), Layout(devices=tensor, tensor=tensor), "bf16")
        return next(float(one.value) for one in figures if one.name == "decoding.cache_per_token")

    assert cache("llama-3-8b", 16) == cache("llama-3-8b", 8)  # eight heads of keys and values
    assert cache("deepseek-v3", 8) == cache("deepseek-v3", 1)


def test_blocks_of_two_kinds_are_counted_each() -> None:
    model = published("deepseek-v3")
    found = {one.name: one.value for one in training(model, Layout())}
    mixers = 61 * found["memory.activations_per_attention"]
    mlps = 3 * found["memory.activations_per_mlp"] + 58 * found["memory.activations_per_experts"]
    assert found["memory.activations"] == mixers + mlps


def test_states_do_not_grow_with_the_text() -> None:
    mamba = read_config({"model_type": "mamba", "vocab_size": 50280, "hidden_size": 2560, "num_hidden_layers": 64,
                         "state_size": 16, "expand": 2, "conv_kernel": 4, "time_step_rank": 160})  # fmt: skip
    assert count(mamba) == 2_768_345_600  # state-spaces/mamba-2.8b
    short, long = (decoding(mamba, Layout(context=context), "bf16")[-1].value for context in (100, 100_000))
    assert short == long
    flops = [forward_flops_per_token(mamba, context) for context in (100, 100_000)]
    assert flops[0] == flops[1]
    assert training(mamba, Layout(tensor=2, devices=2))[-1].value < training(mamba, Layout())[-1].value


def test_devices_that_share_a_sequence_hold_a_part_of_its_activations() -> None:
    def parts(**layout: object) -> dict[str, float]:
        return {one.name: one.value for one in training(published("llama-3-8b"), Layout(devices=8, **layout))}

    whole, shared = parts(context=65536, zero=3), parts(context=65536, zero=3, context_parallel=4)
    for name in ("memory.activations", "memory.logits"):
        assert shared[name] == whole[name] / 4
    assert shared["memory.optimizer"] == whole["memory.optimizer"]  # ZeRO divides among them as well
    with pytest.raises(ConfigError, match="leave --attention out"):
        Layout(devices=2, context_parallel=2, attention="materialised")


def test_gradients_summed_in_fp32_take_two_bytes_more() -> None:
    assert total("gpt2", precision="bf16_fp32_gradients") - total("gpt2") == 2 * 124_439_808
