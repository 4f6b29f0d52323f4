"""One configuration, three spellings: dataclass, file, flags; and errors that say the way out."""

import dataclasses
import json
from typing import get_args

import numpy as np
import pytest
import tomli_w
import yaml

from limpid.config import DataConfig, ModelConfig, RunConfig, Sampling, TrainConfig, UpdateConfig
from limpid.config.domain import Within
from limpid.config.effect import require_effect
from limpid.config.files import merged, read_config, read_options, write_config
from limpid.config.flags import given
from limpid.config.options import from_dict, hints, to_dict
from limpid.errors import ConfigError

ODD = TrainConfig(
    ModelConfig(vocab_size=31, d_model=24, num_heads=3, attention_window=5, windowed_blocks=(1, 2), tied=False),
    DataConfig(paths=("a.txt", "-"), tokenizer="bytes"),
    UpdateConfig(max_grad_norm=None, optimizer="momentum"),
    RunConfig(record_steps=(3, 7), seed=11),
)


def parsed(*words: str) -> TrainConfig:
    return from_dict(TrainConfig, given("train", TrainConfig, words))


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


def test_sizes_that_were_left_open_follow_a_replaced_one() -> None:
    wide = dataclasses.replace(ModelConfig(), d_model=384)
    assert wide.sizes == ModelConfig(d_model=384).sizes
    assert (wide.sizes.d_head, wide.sizes.d_ff) == (64, 1024)
    assert dataclasses.replace(ModelConfig(), num_heads=12).sizes.num_kv_heads == 12
    assert dataclasses.replace(ModelConfig(mlp="plain"), d_model=384).sizes.d_ff == 4 * 384
    stretched = ModelConfig(rotary_scaling="linear", rotary_factor=4.0)
    assert dataclasses.replace(stretched, context_length=512).sizes.rotary_original_context == 128


def test_sizes_that_were_given_stay() -> None:
    given_sizes = ModelConfig(d_head=32, d_ff=512, num_kv_heads=6)
    assert dataclasses.replace(given_sizes, d_model=384).sizes[:3] == (32, 6, 512)
    assert dataclasses.replace(ModelConfig(), d_model=384, d_head=32).sizes.d_head == 32
    assert dataclasses.replace(ModelConfig().resolved(), d_model=384).sizes.d_head == 32


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
    "words",
    [
        ["--d-model", "64"],
        ["--d_model=64"],
        ["--model.d-model", "64"],
        ["--model.d_model", "6.4e1"],
    ],
)
def test_one_option_many_spellings(words: list[str]) -> None:
    assert parsed(*words, "--num-heads", "4").model.d_model == 64


@pytest.mark.parametrize(
    "words", [["--no-tied"], ["--tied=false"], ["--tied", "False"], ["--model.tied", "no"], ["--no_tied"]]
)
def test_a_switch_can_be_turned_off_in_every_usual_way(words: list[str]) -> None:
    assert parsed(*words).model.tied is False


def test_a_switch_does_not_swallow_a_path() -> None:
    config = parsed("--qk-norm", "corpus.txt", "--tied")
    assert config.model.qk_norm
    assert config.data.paths == ("corpus.txt",)


def test_lists_and_none() -> None:
    config = parsed("--record-steps", "1,2", "--record-steps=5", "--max-grad-norm", "none", "-")
    assert config.run.record_steps == (1, 2, 5)
    assert config.update.max_grad_norm is None
    assert config.data.paths == ("-",)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lr", "1"], "unknown option --lr: did you mean --learning-rate?"),
        (["--d-modle", "1"], "did you mean --d-model?"),
        (["--qqqqqqqqqqq"], "see limpid train --help"),
        (["--d-model", "wide"], "--d-model is 'wide': expected a whole number"),
        (["--d-model", "1.5"], "--d-model is '1.5'"),
        (["--learning-rate", "fast"], "expected a number"),
        (["--tied=perhaps"], "expected yes or no"),
        (["--d-model"], "--d-model"),
        (["--norm", "group"], "norm is 'group': choose one of rms, layer"),
        (["--optimizer", "adamw2"], "did you mean adamw?"),
        (["--d-model", "65"], "d_model 65 does not divide into num_heads 6"),
        (["--num-kv-heads", "4"], "num_kv_heads 4 does not divide num_heads 6"),
        (["--d-head", "-2"], "--d-head is -2: it must be at least 1"),
        (["--dropout", "1"], "[0, 1)"),
        (["--max-steps", "0"], "--max-steps is 0"),
        (["--windowed-blocks", "9"], "block 9"),
        (["--tokenizer-vocab-size", "10"], "257"),
    ],
)
def test_a_wrong_option_is_one_line_that_names_the_way_out(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(*words)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


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


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ModelConfig().d_model = 3


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
        (lambda: Sampling(num_beams=4, temperature=0.8), "so temperature would do nothing"),
        (lambda: Sampling(num_beams=4, top_p=0.9, top_k=3), "so top_k and top_p would do nothing"),
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


def test_a_default_of_zero_is_shown(capsys) -> None:
    with pytest.raises(SystemExit):
        given("train", TrainConfig, ["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for told in ("Initial weights, batches and dropout are functions of it. [0]", "is dropped in training. [0.0]"):
        assert told in shown


def test_a_stop_text_may_be_spelled_as_in_a_program() -> None:
    sampling = from_dict(Sampling, given("generate", Sampling, ["--stop", "\\n\\n", "--stop", "a\\\\n"]))
    assert sampling.stop == ("\n\n", "a\\n")


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


def test_options_in_nested_files_end_before_python_does(tmp_path) -> None:
    for ending, text in ((".json", "[" * 100_000), (".yaml", "[" * 5_000), (".toml", "a = " + "[" * 5_000)):
        file = tmp_path / f"deep{ending}"
        file.write_text(text)
        with pytest.raises(ConfigError, match="is not valid"):
            read_config(file)
