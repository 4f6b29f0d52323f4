"""What suits a run of which little is said."""

from typing import Any

import pytest

from limpid.config import ModelConfig
from limpid.config.recipes import tuning


@pytest.mark.parametrize(
    ("typed", "lora", "factors"),
    [({}, False, {}), ({}, True, {"lora_rank": 16, "lora_alpha": 32.0}),
     ({"lora_rank": 4}, False, {"lora_rank": 4, "lora_alpha": 32.0}),
     ({"lora_alpha": 8.0}, True, {"lora_rank": 16, "lora_alpha": 8.0})],
    ids=["none", "lora", "rank", "alpha"],
)  # fmt: skip
def test_low_rank_factors_are_scaled_and_learn_alike_however_they_are_asked_for(
    typed: dict[str, Any], lora: bool, factors: dict[str, Any]
) -> None:
    found = tuning("sft", "base", ModelConfig(d_model=192), {"model": typed}, lora)
    assert {name: value for name, value in found["model"].items() if name.startswith("lora")} == factors
    assert found["update"]["learning_rate"] == pytest.approx(2e-3 if factors else 2e-4)
