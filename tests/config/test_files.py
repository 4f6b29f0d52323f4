"""A configuration's file gives back what was written, in every format, and from older versions."""

import json

import pytest
import tomli_w
import yaml

from limpid.config import DataConfig, ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.config.files import merged, read_config, read_options, write_config
from limpid.config.flags import given
from limpid.config.options import from_dict, to_dict
from limpid.errors import ConfigError

ODD = TrainConfig(
    ModelConfig(vocab_size=31, d_model=24, num_heads=3, attention_window=5, windowed_blocks=(1, 2), tied=False),
    DataConfig(paths=("a.txt", "-"), tokenizer="bytes"),
    UpdateConfig(max_grad_norm=None, optimizer="momentum"),
    RunConfig(record_steps=(3, 7), seed=11),
)


@pytest.mark.parametrize("config", [TrainConfig(), ODD])
def test_a_file_gives_back_what_was_written(tmp_path, config: TrainConfig) -> None:
    file = tmp_path / "config.toml"
    write_config(file, config)
    assert read_config(file) == config


@pytest.mark.parametrize(
    ("ending", "dump"), [(".json", json.dumps), (".yaml", yaml.safe_dump), (".toml", tomli_w.dumps)]
)
def test_every_format_means_the_same(tmp_path, ending: str, dump) -> None:
    file = tmp_path / f"config{ending}"
    file.write_text(dump(to_dict(ODD)))
    assert read_config(file) == ODD


def test_a_file_keeps_sizes_open(tmp_path) -> None:
    file = tmp_path / "config.toml"
    write_config(file, TrainConfig())
    assert "d_head is 32" in file.read_text()
    config = from_dict(TrainConfig, merged(read_options(file), given("train", TrainConfig, ["--d-model", "384"])))
    assert config.model.sizes == ModelConfig(d_model=384).sizes


def test_a_run_is_read_as_resolved_and_copied_as_asked(tmp_path) -> None:
    file = tmp_path / "config.toml"
    asked = TrainConfig(ModelConfig(num_kv_heads=2), update=UpdateConfig(max_grad_norm=1.0))
    resolved = TrainConfig(
        ModelConfig(num_kv_heads=None, vocab_size=2048),
        update=UpdateConfig(max_grad_norm=None),
        run=RunConfig(precision="bf16", threads=2),
    )
    write_config(file, asked, resolved)
    assert read_config(file) == resolved
    assert from_dict(TrainConfig, read_options(file)) == asked


def test_a_file_from_before_sizes_stayed_open_means_the_same_model(tmp_path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[model]\nd_model = 192\nnum_kv_heads = 6\nd_head = 32\nd_ff = 512\nrotary_original_context = 0\n")
    assert read_config(file).model.resolved() == ModelConfig().resolved()


def test_never_clipping_survives_the_file(tmp_path) -> None:
    file = tmp_path / "config.toml"
    write_config(file, TrainConfig(update=UpdateConfig(max_grad_norm=None)))
    assert read_config(file).update.max_grad_norm is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[model]\nd_modle = 3", "unknown option model.d_modle: did you mean d_model?"),
        ("[model]\nd_model = 'x'", "model.d_model is 'x': expected a whole number"),
        ("[model]\nd_model = true", "expected a whole number"),
        ("[model", "not valid toml"),
        ("model = 3", "expected a table"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, text: str, message: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config(file)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_in_nested_files_end_before_python_does(tmp_path) -> None:
    for ending, text in ((".json", "[" * 100_000), (".yaml", "[" * 5_000), (".toml", "a = " + "[" * 5_000)):
        file = tmp_path / f"deep{ending}"
        file.write_text(text)
        with pytest.raises(ConfigError, match="is not valid"):
            read_config(file)
