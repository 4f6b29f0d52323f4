"""Options as typed: every usual spelling, and errors that say the way out."""

from dataclasses import dataclass

import pytest

from limpid.config import Sampling, TrainConfig
from limpid.config.flags import field_texts, given
from limpid.config.options import from_dict
from limpid.errors import ConfigError
from limpid.verbs.learn import LearnFlags


def parsed(*words: str) -> TrainConfig:
    return from_dict(TrainConfig, given("train", TrainConfig, words))


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


@pytest.mark.parametrize("text", ["none", "-1/3", "-0,5", "-5e3"])
def test_an_answer_is_taken_as_it_was_typed(text: str) -> None:
    assert from_dict(LearnFlags, given("learn", LearnFlags, ["dot", "--answer", text])).answer == text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--bf16", "1"], "unknown option --bf16: did you mean --precision?"),
        (["--d-modle", "1"], "did you mean --d-model?"),
        (["--batch", "3"], "did you mean --batch-size?"),
        (["--learnig-rate", "1"], "did you mean --learning-rate?"),
        (["--qqqqqqqqqqq"], "see limpid train --help"),
        (["--paths", "a.txt"], "unknown option --paths: PATH stands without a name; see limpid train --help"),
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
        (["--report-to", "wandb,,"], "--report-to is 'wandb,,': a value is missing before or after a comma"),
    ],
)
def test_a_wrong_option_is_one_line_that_names_the_way_out(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(*words)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_default_of_zero_is_shown(capsys) -> None:
    with pytest.raises(SystemExit):
        given("train", TrainConfig, ["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for told in ("Initial weights, batches and dropout are functions of it. [0]", "is dropped in training. [0.0]"):
        assert told in shown


def test_a_stop_text_may_be_spelled_as_in_a_program() -> None:
    sampling = from_dict(Sampling, given("generate", Sampling, ["--stop", "\\n\\n", "--stop", "a\\\\n"]))
    assert sampling.stop == ("\n\n", "a\\n")


@pytest.mark.parametrize(
    ("words", "section", "option", "value"),
    [
        (["--lr", "0.5"], "update", "learning_rate", 0.5),
        (["--n_embd=64"], "model", "d_model", 64),
        (["--block-size", "32"], "model", "context_length", 32),
        (["--dtype", "bf16"], "run", "precision", "bf16"),
        (["--per-device-train-batch-size", "3"], "run", "batch_size", 3),
    ],
)
def test_names_of_other_tools_are_understood(words: list[str], section: str, option: str, value: object) -> None:
    assert given("train", TrainConfig, words) == {section: {option: value}}


def test_a_name_that_means_something_else_elsewhere_is_answered_with_ours() -> None:
    with pytest.raises(ConfigError, match="unknown option --max-tokens: did you mean --max-new-tokens"):
        given("generate", Sampling, ["--max-tokens", "9"])


def test_everyday_options_come_first_and_the_rest_when_asked(capsys: pytest.CaptureFixture) -> None:
    everyday = ("learning_rate", "d_model")
    shown = []
    for word in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as stopped:
            given("train", TrainConfig, [word], everyday)
        assert not stopped.value.code
        shown.append(capsys.readouterr().out)
    assert shown[0].index("--learning-rate X") < shown[0].index("--d-model N")
    assert "--d-ff" not in shown[0]
    assert "more options: limpid train --help-all" in shown[0]
    assert "--d-ff N" in shown[1]
    assert "--norm {rms,layer}" in shown[1]
    assert given("train", TrainConfig, ["--d-ff", "64"], everyday) == {"model": {"d_ff": 64}}


@dataclass(frozen=True)
class Wide:
    size: int = 1
    """Pixels."""


@dataclass(frozen=True)
class Narrow(Wide):
    size: int = 2
    """Points."""


def test_a_field_that_is_given_anew_has_the_text_below_it() -> None:
    assert field_texts(Narrow) == {"size": "Points."}
