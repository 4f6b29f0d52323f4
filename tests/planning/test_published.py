"""Published models: their sizes, and the names they go by."""

import pytest

from limpid.errors import ConfigError
from limpid.planning.parameters import count, figures
from limpid.planning.published import known, published, table


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
    for name in table():
        found = figures(published(name))
        assert found[-1].value > 0
