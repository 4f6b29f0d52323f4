"""One configuration in Python, held to the same as files and flags."""

from typing import get_args

import numpy as np
import pytest

from limpid.config import DataConfig, ModelConfig, RunConfig, Sampling, TrainConfig, UpdateConfig
from limpid.config.domain import Within
from limpid.config.options import hints
from limpid.errors import ConfigError


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ModelConfig(d_model="64"), "d_model is '64': expected a whole number"),
        (lambda: ModelConfig(d_model=10**30), "it must fit in 64 bits"),
        (lambda: ModelConfig(norm_eps=float("inf")), "norm_eps is inf: it must be a finite number"),
        (lambda: ModelConfig(rotary_factor=0), "rotary_factor is 0.0: it must be above 0"),
        (lambda: ModelConfig(init_std=-1), "init_std is -1.0: it must not be negative"),
        (lambda: ModelConfig(rotary_scaling="llama3", rotary_low=4.0), "rotary_low 4.0 is not below rotary_high"),
        (lambda: ModelConfig(tied="yes"), "tied is 'yes': expected yes or no"),
        (lambda: UpdateConfig(learning_rate="3e-4"), "learning_rate is '3e-4': expected a number"),
        (lambda: UpdateConfig(learning_rate=float("nan")), "learning_rate is nan: it must be a finite number"),
        (lambda: UpdateConfig(schedule_power=-1), "schedule_power is -1.0: it must be above 0"),
        (lambda: RunConfig(record_steps=(0,)), "record_steps is 0: it must be at least 1"),
        (lambda: DataConfig(paths=(3,)), "paths is 3: expected text"),
        (lambda: TrainConfig(model=3), "model is 3: expected a table of options, ModelConfig"),
        (lambda: TrainConfig(model={"d_modle": 3}), "unknown option model.d_modle: did you mean d_model?"),
        (lambda: Sampling(temperature=float("inf")), "temperature is inf: it must be a finite number"),
        (lambda: Sampling(length_penalty=float("nan"), num_beams=2), "length_penalty is nan"),
        (lambda: Sampling(num_beams=4, temperature=0.8), "and temperature is 0.8: beam search draws nothing"),
        (
            lambda: Sampling(num_beams=4, top_p=0.9, top_k=3),
            "and top_k is 3 and top_p is 0.9: beam search draws nothing",
        ),
        (lambda: Sampling(length_penalty=2), "give --num-beams too"),
        (lambda: Sampling(seed=-1), "seed is -1: it must not be negative"),
    ],
)
def test_python_is_held_to_the_same_as_files_and_flags(make, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_value_stands_for_several_and_a_whole_number_for_a_number(tmp_path) -> None:
    assert DataConfig(paths="text.txt").paths == ("text.txt",)
    assert DataConfig(paths=[tmp_path]).paths == (str(tmp_path),)
    assert UpdateConfig(learning_rate=1).learning_rate == 1.0
    assert ModelConfig(d_model=np.int64(48)).d_model == 48
    assert type(ModelConfig(d_model=np.int64(48)).d_model) is int


@pytest.mark.parametrize("section", [ModelConfig, DataConfig, UpdateConfig, RunConfig, Sampling])
def test_every_number_has_an_interval(section: type) -> None:
    """What has no interval may be infinite, or negative, without anybody having thought of it."""
    for name, kind in hints(section).items():
        parts = {kind, *get_args(kind), *(part for one in get_args(kind) for part in get_args(one))}
        if parts & {int, float}:
            assert any(isinstance(part, Within) for part in parts), name
