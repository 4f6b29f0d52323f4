"""All chapters and exercises, with what a reader has answered of them and what is due."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

from limpid.errors import LimpidError
from limpid.primer.chapter import CHAPTERS, chapter
from limpid.primer.exercise import Exercise
from limpid.primer.exercises import EXERCISES
from limpid.primer.progress import now, sittings
from limpid.primer.puzzles import PUZZLES
from limpid.primer.review import Review, due, reviews
from limpid.terminal import counted, say

LONGER = "longer ones"
"""What the list calls exercises that belong to no one chapter."""


def by_chapter() -> dict[str, list[Exercise]]:
    """Exercises in the order of the chapters."""
    return {name: [one for one in EXERCISES.values() if one.chapter == name] for name in CHAPTERS}


def lines() -> list[str]:
    """One for each chapter: minutes, progress, exercises; what can be done about it last."""
    at = now()
    answered = _answered(at)
    waiting = set(due(answered, at)) & {*EXERCISES, *PUZZLES}
    rooms = {name: [one.name for one in its] for name, its in by_chapter().items()} | {LONGER: list(PUZZLES)}
    said = {name: _progress(its, answered, waiting) for name, its in rooms.items()}
    wide = max(map(len, said.values()))
    made = [
        f"{name:20} {_minutes(name):>6}  {said[name]:{wide}}{'  ' if wide else ''}{', '.join(its)}".rstrip()
        for name, its in rooms.items()
    ]
    return [*made, f"{counted(len(waiting), 'exercise')} due: limpid learn --due"] if waiting else made


def document() -> list[dict[str, Any]]:
    """The same as plain values."""
    at = now()
    answered = _answered(at)
    chapters: list[dict[str, Any]] = [
        {"chapter": name, "exercises": [_exercise(one, answered.get(one.name)) for one in its]}
        for name, its in by_chapter().items()
    ]
    return [*chapters, {"chapter": None, "exercises": [_puzzle(name, answered.get(name)) for name in PUZZLES]}]


def next_due(among: set[str]) -> tuple[list[str], str]:
    """What is due of these exercises, and what to say about those that are not."""
    at = now()
    known = {name: one for name, one in reviews(sittings(), at).items() if name in among}
    waiting = due(known, at)
    if waiting:
        return waiting, f"{counted(len(waiting), 'exercise')} due: {', '.join(waiting)}"
    if not known:
        return [], "Nothing has been answered yet, so nothing is due: limpid learn lists what there is"
    name, first = min(known.items(), key=lambda one: one[1].due)
    return [], f"Nothing is due. Next: {name}, {first.due.astimezone():%Y-%m-%d}"


def _answered(at: datetime) -> dict[str, Review]:
    """Nothing, and a line on standard error, where the file cannot be read: the list itself needs none."""
    try:
        return reviews(sittings(), at)
    except LimpidError as error:
        say(f"limpid: progress is left out: {error}", file=sys.stderr)
        return {}


def _minutes(name: str) -> str:
    return f"{chapter(name).minutes} min" if name in CHAPTERS else ""


def _progress(its: list[str], answered: dict[str, Review], waiting: set[str]) -> str:
    tried = [answered[name] for name in its if name in answered]
    if not tried:
        return ""
    late = sum(name in waiting for name in its)
    return f"{sum(one.right > 0 for one in tried)} of {len(its)} right" + (f", {late} due" if late else "")


def _exercise(one: Exercise, review: Review | None) -> dict[str, Any]:
    return {"exercise": one.name, "question": one.question(one.first), **_reviewed(review)}


def _puzzle(name: str, review: Review | None) -> dict[str, Any]:
    return {"exercise": name, "question": PUZZLES[name](0).question, **_reviewed(review)}


def _reviewed(review: Review | None) -> dict[str, Any]:
    said: dict[str, Any] = {}
    if review is not None:
        said |= {"right": review.right, "wrong": review.wrong, "slips": review.slips, "due": review.due.isoformat()}
    return said
