"""Exercises with the reader's own numbers: solved line by line, and refused in one line where they make no sense."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpid.cli import main
from limpid.errors import ConfigError
from limpid.primer import own_numbers
from limpid.primer.exercise import numbers_of
from limpid.primer.exercises import EXERCISES
from limpid.primer.own_numbers import spelled
from limpid.primer.solution import line_by_line

SAME = {
    "v = [3, 4]": 5, "v=[3,4]": 5, "v = [3; 4]": 5, "v = [√9, 8/2]": 5, "v = [3.0, 4]": 5, "v = [-3, 4]\n": 5,
    "V = [3, 4]": 5,
    "v = [1, 1, 1, 1]": 2, "v = [2]": 2, "v = [0]": 0,
}  # fmt: skip


@pytest.mark.parametrize("text", SAME)
def test_numbers_are_read_as_toml_or_as_answers_are(text: str) -> None:
    exercise = EXERCISES["length"]
    assert exercise.answer(own_numbers.given(exercise, text)).values == pytest.approx([SAME[text]])


@pytest.mark.parametrize("name", EXERCISES)
def test_every_exercise_takes_its_own_draws(name: str) -> None:
    exercise = EXERCISES[name]
    for seed in range(4):
        numbers = numbers_of(exercise, seed)
        again = own_numbers.given(exercise, spelled(numbers))
        assert exercise.question(again) == exercise.question(numbers)
        assert exercise.answer(again) == exercise.answer(numbers)


REFUSED = {
    ("length", "v = 3"): "gives v = 3: a list of finite numbers",
    ("length", "v = []"): "gives v = []: a list of finite numbers",
    ("length", "v = [inf, 1]"): "gives v = [inf, 1]: a list of finite numbers",
    ("length", "v = [1e400]"): "gives v = [inf]: a list of finite numbers",
    ("length", "v = [true]"): "gives v = [True]: a list of finite numbers",
    ("length", "v = ['a']"): "gives v = ['a']: a list of finite numbers",
    ("length", "v = [[1, 2]]"): "gives v = [[1, 2]]: a list of finite numbers",
    ("length", "v = {x = 1}"): "a list of finite numbers",
    ("length", "v = cat"): "gives v no number: “cat” is not read",
    ("length", "v = [1, __import__('os')]"): "gives v no number",
    ("length", "v = 3x2"): "gives v = 3x2: a number or a list of numbers",
    ("length", "q = [1]"): "has q, and length takes v: as in --numbers 'v = [6, 2, 3]'",
    ("length", ""): "has no v",
    ("length", "[1, 2]"): "has '[1, 2]', which gives no value a name",
    ("length", "v = [1]; v = [√2]"): "which gives no value a name of its own",
    ("length", f"v = {list(range(65))}"): "gives v 65 entries: 64 at most",
    ("length", "v = [1e308, 1]"): "gives v 1e+308: 1,000,000,000 at most",
    ("length", "v = [-2e9]"): "gives v 2e+09: 1,000,000,000 at most",
    ("training-flops", "parameters = 7; tokens = 1e30"): "gives tokens 1e+30: 1,000,000,000 at most",
    ("dot", "a = [1, 2]"): "has no b",
    ("dot", "a = [1, 2]\nb = [1, 2, 3]"): "gives a = [1, 2], b = [1, 2, 3], which do not go together",
    ("matrix-vector", "w = [[1, 2], [3]]; v = [1, 2]"): "gives w = [[1, 2], [3]]: rows of finite numbers",
    ("matrix-vector", "w = [[1, √4], [3, 4]]; v = [1, 2, 3]"): "do not go together",
    ("cosine", "a = [0, 0]; b = [1, 2]"): "",
    ("surprise", "p = 1.5"): "gives p = 1.5: a probability lies in 0 to 1",
    ("surprise", "p = -0.1"): "a number above 0",
    ("scores", "tokens = 2.5; heads = 1/2"): "gives tokens = 2.5: a whole number, 1 or more",
    ("scores", "tokens = 0\nheads = 1"): "gives tokens = 0: a whole number, 1 or more",
    ("power-rule", "n = 1000000; x = 3"): "",
    ("perplexity", "h = 1e6"): "",
}  # fmt: skip


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("name", "text"), REFUSED)
def test_what_makes_no_sense_is_refused_in_a_line_with_the_way_out(
    name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["learn", name, "--numbers", text]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("limpid: error: --numbers ")
    assert REFUSED[name, text] in said


@settings(max_examples=200)
@given(st.sampled_from(list(EXERCISES)), st.text(alphabet="abvpz=[]{}0123456789.,;-/√e\n'\" nix", max_size=40))
def test_nothing_typed_ends_in_pythons_own_error(name: str, text: str) -> None:
    with contextlib.suppress(ConfigError):
        own_numbers.given(EXERCISES[name], text)


LINES = {
    "‖v‖ = √(3² + 4²) = √25 = 5": "‖v‖ = √(3² + 4²)\n    = √25\n    = 5",
    "a = 1, b = 2; c (d; e) = 3": "a = 1\nb = 2\nc (d; e) = 3",
    "1/3 each, whatever the number": "1/3 each, whatever the number",
    "a = b = 1\nm = 2 = 3": "a = b\n  = 1\nm = 2\n  = 3",
    "x = [1, 2], y = [3, 4]": "x = [1, 2]\ny = [3, 4]",
    "0.3 · 0.5 = 0.15, and its logarithm is −1.9": "0.3 · 0.5 = 0.15, and its logarithm is −1.9",
}


@pytest.mark.parametrize("solution", LINES)
def test_a_solution_is_told_line_by_line(solution: str) -> None:
    assert line_by_line(solution) == LINES[solution]


@pytest.mark.parametrize("name", EXERCISES)
def test_no_word_of_a_solution_is_lost(name: str) -> None:
    exercise = EXERCISES[name]
    told = exercise.solution(*exercise.given(exercise.first))
    left = line_by_line(told).replace("\n", " ")
    assert [sign for sign in left if sign not in " ,;"] == [sign for sign in told if sign not in " ,;\n"]


def test_own_numbers_are_solved_asked_or_judged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = ["learn", "length", "--numbers", "v = [3, 4]"]
    assert main(mine) == 0
    assert capsys.readouterr().out.splitlines() == [
        "length --numbers 'v = [3, 4]'", "How long is v = [3, 4]? Give ‖v‖.", "‖v‖ = √(3² + 4²)", "    = √25", "    = 5"
    ]  # fmt: skip
    assert main([*mine, "--answer", "25"]) == 1
    assert "Which number has this square?" in capsys.readouterr().out
    monkeypatch.setattr("builtins.input", lambda _: "5")
    assert main([*mine, "--ask"]) == 0
    assert "√25" not in capsys.readouterr().out
    assert main([*mine, "--seed", "2"]) == 2
    assert "--numbers is given beside seed" in capsys.readouterr().err
