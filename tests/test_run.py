"""A run of what lies in its folder."""

from dataclasses import replace
from pathlib import Path

import pytest

from limpid.config import ModelConfig, RunConfig, TrainConfig
from limpid.errors import CheckpointError, ConfigError
from limpid.run import Run


@pytest.mark.parametrize("content", ["", "[model]\nd_model = 24\n", "[model]\nvocab_size = 31\n"])
def test_a_configuration_that_was_emptied_is_no_run_of_the_defaults(tmp_path: Path, content: str) -> None:
    run = Run(tmp_path)
    run.config_file.write_text(content)
    with pytest.raises(CheckpointError, match="does not say the run's vocab_size and precision"):
        run.read_config()


def test_a_configuration_that_was_changed_since_is_refused_until_its_user_says_so(tmp_path: Path) -> None:
    config = replace(TrainConfig(), model=ModelConfig(vocab_size=31), run=RunConfig(precision="fp32"))
    run = Run(tmp_path)
    run.write_config(config, config)
    assert run.read_config() == config
    content = run.config_file.read_bytes()
    run.config_file.write_bytes(content.replace(b"max_steps = 400", b"max_steps = 401"))
    for read in (run.read_config, run.read_asked):
        with pytest.raises(ConfigError, match="not as limpid wrote it"):
            read()
    run.config_file.write_bytes(b"".join(run.config_file.read_bytes().splitlines(keepends=True)[:-1]))
    assert run.read_config().run.max_steps == 401
