"""Sizes that were left open follow the others; what was given stays."""

import dataclasses

import pytest

from limpid.config import ModelConfig


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


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ModelConfig().d_model = 3
