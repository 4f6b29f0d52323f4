"""Options that would do nothing."""

from itertools import pairwise

import pytest

from limpid.config import DataConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.config.effect import require_effect
from limpid.config.files import read_config, write_config
from limpid.errors import ConfigError
from limpid.schedule import learning_rate


def test_what_a_run_cannot_notice_is_refused_when_it_is_new_and_still_opens(tmp_path) -> None:
    """An older run may hold such options: they did nothing, and it must open."""
    short = TrainConfig(update=UpdateConfig(warmup_steps=500), run=RunConfig(max_steps=9, record_steps=(3,)))
    file = tmp_path / "config.toml"
    write_config(file, short)
    assert read_config(file) == short
    with pytest.raises(ConfigError, match="warmup_steps is 500, and the run has 9 steps"):
        require_effect(short)
    require_effect(short, steps_are_known=False)
    require_effect(TrainConfig(run=RunConfig(max_steps=3)))


def test_a_warm_up_that_nobody_asked_for_follows_a_short_run() -> None:
    for steps in (1, 8, 20, 100, 400):
        rates = [learning_rate(step, steps, UpdateConfig()) for step in range(1, steps + 1)]
        assert sum(one < later for one, later in pairwise(rates)) <= min(20, steps / 10)
        assert steps == 1 or max(rates) > 0.9 * UpdateConfig().learning_rate
    assert UpdateConfig(warmup_steps=20).warmup(20) == 20  # what is asked for stays


def test_a_share_to_hold_out_does_nothing_beside_text_to_validate_on() -> None:
    asked = TrainConfig(data=DataConfig(validation=("test.txt",), validation_fraction=0.3))
    with pytest.raises(ConfigError, match="nothing is divided where validation names a text"):
        require_effect(asked)
