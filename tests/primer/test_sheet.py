"""The sheet to print: the numbers are those of the seed anywhere, and nothing is fetched."""

import json
import re
from pathlib import Path

import pytest

from limpid.cli import main
from limpid.primer.exercise import numbers_of
from limpid.primer.exercises import EXERCISES
from limpid.primer.sheet import sections, sheet


def parts_of(page: str) -> list[str]:
    return re.findall(r"<section>.*?</section>", page, re.DOTALL)


def test_each_exercise_is_asked_solved_and_has_its_slips() -> None:
    (asked,) = parts_of(sheet(EXERCISES.values(), 7))
    solved, slips = parts_of(sheet(EXERCISES.values(), 7, key=True))
    for part in (asked, solved, slips):
        assert re.findall(r"<b>(\d+)</b>", part) == [str(number + 1) for number in range(len(EXERCISES))]
    for name, exercise in EXERCISES.items():
        numbers = numbers_of(exercise, 7)
        answer = f"<strong>{exercise.answer(numbers)}</strong>"
        assert answer in solved
        assert answer not in asked
        assert exercise.question(numbers).split("\n")[0].split("'")[0].split("<")[0] in asked, name
        assert all(f"<td>{slip.note}</td>" in slips for slip, _ in exercise.wrong(numbers))


def test_it_stands_alone_and_is_whole() -> None:
    page = sheet(EXERCISES.values(), 0)
    assert not re.search(r"https?:|src=|@import|url\(|<script", page)
    assert page.count("break-before: page") == 1
    assert page.count("<li>") == page.count("</li>") == len(EXERCISES)
    assert sheet(EXERCISES.values(), 0) == page


def test_seeds_follow_one_another_and_answers_are_left_out() -> None:
    chosen = [EXERCISES["length"], EXERCISES["dot"]]
    asked = parts_of(sections(chosen, (1, 2), answers=False, slips=False))
    assert ["seed 1:" in asked[0], "seed 2:" in asked[1], len(asked)] == [True, True, 2]
    assert asked[0] == parts_of(sheet(chosen, 1))[0]
    both = parts_of(sections(chosen, (1, 2), slips=False))
    assert both[:2] == asked
    assert both[3] == parts_of(sheet(chosen, 2, key=True))[0]


def test_from_the_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sheet.html"
    assert main(["learn", "--sheet", str(file), "--seed", "4", "similarity", "surprise", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "sheet": str(file), "key": str(tmp_path / "sheet-key.html"), "seed": 4,
        "exercises": ["dot", "right-angle", "cosine", "surprise"]
    }  # fmt: skip
    main(["learn", "dot", "--seed", "4", "--solution"])
    asked, solved = capsys.readouterr().out.splitlines()[1:3]
    assert asked in file.read_text()
    assert solved not in file.read_text()
    assert solved in (tmp_path / "sheet-key.html").read_text()
    assert main(["learn", "--sheet", str(file)]) == 0
    assert "27 exercises" in capsys.readouterr().out or len(EXERCISES) != 27


def test_what_it_cannot_do_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in {
        ("--sheet", str(tmp_path)): "cannot write",
        ("--sheet", str(tmp_path / "a"), "--answer", "3"): "--answer is 3, and a sheet has numbers of its seed",
        ("--sheet", str(tmp_path / "a"), "--due"): "--due is True, and a sheet",
        ("--sheet", str(tmp_path / "a"), "poetry"): "no chapter or exercise is called 'poetry'",
        ("--sheet", str(tmp_path / "a"), "--seed", "-1"): "--seed is -1: 0 or more",
    }.items():
        assert main(["learn", *words]) == 2
        assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
