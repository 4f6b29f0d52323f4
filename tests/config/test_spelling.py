"""Options in an error's words, as they are typed."""

import pytest

from limpid.config.spelling import with_dashes
from limpid.verbs.train import TrainFlags


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("d_model 25 does not divide into num_heads 4", "--d-model 25 does not divide into --num-heads 4"),
        ("lora_alpha is 8.0: give a lora_rank", "--lora-alpha is 8.0: give a --lora-rank"),
        ("schedule_power is 3, without schedule polynomial", "--schedule-power is 3, without --schedule polynomial"),
        ("lora_rank leaves seed as it is", "--lora-rank leaves seed as it is"),
        ("threads is 9, more threads than there are", "--threads is 9, more threads than there are"),
        ("seed is -1: it must not be negative", "--seed is -1: it must not be negative"),
        ("a.toml: model.d_model is 3: leave d_model out", "a.toml: model.d_model is 3: leave d_model out"),
        ("config.json has vocab_size 3", "config.json has vocab_size 3"),
        ("seed_all is no file", "seed_all is no file"),
        ("paths is 'a': it is a folder", "paths is 'a': it is a folder"),
    ],
)
def test_an_error_about_options_spells_them_as_flags(said: str, shown: str) -> None:
    assert with_dashes(said, TrainFlags) == shown
