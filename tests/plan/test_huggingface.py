"""Published families: their counts against transformers' own models, their names, their mistakes."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import pytest

from limpid.config import ModelConfig
from limpid.errors import ConfigError
from limpid.plan.architecture import Architecture, of_config
from limpid.plan.huggingface import FORMS, of_file, of_their_config
from limpid.plan.parameters import count, figures
from limpid.plan.published import known, published, published_names
from limpid.quantities import parameters
from plan.families import CHANGES, their_config, their_count


@pytest.mark.parametrize("family", FORMS)
def test_every_family_has_as_many_parameters_as_its_model_in_transformers(family: str) -> None:
    for changes in CHANGES[:1] if family in ("bert", "roberta", "xlm-roberta", "distilbert") else CHANGES:
        config = their_config(family, changes)
        plain = {**config.to_dict(), "model_type": family}
        assert count(of_their_config(plain)) == their_count(family, config), changes


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt2-xl", 1_557_611_200),
        ("gpt3-175b", 174_604_259_328),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3.1-405b", 405_853_388_800),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen2.5-72b", 72_706_203_648),
        ("qwen3-235b-a22b", 235_093_634_560),
        ("gemma-2-9b", 9_241_705_984),
        ("gemma-3-1b", 999_885_952),
        ("pythia-12b", 11_846_072_320),
        ("tinyllama-1.1b", 1_100_048_384),
        ("bert-base", 109_482_240),
        ("bert-base-cased", 108_310_272),
        ("mistral-7b-v0.3", 7_248_023_552),
        ("deepseek-v3", 671_026_404_352),
    ],
)
def test_published_models_have_their_published_size(name: str, parameters: int) -> None:
    assert count(published(name)) == parameters


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("meta-llama/Llama-2-7b-hf", "llama-2-7b"),
        ("Meta-Llama-3-8B", "llama-3-8b"),
        ("GPT-3 175B", "gpt3-175b"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("EleutherAI/pythia-1.4b-deduped", "pythia-1.4b"),
        ("bert-base-uncased", "bert-base"),
        ("google-bert/bert-base-cased", "bert-base-cased"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("mistralai/Mixtral-8x22B-Instruct-v0.1", "mixtral-8x22b-v0.3"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"),
    ],
)
def test_names_are_understood_as_they_are_written_elsewhere(spelled: str, name: str) -> None:
    assert known(spelled) == name


def test_an_unknown_name_is_answered_with_the_closest() -> None:
    with pytest.raises(ConfigError, match=r"llama-3-8c.*did you mean .*llama-3-8b"):
        published("llama-3-8c")


def test_every_published_name_can_be_counted() -> None:
    for name in published_names():
        found = figures(published(name))
        assert found[-1].value > 0


CONFIGS = [
    ModelConfig(vocab_size=101, context_length=17, d_model=48, num_heads=6, **dict(zip(
        ("mlp", "norm", "norm_placement", "positions", "tied", "qk_norm", "num_kv_heads"), values, strict=True)),
        attention_bias=values[4], attention_output_bias=values[5], mlp_bias=values[4])
    for values in itertools.product(("gated", "plain"), ("rms", "layer"), ("pre", "post"), ("rotary", "learned"),
                                    (True, False), (True, False), (2, 6))
]  # fmt: skip


def test_what_limpid_trains_is_counted_as_the_vocabulary_does() -> None:
    for config in CONFIGS:
        assert count(of_config(config)) == sum(parameter.size for parameter in parameters(config)), config


def test_parts_add_up_to_the_total() -> None:
    for name in ("gpt2", "deepseek-v3", "gemma-3-4b"):
        found = {one.name: one.value for one in figures(published(name))}
        pieces = sum(value for key, value in found.items() if key.count(".") > 1)
        assert pieces == found["parameters.total"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot read"),
        ("[]", "holds list"),
        ("{}", "no model_type"),
        ('{"model_type": "lama"}', "did you mean llama"),
        ('{"model_type": "llama"}', "has no vocab_size"),
        ('{"model_type": "llama", "vocab_size": "many"}', "whole numbers"),
    ],
)
def test_a_config_that_cannot_be_read_says_why(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        of_file(tmp_path / "config.json")


def test_the_text_part_of_a_model_with_several_is_read(tmp_path: Path) -> None:
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024,
            "model_type": "gemma3_text"}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    found = of_file(tmp_path / "config.json")
    assert dataclasses.replace(found, name="gemma-3-4b") == published("gemma-3-4b")


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ConfigError, match="48 does not divide into num_heads 7"):
        Architecture(vocab_size=10, d_model=48, num_layers=1, num_heads=7, d_ff=10)
