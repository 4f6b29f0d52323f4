"""When an exercise is due again: FSRS-6 with its published parameters, over what has been answered.

Ye et al. 2022, A Stochastic Shortest Path Algorithm for Optimizing Spaced Repetition Scheduling.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from limpid.primer.progress import Sitting

BEFORE_ALL = datetime(1970, 1, 1, tzinfo=UTC)

NO_SLIP = ("right", "rounded", "wrong", "length", "form-number", "form-list", "form-shape", "form-undefined")
"""Notes of answers that are no named way to go wrong."""


class Review(NamedTuple):
    """What an exercise has come to."""

    right: int
    wrong: int
    """Answers, and not sittings."""
    slips: dict[str, int]
    """How often each was made, by its note."""
    due: datetime
    again: str
    """What to type to have the last numbers again."""


def reviews(sittings: Iterable[Sitting], now: datetime) -> dict[str, Review]:
    """By exercise, in the order of their first answers."""
    by_exercise: dict[str, list[Sitting]] = {}
    for one in sittings:
        by_exercise.setdefault(one.exercise, []).append(one)
    return {exercise: _review(its, now) for exercise, its in by_exercise.items()}


def due(every: dict[str, Review], now: datetime) -> list[str]:
    """Exercises to be asked now, the longest due first."""
    return sorted((name for name, one in every.items() if one.due <= now), key=lambda name: every[name].due)


def _review(its: list[Sitting], now: datetime) -> Review:
    from fsrs import Card, Rating, Scheduler

    # whole days and no chance: what is due follows from the file alone
    scheduler = Scheduler(learning_steps=(), relearning_steps=(), enable_fuzzing=False)
    card = Card(card_id=1, due=BEFORE_ALL)
    for one, when in zip(its, _times(its, now), strict=True):
        rating = Rating.Good if one.at_once else Rating.Hard if one.right and not one.gave_up else Rating.Again
        card, _ = scheduler.review_card(card, rating, when)
    notes = [note for one in its for note in one.tries]
    slips = {note: notes.count(note) for note in dict.fromkeys(notes) if note not in NO_SLIP}
    wrong = sum(note not in ("right", "rounded") for note in notes)
    return Review(notes.count("right"), wrong, slips, card.due, its[-1].how)


def _times(its: Iterable[Sitting], now: datetime) -> Iterator[datetime]:
    """When each was answered; one that lies before its predecessor or ahead of now, by a clock that was set, counts as
    answered together with its predecessor. Then nothing is ever kept back until a year that is far away."""
    last = BEFORE_ALL
    for one in its:
        last = one.when if last <= one.when <= now else last
        yield last.astimezone(UTC)
