"""How long training and decoding take, on devices by their names."""

import dataclasses

import pytest

from limpid.config import ModelConfig, RunConfig, TrainConfig
from limpid.plan import critical_batch, decode_step_seconds, plan
from limpid.plan.hardware import device_named
from limpid.plan.options import Options
from limpid.plan.report import plan_subject
from limpid.plan.subject import subject


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
        return float(plan("gpt3-175b", devices=64, device="h100", tokens=1e12, **options).figure("time.total").value)

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
