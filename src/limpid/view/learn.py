"""The primer as the page is sent it: contents, chapters, exercises with numbers, and what is said to an answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from limpid.view.answers import Refused
from limpid.view.documents.learn import (
    ChapterPart,
    ChapterRow,
    ChapterView,
    ExerciseView,
    GradeDocument,
    GradeQuestion,
    LearnContents,
    Outcome,
    PartKind,
    Practice,
    PracticeView,
    PuzzleView,
    SittingQuestion,
)
from limpid.view.learn_puzzles import puzzle_view, rows
from limpid.view.questions import read
from limpid.view.steps import Steps

if TYPE_CHECKING:
    from limpid.primer.exercise import Exercise
    from limpid.primer.own.draw import Own
    from limpid.primer.posed import Asking, Posed

LARGEST_SEED = 10**9
MOST_TRIES = 1000
WORKED = "worked"
"""The step of the worked model, named as a run."""


@cache
def contents() -> LearnContents:
    """Every chapter, and the longer exercises."""
    from limpid.primer.chapter import CHAPTERS

    return LearnContents(tuple(map(_row, CHAPTERS)), rows())


@cache
def chapter_view(name: str) -> ChapterView:
    """A chapter, with those before and after it.

    Raises  Refused for one that is not there
    """
    from limpid.primer.chapter import CHAPTERS, Practice, chapter
    from limpid.primer.html import html

    if name not in CHAPTERS:
        raise Refused(f"there is no chapter {name[:40]!r}: choose one of {', '.join(CHAPTERS)}", 404)
    read, at = chapter(name), CHAPTERS.index(name)
    parts = tuple(
        ChapterPart(_kind(part), made, part.exercise.name if isinstance(part, Practice) else None)
        for part, made in zip(read.parts, html(read), strict=True)
    )
    before, after = (_row(CHAPTERS[one]) if 0 <= one < len(CHAPTERS) else None for one in (at - 1, at + 1))
    return ChapterView(_row(name), read.opens, parts, before, after)


def practice() -> PracticeView:
    """What was answered so far.

    Raises  CheckpointError for a file of answers that is damaged
    """
    from limpid.primer.progress import now, sittings
    from limpid.primer.review import reviews

    at = now()
    every = reviews(sittings(), at)
    return PracticeView({name: Practice(one.right, one.wrong, one.due <= at) for name, one in every.items()})


def keep(asked: dict[str, Any]) -> PracticeView:
    """Keep what came of an exercise, as the terminal does.

    Raises  CheckpointError where the file of answers cannot be written
    """
    from limpid.primer.progress import Sitting, now, record

    sat = read(SittingQuestion, asked)
    of = "" if sat.run is None else f" --of {sat.run}"
    step = "" if sat.run in (None, WORKED) else f" --step {sat.step}"
    how = f"{_known(sat.exercise)}{of}{step} --seed {sat.seed}"
    if sat.tries or sat.gave_up:
        record(Sitting(sat.exercise, how, now().isoformat(), sat.tries[:MOST_TRIES], max(0, sat.hints), sat.gave_up))
    return practice()


@dataclass(frozen=True)
class Practised:
    """Exercises, with numbers of a seed or of a recorded step of the folder."""

    steps: Steps

    def view(self, name: str, seed: int, run: str | None, step: int | None) -> ExerciseView:
        """An exercise with its numbers, its hints and its solution."""
        from limpid.primer.own.step import DRAWN

        posed = self._posed(_exercise(name), seed, run, step)
        return ExerciseView(
            name, seed, posed.question, posed.hints, posed.solution, name in DRAWN, posed.where, posed.entry
        )

    def longer(self, name: str, seed: int) -> PuzzleView:
        """A longer exercise with the numbers of a seed."""
        return puzzle_view(name, _seed(seed))

    def grade(self, asked: dict[str, Any]) -> GradeDocument:
        """What is said to an answer.

        Raises  Unreadable for what is no answer at all
        """
        from limpid.primer.puzzles import PUZZLES

        question = read(GradeQuestion, asked)
        name, seed, run, step = question.exercise, _seed(question.seed), question.run, question.step
        if _known(name) in PUZZLES:
            asking: Asking = PUZZLES[name](seed)
        else:
            asking = self._posed(_exercise(name), seed, run, step)
        judged = asking.judged(question.answer, max(0, question.tried))
        return GradeDocument(cast(Outcome, judged.outcome), judged.note, judged.says)

    def _posed(self, exercise: Exercise, seed: int, run: str | None, step: int | None) -> Posed:
        from limpid.primer.exercise import numbers_of
        from limpid.primer.posed import Posed

        said = f"{exercise.name} --seed {seed}"
        if run is None:
            return Posed(exercise, numbers_of(exercise, _seed(seed)), said)
        own = self._own(exercise.name, _seed(seed), run, step)
        return Posed(exercise, own.numbers, said, own.where, own.of, own.entry)

    def _own(self, name: str, seed: int, run: str, step: int | None) -> Own:
        """Of a recorded step, and the place of it that the seed chooses."""
        from limpid.primer.own.step import own_numbers

        if run == WORKED:
            from limpid.tracing.worked import opened

            with opened() as trace:
                return own_numbers(name, trace, seed)
        if step is None:
            raise Refused("step is missing: say which one of the run is meant")
        return own_numbers(name, self.steps.arrays(run, step).trace, seed)


def _row(name: str) -> ChapterRow:
    from limpid.primer.chapter import chapter

    read = chapter(name)
    return ChapterRow(name, read.number, read.title, read.purpose, read.minutes, read.tried)


def _kind(part: object) -> PartKind:
    from limpid.primer.chapter import Equation, Example, Figure, Practice

    kinds: dict[type, PartKind] = {Equation: "equation", Example: "example", Practice: "exercise", Figure: "figure"}
    return kinds.get(type(part), "text")


def _seed(seed: int) -> int:
    if not 0 <= seed <= LARGEST_SEED:
        raise Refused(f"seed is {seed}: choose one from 0 to {LARGEST_SEED:,}")
    return seed


def _known(name: str) -> str:
    """The name of an exercise, or of a longer one."""
    from limpid.primer.puzzles import PUZZLES

    return name if name in PUZZLES else _exercise(name).name


def _exercise(name: str) -> Exercise:
    from limpid.primer.exercises import EXERCISES

    if name not in EXERCISES:
        raise Refused(f"there is no exercise {name[:40]!r}: choose one of {', '.join(EXERCISES)}", 404)
    return EXERCISES[name]
