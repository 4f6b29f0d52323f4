"""What cannot fit the machine is said before anything is made, with what would fit."""

import dataclasses
import re

import pytest
import torch

from limpid.config import ModelConfig, RunConfig, TrainConfig
from limpid.config.options import from_dict
from limpid.errors import ConfigError
from limpid.planning import engine_memory, parameter_count
from limpid.quantities import parameters
from limpid.training.memory import require_fits
from limpid.training.state import fresh_state

CPU = torch.device("cpu")


def refusal(config: TrainConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        require_fits(config, CPU)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("model", "d_model", 6 * 10**6),
        ("model", "num_layers", 10**12),
        ("model", "context_length", 10**12),
        ("model", "vocab_size", 10**12),
        ("run", "batch_size", 10**8),
    ],
)
def test_what_is_far_too_large_is_said_at_once_and_the_advice_fits(section: str, name: str, value: int) -> None:
    said = refusal(from_dict(TrainConfig, {section: {name: value}}))
    advice = re.search(rf"--{name.replace('_', '-')} (\d+)", said)
    assert advice is not None, said
    fits = int(advice[1])
    require_fits(from_dict(TrainConfig, {section: {name: fits}}), CPU)
    assert 0 < fits < value


def test_a_configuration_that_was_edited_is_refused_before_its_model_is_made() -> None:
    with pytest.raises(ConfigError, match="--num-layers"):
        fresh_state(TrainConfig(ModelConfig(vocab_size=31, num_layers=10**12), run=RunConfig(precision="fp32")))


def test_ordinary_models_fit() -> None:
    require_fits(TrainConfig(), CPU)


def test_parameters_are_counted_without_walking_the_blocks() -> None:
    for layers in (1, 2, 5):
        model = ModelConfig(vocab_size=31, num_layers=layers, windowed_blocks=(0,), attention_window=4)
        assert parameter_count(model) == sum(one.size for one in parameters(model))


def test_the_peak_of_many_blocks_follows_from_few() -> None:
    """Exactly, so that the bound is the planner's number and not another one."""
    from limpid.training.memory import _peak

    for layers in (4, 9):
        config = TrainConfig(ModelConfig(vocab_size=300, num_layers=layers), run=RunConfig(precision="fp32"))
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, gradient_checkpointing="on"))
        assert _peak(config, True) == pytest.approx(engine_memory.total_bytes(config, True), rel=1e-12)
