"""What the page is sent of the primer, and asks of it, as typed documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from limpid.tracing.schema import Question

PartKind = Literal["text", "equation", "example", "exercise", "figure"]
Outcome = Literal["right", "rounded", "slip", "wrong"]


@dataclass(frozen=True)
class ChapterRow:
    """A chapter as the contents name it."""

    name: str
    number: int
    title: str
    purpose: str
    minutes: int
    exercises: tuple[str, ...]


@dataclass(frozen=True)
class PuzzleRow:
    """A longer exercise, which belongs to no one chapter."""

    name: str
    purpose: str


@dataclass(frozen=True)
class LearnContents:
    """Every chapter, in the order in which they are read, and the longer exercises."""

    chapters: tuple[ChapterRow, ...]
    longer: tuple[PuzzleRow, ...]


@dataclass(frozen=True)
class ChapterPart:
    """A part of a chapter."""

    kind: PartKind
    html: str  # our own; signs of its formulas carry data-says
    exercise: str | None


@dataclass(frozen=True)
class ChapterView:
    """A chapter to read."""

    row: ChapterRow
    opens: str  # the entry of a recorded step where it happens
    parts: tuple[ChapterPart, ...]
    before: ChapterRow | None
    after: ChapterRow | None


@dataclass(frozen=True)
class ExerciseView:
    """An exercise with its numbers."""

    exercise: str
    seed: int
    question: str
    hints: tuple[str, ...]
    solution: str
    own: bool  # a recorded step has numbers for it
    where: str  # the entry of the step that holds what is asked for; nothing where the numbers are of no step
    entry: str | None  # one of that step to open


@dataclass(frozen=True)
class Look:
    """An entry of an exercise's own trace, written out with its numbers, and what was recorded."""

    entry: str
    written: str


@dataclass(frozen=True)
class PuzzleView:
    """A longer exercise with the numbers of its seed; an answer is the number of a choice, from 1 on."""

    puzzle: str
    purpose: str
    seed: int
    asked: str
    choices: tuple[str, ...]
    hints: tuple[str, ...]
    solution: str
    opens: str  # the entry of a recorded step where the same is done; nothing where there is none
    looks: tuple[Look, ...]  # all entries, in the order of the step; none where there is no trace


@dataclass(frozen=True)
class SheetView:
    """A sheet of exercises to print."""

    style: str  # for a room of class sheet
    html: str  # our own


@dataclass(frozen=True)
class GradeDocument:
    """What is said to an answer."""

    outcome: Outcome
    note: str  # the slip's, two joined by +, else the outcome
    says: str


@dataclass(frozen=True)
class GradeQuestion(Question):
    """An answer, and the exercise, a longer one perhaps, and the numbers that it is to."""

    exercise: str
    answer: str
    seed: int = 0
    run: str | None = None  # whose step the numbers are of
    step: int | None = None
    tried: int = 0  # wrong answers before it, which choose the hint


@dataclass(frozen=True)
class SittingQuestion(Question):
    """What came of an exercise, to be kept with what was answered in the terminal."""

    exercise: str
    tries: tuple[str, ...]  # the note of each answer
    seed: int = 0
    run: str | None = None
    step: int | None = None
    hints: int = 0
    gave_up: bool = False  # the solution was asked for


@dataclass(frozen=True)
class Practice:
    """What an exercise has come to, here and in the terminal."""

    right: int  # answers
    wrong: int
    due: bool  # to be asked again by now


@dataclass(frozen=True)
class PracticeView:
    """Every exercise that was tried."""

    exercises: dict[str, Practice]


LEARN_DOCUMENTS = (
    LearnContents, ChapterView, ExerciseView, PuzzleView, SheetView, GradeDocument, PracticeView, GradeQuestion,
    SittingQuestion,
)  # fmt: skip
