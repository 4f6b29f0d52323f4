"""How long training and decoding take, on devices by their names."""

import dataclasses
from typing import Any

import pytest

from limpid import plan
from limpid.config import ModelConfig, RunConfig, TrainConfig
from limpid.planning import critical_batch, decode_step_seconds
from limpid.planning.hardware import device_named
from limpid.planning.options import Options
from limpid.planning.report import plan_subject
from limpid.planning.subject import subject

AT_ONCE: dict[str, Any] = {"link": 1e9, "network": 1e9}
"""GB/s of devices that wait for nothing."""


def test_time_follows_from_rate_and_utilisation() -> None:
    found = plan("llama-3-8b", devices=16, device="h100", tokens=1e12, utilisation=0.5, price=2.0)
    seconds = found.figure("time.total").value
    assert seconds == pytest.approx(1e12 * found.figure("flops.step").value / (16 * 989.4e12 * 0.5))
    assert found.figure("time.cost").value == pytest.approx(16 * seconds / 3600 * 2)


@pytest.mark.parametrize(
    ("name", "found"), [("H100-SXM", "h100"), ("NVIDIA A100", "a100"), ("4090", "rtx-4090"), ("v4", "tpu-v4")]
)
def test_devices_are_known_by_their_usual_names(name: str, found: str) -> None:
    assert device_named(name).name == found


def test_reading_bounds_a_decoding_step_and_arithmetic_a_large_batch() -> None:
    assert decode_step_seconds(140e9, 0, 36e9) == pytest.approx(140 / 36)
    assert critical_batch(200e12, 1e12, 2) == 200


def test_what_is_computed_again_and_what_waits_takes_time() -> None:
    def days(**options: object) -> float:
        return float(
            plan("gpt3-175b", devices=64, device="h100", tokens=1e12, **AT_ONCE, **options).figure("time.total").value
        )

    plain = days()
    assert days(recompute="selective") == plain  # a fused kernel keeps no weights
    assert plain < days(recompute="selective", attention="materialised") < days(recompute="full")
    assert days(recompute="full") == pytest.approx(4 / 3 * plain, rel=0.01)  # all but the logits once more
    assert days(pipeline=4, gradient_accumulation_steps=12) == pytest.approx(plain * (1 + 3 / 12))


def test_a_share_of_the_peak_is_measured_with_the_peak_or_not_given() -> None:
    config = TrainConfig(model=ModelConfig(vocab_size=512, d_model=64, num_heads=4), run=RunConfig(precision="fp32"))
    base = subject(config)
    per_token = plan(config).figure("flops.step").value
    half = dataclasses.replace(base, speed=1000.0, peak=2000.0 * per_token)
    found = plan_subject(half, Options(flops=half.peak))
    assert found.figure("time.measured_mfu").value == pytest.approx(0.5)
    assert found.figure("time.tokens_per_second").value == pytest.approx(1000)
    busy = plan_subject(half, Options(flops=500.0 * per_token))
    assert "time.measured_mfu" not in {one.name for one in busy.figures}
    assert any("no utilisation is given" in note for note in busy.notes)


def test_hardware_is_used_for_more_than_the_models_own_work() -> None:
    found = plan("gpt3-175b", devices=64, pipeline=4, gradient_accumulation_steps=12, recompute="full", device="h100",
                 tokens=1e12, **AT_ONCE)  # fmt: skip
    assert found.figure("time.hfu").value == pytest.approx(0.4 / (1 + 3 / 12))
    ratio = found.figure("flops.step").value / (found.figure("time.compute").value / 1e12)
    assert found.figure("time.mfu").value == pytest.approx(found.figure("time.hfu").value * ratio)


def test_generating_is_bound_by_memory_for_one_sequence_and_by_arithmetic_for_many() -> None:
    one = plan("llama-3-8b", device="h100", context_length=1024)
    step = one.figure("decoding.step").value
    assert step == pytest.approx((2 * 8030261248 + 1024 * 131072) / 3350e9)
    shared = plan("llama-3-8b", device="h100", devices=8, tensor=8, context_length=1024)
    assert shared.figure("decoding.step").value == pytest.approx(step / 8)
    many = plan("llama-3-8b", device="h100", context_length=1, batch_size=4096)
    forward = many.figure("flops.forward").value
    assert many.figure("decoding.step").value == pytest.approx(4096 * forward / 989.4e12)


def test_a_prompt_is_read_at_once_and_a_short_one_as_fast_as_the_weights() -> None:
    long = plan("llama-3-8b", device="h100", context_length=8192)
    forward = long.figure("flops.forward").value
    assert long.figure("decoding.prefill").value == pytest.approx(8192 * forward / 989.4e12)
    short = plan("llama-3-8b", device="h100", context_length=2)
    assert short.figure("decoding.prefill").value == pytest.approx(2 * 8030261248 / 3350e9)


def test_of_experts_those_are_read_that_some_token_is_sent_to() -> None:
    def read(batch: int) -> float:
        return float(plan("mixtral-8x7b", device="h200", batch_size=batch).figure("decoding.weights_read").value)

    assert read(1) == pytest.approx(2 * 12_879_925_248)
    assert read(1) < read(2) < read(64) < 2 * 46_702_792_704
    assert read(1000) == pytest.approx(2 * 46_702_792_704)


def test_the_longest_context_fills_the_memory() -> None:
    longest = int(plan("llama-3-8b", device="a100").figure("decoding.longest_context").value)
    assert plan("llama-3-8b", device="a100", context_length=longest).figure("decoding.total").value <= 80e9
    assert plan("llama-3-8b", device="a100", context_length=longest + 2).figure("decoding.total").value > 80e9
    wide, narrow = (plan("llama-3-8b", cache_precision=c).figure("decoding.cache").value for c in ("bf16", "fp8"))
    assert narrow == wide / 2
