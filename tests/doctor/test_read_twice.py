"""What a round's readers say together: two by themselves, and a third where one of them sees a contradiction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.robustness.described import together


def said(contradicts: bool, what: str = "") -> dict[str, Any]:
    return {"contradicts": contradicts, "part": "loss" if contradicts else "", "what": what}


@pytest.mark.parametrize(
    ("first", "second", "third", "verdict", "what"),
    [
        (said(True, "a"), said(True, "b"), said(True, "c"), True, "c"),
        (said(True, "a"), said(True, "b"), said(False, "nothing"), True, "a"),
        (said(True, "a"), said(False), said(True, "c"), True, "c"),
        (said(False), said(True, "b"), said(True, "c"), True, "c"),
        (said(True, "a"), said(False), said(False), False, "a"),
        (said(False), said(False), None, False, ""),
    ],
    ids=["all", "two against the third", "first and third", "second and third", "the first alone", "nobody"],
)  # fmt: skip
def test_two_stand_and_a_third_decides_between_them(
    first: dict[str, Any], second: dict[str, Any], third: dict[str, Any] | None, verdict: bool, what: str
) -> None:
    found = together({"00": first}, {"00": second}, {} if third is None else {"00": third})["00"]
    assert (found["contradicts"], found["what"]) == (verdict, what)


def test_every_page_that_one_of_two_doubts_was_given_to_the_third() -> None:
    folders = Path(__file__).parents[2] / "benchmarks/robustness/read"
    for place in sorted({one.parent for one in folders.glob("*/*/second.json")}):
        first, second, third = (
            json.loads((place / f"{name}.json").read_text(encoding="utf-8")) for name in ("answers", "second", "third")
        )
        doubted = {number for number in first if first[number]["contradicts"] or second[number]["contradicts"]}
        assert first.keys() == second.keys()
        assert doubted == third.keys(), place
