"""The primer as the server answers it."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.view.folders import made_run

from limpid.primer.chapter import CHAPTERS, chapter
from limpid.primer.exercise import numbers_of, shown
from limpid.primer.exercises import EXERCISES
from limpid.primer.own.step import own_numbers
from limpid.primer.progress import sittings
from limpid.primer.puzzles import PUZZLES
from limpid.primer.puzzles.broken_step import OPENS, STAGES
from limpid.primer.sheet import sections, sheet
from limpid.tracing import worked

Ask = Callable[..., TestClient]


@pytest.fixture
def client(tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setenv("LIMPID_LEARN", str(tmp_path / "learn.json"))
    return ask(tmp_path)


def test_every_chapter_is_there_with_those_beside_it(client: TestClient) -> None:
    contents = client.get("/api/learn").json()["chapters"]
    assert [one["name"] for one in contents] == list(CHAPTERS)
    for at, row in enumerate(contents):
        found = client.get(f"/api/learn/{row['name']}").json()
        assert found["row"] == row
        assert found["before"] == (contents[at - 1] if at else None)
        assert found["after"] == (contents[at + 1] if at + 1 < len(contents) else None)
        assert len(found["parts"]) == len(chapter(row["name"]).parts)
        assert [one["exercise"] for one in found["parts"] if one["exercise"]] == row["exercises"]
        # what the page's policy would not do, and what would be a stranger's
        assert not re.findall(r"style=|<script|<style|\son\w+=|href=\"(?!#|https:)", str(found["parts"]))
    assert client.get("/api/learn/nothing").status_code == 404


def test_an_exercise_is_the_same_as_in_the_terminal(client: TestClient) -> None:
    for seed in (0, 7):
        found = client.get(f"/api/learn/exercises/dot?seed={seed}").json()
        dot = EXERCISES["dot"]
        numbers = numbers_of(dot, seed)
        assert found["question"] == dot.question(numbers)
        assert found["solution"] == dot.solved(numbers)
        assert (found["hints"], found["own"], found["where"]) == (list(dot.hints), True, "")
    assert client.get("/api/learn/exercises/gradient").json()["own"] is False
    assert client.get("/api/learn/exercises/nothing").status_code == 404


def test_a_wrong_answer_is_named_and_what_is_no_answer_is_refused(client: TestClient) -> None:
    def said(**asked: object) -> dict[str, str]:
        answered: dict[str, str] = client.post("/api/learn/grade", json=asked).json()
        return answered

    assert said(exercise="length", answer="7")["outcome"] == "right"
    assert said(exercise="length", answer="49")["note"] == "no-root"
    right = str(EXERCISES["length"].answer(numbers_of(EXERCISES["length"], 7)))
    assert said(exercise="length", answer=right, seed=7)["outcome"] == "right"
    first, second = (said(exercise="dot", answer="1000", tried=tried)["says"] for tried in (0, 1))
    assert first != second
    assert "type a number" in said(exercise="length", answer="many")["error"]
    assert "seed is -1" in said(exercise="length", answer="7", seed=-1)["error"]
    assert "answer is missing" in said(exercise="length")["error"]


def test_a_longer_exercise_is_asked_and_judged_as_in_the_terminal(client: TestClient) -> None:
    assert [one["name"] for one in client.get("/api/learn").json()["longer"]] == list(PUZZLES)
    for name, drawn in PUZZLES.items():
        found, puzzle = client.get(f"/api/learn/longer/{name}?seed=7").json(), drawn(7)
        assert (found["asked"], found["hints"], found["solution"]) == (
            puzzle.asked,
            list(puzzle.hints),
            puzzle.solution,
        )
        assert found["choices"] == [one.label for one in puzzle.choices]
        for place in range(len(puzzle.choices)):
            asked = {"exercise": name, "seed": 7, "answer": str(place + 1), "tried": 1}
            judged = puzzle.judged(str(place + 1), 1)
            assert client.post("/api/learn/grade", json=asked).json() == judged._asdict()
        kept = {"exercise": name, "tries": ["right"], "seed": 7}
        assert client.post("/api/learn/sittings", json=kept).json()["exercises"][name]["right"] == 1
    assert sittings()[-1].how == f"{name} --seed 7"
    assert client.get("/api/learn/longer/nothing").status_code == 404
    refused = client.post("/api/learn/grade", json={"exercise": "broken-step", "answer": "cat"}).json()["error"]
    assert "type a number, 1 to 9" in refused


def test_a_sheet_is_the_terminals(client: TestClient) -> None:
    asked = "/api/learn/sheet?seed=3&seed=4&exercise=dot&exercise=length"
    chosen = [EXERCISES["length"], EXERCISES["dot"]]
    found = client.get(f"{asked}&answers=1&slips=1").json()
    asking = sections(chosen, (3, 4), answers=False, slips=False)
    key = found["html"].removeprefix(asking)
    assert found["html"] == asking + key
    assert asking in sheet(chosen, 3, 4)
    assert key in sheet(chosen, 3, 4, key=True)
    assert found["style"] in sheet(chosen, 3, 4)
    assert client.get(asked).json()["html"] == asking
    assert "there is no exercise 'x'" in client.get(f"{asked}&exercise=x").json()["error"]
    assert "nothing is chosen" in client.get("/api/learn/sheet?seed=3").json()["error"]
    assert "seed is 'x'" in client.get("/api/learn/sheet?seed=x&exercise=dot").json()["error"]
    many = "&".join(f"seed={seed}" for seed in range(41))
    assert "41 seeds are more than 40" in client.get(f"/api/learn/sheet?{many}&exercise=dot").json()["error"]


def test_the_place_of_each_fault_is_one_of_a_recorded_step() -> None:
    with worked.opened() as trace:
        names = {*trace.names(), *(f"grad({name})" for name in trace.names())}
    assert {*OPENS} == {stage.name for stage in STAGES}
    assert {*OPENS.values()} <= names


def test_numbers_of_a_step_are_graded_by_it(tmp_path: Path, client: TestClient) -> None:
    run = made_run(tmp_path, "001", 1)
    run.recorded_step(1).parent.mkdir()
    worked.record(run.recorded_step(1))
    exercise = EXERCISES["perplexity"]
    with worked.opened() as trace:
        own = own_numbers("perplexity", trace, 0)
    for asked in ("run=001&step=1", "run=worked"):
        found = client.get(f"/api/learn/exercises/perplexity?{asked}").json()
        assert found["question"] == f"{own.of} {exercise.question(own.numbers)}"
        assert found["where"]
        assert found["entry"] == "loss"
    answer = {"exercise": "perplexity", "answer": shown(exercise.answer(own.numbers)), "run": "001", "step": 1}
    assert client.post("/api/learn/grade", json=answer).json()["outcome"] == "right"
    assert "step is missing" in client.get("/api/learn/exercises/perplexity?run=001").json()["error"]
    assert client.get("/api/learn/exercises/perplexity?run=002&step=1").status_code == 404
    assert "no numbers in a recorded step" in client.get("/api/learn/exercises/gradient?run=worked").json()["error"]


def test_what_was_answered_is_kept_as_the_terminal_keeps_it(tmp_path: Path, client: TestClient) -> None:
    assert client.get("/api/learn/practice").json() == {"exercises": {}}
    asked = {"exercise": "dot", "tries": ["wrong", "right"], "seed": 7, "run": "001", "step": 400, "hints": 1}
    assert client.post("/api/learn/sittings", json=asked).json()["exercises"]["dot"] | {"due": None} == {
        "right": 1, "wrong": 1, "due": None,
    }  # fmt: skip
    client.post("/api/learn/sittings", json={"exercise": "length", "tries": [], "gave_up": True})
    client.post("/api/learn/sittings", json={"exercise": "cosine", "tries": []})  # nothing came of it
    first, second = sittings()
    assert (first.how, first.tries, first.hints) == ("dot --of 001 --step 400 --seed 7", ("wrong", "right"), 1)
    assert (second.how, second.gave_up) == ("length --seed 0", True)
    assert client.post("/api/learn/sittings", json={"exercise": "nothing", "tries": []}).status_code == 404
    (tmp_path / "learn.json").write_text("damaged")
    assert "is damaged" in client.get("/api/learn/practice").json()["error"]
