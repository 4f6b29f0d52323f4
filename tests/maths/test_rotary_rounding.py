"""Frequencies of stretched rotations against 200-bit arithmetic: engine's and mathematics' stay within their bound."""

import math
import random

import mpmath
import numpy as np
import pytest

from limpid.config import ModelConfig
from limpid.maths.embedding import Rotary, angle_rounding
from limpid.model.embedding import frequencies

UNIT = 2.0**-53


def exact(rotary: Rotary, d_head: int) -> list[mpmath.mpf]:
    base, factor = mpmath.mpf(rotary.base), mpmath.mpf(rotary.factor)
    theta = [base ** (-mpmath.mpf(2 * pair) / d_head) for pair in range(d_head // 2)]
    if rotary.scaling in ("none", "linear"):
        return [one / (factor if rotary.scaling == "linear" else 1) for one in theta]
    if rotary.scaling == "llama3":
        low, high = mpmath.mpf(rotary.low), mpmath.mpf(rotary.high)
        kept = [(rotary.original_context * one / (2 * mpmath.pi) - low) / (high - low) for one in theta]
        return [_mixed(one, min(max(share, 0), 1), factor) for one, share in zip(theta, kept, strict=True)]
    fast, slow = (
        d_head * math.log(rotary.original_context / (2 * math.pi * turns)) / (2 * math.log(rotary.base))
        for turns in (rotary.high, rotary.low)
    )
    first, last = max(math.floor(fast), 0), min(math.ceil(slow), d_head - 1)
    ramp = [(pair - first) / mpmath.mpf(max(last - first, 0.001)) for pair in range(d_head // 2)]
    return [_mixed(one, 1 - min(max(share, 0), 1), factor) for one, share in zip(theta, ramp, strict=True)]


def _mixed(theta, kept, factor):
    return kept * theta + (1 - kept) * theta / factor


@pytest.mark.parametrize("scaling", ["none", "linear", "llama3", "yarn"])
def test_frequencies_stay_within_their_bound(scaling: str) -> None:
    rng = random.Random(3)
    with mpmath.workprec(200):
        for _ in range(40):
            d_head = 2 * rng.choice([2, 3, 8, 32])
            options = {
                "rotary_scaling": scaling, "rotary_factor": rng.choice([1.0, 1.7, 8.0, 40.0]),
                "rotary_base": rng.choice([2.0, 50.0, 1e4, 5e5]), "rotary_high": rng.choice([3.0, 4.0, 32.0]),
            }  # fmt: skip
            model = ModelConfig(9, rng.choice([33, 128, 1000]), d_model=d_head, num_heads=1, **options)
            rotary = Rotary(
                base=model.rotary_base, scaling=scaling, factor=model.rotary_factor, low=model.rotary_low,
                high=model.rotary_high, original_context=model.sizes.rotary_original_context,
            )  # fmt: skip
            exponents = np.arange(0, d_head, 2) / d_head
            stretching = rotary._stretching_rounding(d_head)
            limits = UNIT * angle_rounding(np.arange(2), model.rotary_base, exponents, stretching)[1]
            for found in (rotary.frequencies(d_head), frequencies(model).numpy()):
                for mine, true, limit in zip(found, exact(rotary, d_head), limits, strict=True):
                    assert abs(mpmath.mpf(float(mine)) - true) <= limit
