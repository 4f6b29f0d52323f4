"""What may be called without reading the source, and what may be typed: changing either is a decision, not a slip."""

import dataclasses

import pytest

import limpid
from limpid.config import DataConfig, ModelConfig, RunConfig, UpdateConfig
from limpid.config.flags import field_texts, options_of
from limpid.config.tuning import KINDS
from limpid.verbs.tune import flags_of

SECTIONS = {"model": ModelConfig, "data": DataConfig, "update": UpdateConfig, "run": RunConfig}


def test_few_public_names_and_each_resolves() -> None:
    assert len(limpid.__all__) <= 24
    for name in limpid.__all__:
        assert getattr(limpid, name) is not None


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    assert not hasattr(limpid, "no_such_name")


def test_every_option_is_named_once_so_that_its_flag_needs_no_section() -> None:
    names = [field.name for section in SECTIONS.values() for field in dataclasses.fields(section)]
    assert len(names) == len(set(names))


def test_every_option_says_what_it_is() -> None:
    for section in SECTIONS.values():
        texts = field_texts(section)
        for field in dataclasses.fields(section):
            assert len(texts.get(field.name, "")) > 10, field.name


@pytest.mark.parametrize("objective", list(KINDS))
def test_no_option_of_an_objective_has_the_name_of_another_option(objective: str) -> None:
    names = [option.field.name for option in options_of(flags_of(objective))]
    assert len(names) == len(set(names))
