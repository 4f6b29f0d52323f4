"""A run of what lies in its folder."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from limpid.config import ModelConfig, RunConfig, TrainConfig
from limpid.errors import CheckpointError, ConfigError
from limpid.manifest import write_manifest
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


@pytest.mark.parametrize("damage", [b"", b"\x00\xff", b"[model]\nvocab_size = 31\n", None])
def test_a_damaged_configuration_names_the_newest_copy_that_is_whole(tmp_path: Path, damage: bytes | None) -> None:
    config = replace(TrainConfig(), model=ModelConfig(vocab_size=31), run=RunConfig(precision="fp32"))
    run = Run(tmp_path)
    run.write_config(config, config)
    for step in (3, 6, 9):
        run.checkpoint(step).mkdir(parents=True)
    for step in (3, 6):
        run.copy_config(run.checkpoint(step))
        write_manifest(run.checkpoint(step))
    content = run.config_file.read_bytes()
    damaged = content.replace(b"max_steps = 400", b"max_steps = 401")
    (run.checkpoint(6) / "config.toml").write_bytes(damaged)
    run.config_file.write_bytes(damaged if damage is None else damage)
    for read in (run.read_config, run.read_asked) if damage is None else (run.read_config,):
        with pytest.raises((ConfigError, CheckpointError)) as refused:
            read()
        assert f"`cp {run.checkpoint(3) / 'config.toml'} {run.config_file}` brings back a copy" in str(refused.value)
    shutil.copyfile(run.checkpoint(3) / "config.toml", run.config_file)
    assert run.read_config() == config
