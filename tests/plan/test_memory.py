"""The standard memory model: what layers save, and what parallelism, ZeRO and recomputation take away."""

from __future__ import annotations

import pytest

from limpid.plan.activations import korthikanti
from limpid.plan.cluster import Layout
from limpid.plan.memory import decoding, training
from limpid.plan.parameters import count
from limpid.plan.published import published


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
        {one.name: one.value for one in decoding(published("gemma-3-27b"), 1, s, "bf16")} for s in (1000, 100_000)
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
