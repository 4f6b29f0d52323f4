"""How long training and decoding take, on devices by their names."""

import pytest

from limpid.plan import critical_batch, decode_step_seconds, plan
from limpid.plan.hardware import device_named


def test_time_follows_from_rate_and_utilisation() -> None:
    found = plan("llama-3-8b", devices=16, device="h100", tokens=1e12, utilisation=0.5, price=2.0)
    seconds = found.figure("time.total").value
    assert seconds == pytest.approx(1e12 * found.figure("flops.step").value / (16 * 989.4e12 * 0.5))
    assert found.figure("money.total").value == pytest.approx(16 * seconds / 3600 * 2)


@pytest.mark.parametrize(
    ("name", "found"), [("H100-SXM", "h100"), ("NVIDIA A100", "a100"), ("4090", "rtx-4090"), ("v4", "tpu-v4")]
)
def test_devices_are_known_by_their_usual_names(name: str, found: str) -> None:
    assert device_named(name).name == found


def test_reading_bounds_a_decoding_step_and_arithmetic_a_large_batch() -> None:
    assert decode_step_seconds(140e9, 0, 36e9) == pytest.approx(140 / 36)
    assert critical_batch(200e12, 1e12, 2) == 200
