"""What is said to an answer: rounding is no slip, and a slip is not taken for rounding."""

import io
from pathlib import Path

import pytest

from limpid.cli import main
from limpid.primer.answer import Unreadable
from limpid.primer.exercise import numbers_of
from limpid.primer.exercises import EXERCISES
from limpid.primer.grade import Grade, grade


def judged(name: str, text: str, **numbers: object) -> Grade:
    exercise = EXERCISES[name]
    return grade(exercise, {**exercise.first, **numbers}, text)


MANY = {"tokens": 390, "heads": 16}
ROUNDED = {
    ("surprise", "0.4"): {"p": 0.7}, ("perplexity", "49"): {"h": 3.9}, ("attend", "14"): {},
    ("layer-norm", "[-1.3, -0.4, 0.4, 1]"): None, ("layer-norm", "[-1.3, -0.4, 0.4, 1.3]"): {},
    ("causal-scores", "1.22e6"): MANY, ("causal-scores", "1.22·10⁶"): MANY,
    ("causal-scores", "1,220,000"): MANY, ("query-weights", "590,000"): {},
    ("query-weights", "580,000"): None, ("training-memory", "110"): None, ("interval", "1"): None,
    ("training-flops", "4.2e22"): None,
}  # fmt: skip
"""An answer, and the numbers with which the right one rounds to it; None where it does not, or is right at once."""


@pytest.mark.parametrize(("name", "text"), ROUNDED)
def test_the_right_answer_rounded_as_it_was_typed_is_right_so_far(name: str, text: str) -> None:
    numbers = ROUNDED[name, text]
    found = judged(name, text, **(numbers or {}))
    assert (found.outcome == "rounded") == (numbers is not None)
    assert numbers is None or found.says == "Right so far: give more digits."


def test_an_answer_that_a_slip_has_exactly_is_that_slip() -> None:
    assert judged("adamw-first-step", "0.6").note == "no-decay"
    assert judged("adamw-first-step", "0.59").outcome == "rounded"
    assert judged("causal-scores", "1,216,800", **MANY).note == "half"
    assert "Too few digits" in judged("causal-scores", "1.2e6", **MANY).says
    assert judged("softmax-of-scores", "[1, 0, 0]").note == "largest-alone"


@pytest.mark.parametrize("text", ["2.13e24", "2.13*10^24", "2.13×10²⁴", "2.1e24 FLOPs", "2,1·10^24", "2.13192e24"])
def test_about_how_many_is_answered_in_every_notation(text: str) -> None:
    exercise = EXERCISES["training-flops"]
    assert grade(exercise, numbers_of(exercise, 7), text).outcome == "right"


def test_a_list_without_spaces_is_a_list() -> None:
    right = {"gradient": "7,-5", "layer-sizes": "768 × 512", "transpose": "4,15,13", "matrix-matrix": "[[4,9],[3,12]]"}
    assert {judged(name, text).outcome for name, text in right.items()} == {"right"}
    assert judged("layer-sizes", "512,768").note == "swapped"
    assert judged("product-shape", "(3,2)").outcome == "right"
    assert judged("product-order", "[3, 2]").note == "as-if-ab"
    assert judged("undo-ln", "20,0855").outcome == "right"


def test_what_is_said_follows_the_numbers() -> None:
    assert "makes it smaller: batches of 32 have fewer examples" in judged("batch-noise", "2.7", v=5.4, b=64, c=32).says
    assert "makes it larger: batches of 32 have more" in judged("batch-noise", "8").says
    assert "adds up to 3" in judged("softmax-of-equals", "[1, 1, 1]").says


def test_the_likeliest_ways_to_go_wrong_have_names() -> None:
    for name, text in {"right-angle": "90", "cosine": "16.26"}.items():
        assert judged(name, text).note == judged(name, f"{text}°").note == "angle"
    sizes = {"outputs": 4096, "inputs": 1280, "rank": 64}
    assert judged("low-rank-parameters", "81920", **sizes).note == "one-factor"
    assert judged("low-rank-parameters", "262144", **sizes).note == "other-factor"
    signs = {"dot": "-22", "surprise": "-1.204", "reward-loss": "-0.3133", "chain-of-tokens": "2.0025"}
    assert {judged(name, text).note for name, text in signs.items()} == {"sign"}


def test_a_unit_that_fits_is_read_and_another_is_named() -> None:
    assert judged("training-memory", "112 GB").outcome == judged("momentum-window", "100 steps").outcome == "right"
    assert judged("surprise", "1.737 bits").outcome == "right"
    with pytest.raises(Unreadable, match="“112 steps” is in steps: type it in gigabytes, or the number alone"):
        judged("training-memory", "112 steps")
    with pytest.raises(Unreadable, match="type it without a unit"):
        judged("cosine", "0.96 GB")
    assert judged("green-count", "3.46 standard deviations").outcome == "right"
    with pytest.raises(Unreadable, match="is in zillions: type it in numbers"):
        judged("size-of-a-gradient", "7 zillions")
    assert judged("training-memory", "112e9").says == "Right in bytes; asked for are gigabytes."
    assert judged("training-memory", "112 GiB").says.startswith("Not 120.259 gigabytes.")
    assert judged("training-memory", "14").note != "unit"


def test_a_slip_is_told_with_the_digits_that_were_typed() -> None:
    assert judged("standard-deviation", "3.46").says.startswith("3.46 divides by one less")
    assert judged("interval", "0.8413").says.startswith("0.8413 counts everything below")


@pytest.mark.parametrize("seed", range(1, 8))
def test_a_sign_is_explained_by_what_the_question_holds(seed: int) -> None:
    exercise = EXERCISES["dot"]
    numbers = numbers_of(exercise, seed)
    (wrong,) = exercise.answer({**numbers, "a": -numbers["a"]}).values
    assert "negative where one factor is, not both" in grade(exercise, numbers, str(wrong)).says


def test_none_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", "product-order", "--seed", "0", "--answer", "none"]) == 0
    assert "Right: undefined." in capsys.readouterr().out
    assert main(["learn", "length", "--seed", "0", "--answer", "none"]) == 1
    assert "Asked for is one number." in capsys.readouterr().out
    assert main(["learn", "dot", "--seed", "0", "--answer", "-1/3"]) == 1
    assert "Not −0.333333." in capsys.readouterr().out


def test_a_name_that_is_misspelled_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", "lenght"]) == 2
    assert "did you mean length?" in capsys.readouterr().err


def test_hints_go_on_where_they_were_and_say_when_they_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("LIMPID_LEARN", str(tmp_path / "learn.json"))
    monkeypatch.setattr("sys.stdin", io.StringIO("hint\n5\nhint\nhint\nhint\n"))
    assert main(["learn", "length", "--seed", "0"]) == 1
    first, second, third = EXERCISES["length"].hints
    said = capsys.readouterr().out.splitlines()[2:]
    assert said == [first, f"Not 5. {second}", second, third, f"{third} That was the last hint: type solution."]


def test_a_list_that_is_wrong_keeps_its_brackets() -> None:
    assert judged("matrix-vector", "8,8").says.startswith("Not [8, 8].")
    assert judged("length", "[6]").note == "form-list"
