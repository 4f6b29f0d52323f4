"""Families by their config.json: counts against transformers' own models, and mistakes."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import pytest

from limpid import plan
from limpid.config import ModelConfig
from limpid.errors import ConfigError
from limpid.planning.architecture import architecture, of_config
from limpid.planning.huggingface import FAMILIES, read_config, read_file
from limpid.planning.parameters import count, figures
from limpid.planning.published import published
from limpid.quantities import parameters
from planning.families import CHANGES, their_config, their_count


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_as_many_parameters_as_its_model_in_transformers(family: str) -> None:
    for changes in CHANGES[:1] if family in ("bert", "roberta", "xlm-roberta", "distilbert") else CHANGES:
        config = their_config(family, changes)
        plain = {**config.to_dict(), "model_type": family}
        model = read_config(plain)
        assert count(model) == their_count(family, config), changes
        assert plan(model, context_length=16).figure("parameters.total").value == count(model)


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
        read_file(tmp_path / "config.json")


def test_the_text_part_of_a_model_with_several_is_read(tmp_path: Path) -> None:
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024,
            "model_type": "gemma3_text"}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    found = read_file(tmp_path / "config.json")
    assert dataclasses.replace(found, name="gemma-3-4b") == published("gemma-3-4b")


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ConfigError, match="48 does not divide into num_heads 7"):
        architecture(vocab_size=10, d_model=48, num_layers=1, num_heads=7, d_ff=10)
