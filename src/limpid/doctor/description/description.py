"""A step in sentences, and what is known of the run so far."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limpid.doctor.description.candidates import candidates
from limpid.doctor.description.credited import credited
from limpid.doctor.description.entry_weights import entry_weights
from limpid.doctor.description.inputs import inputs
from limpid.doctor.description.lessons import labels, loss
from limpid.doctor.description.loss_targets import by_label, loss_targets
from limpid.doctor.description.outputs import against_targets
from limpid.doctor.description.pushes import pushes, rewards
from limpid.doctor.description.updates import gradient, update
from limpid.doctor.description.weights import model

if TYPE_CHECKING:
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

Teller = Callable[["Watched", "StepRecord", "History"], Iterator[str]]


def told_by(*tellers: Teller) -> Teller:
    """What several tell, one after the other."""
    return lambda watched, record, history: itertools.chain.from_iterable(
        tell(watched, record, history) for tell in tellers
    )


PARTS: dict[str, Teller] = {
    "data": told_by(inputs, rewards), "model": model,
    "labels": told_by(labels, against_targets, loss_targets, candidates),
    "loss": told_by(loss, entry_weights, pushes, credited, by_label), "gradient": gradient, "update": update,
}  # fmt: skip
"""In the order of a step."""
WIDTH, NAMES = 100, 10
"""Columns of a line, and of the names of parts before it."""


QUESTION = """Does anything that was measured contradict what is meant? Hold each line against each sentence and
compute: sizes, shares, steps, epochs, rates at named steps, what such a loss is at the start and can reach, which
outputs must depend on which inputs and rows, which weights must move and which not. Where a line does not follow from
what is meant, try an innocent reading first: most loops are sound; what the text leaves open, numbers that scatter from
batch to batch and choices that are only unusual are no contradiction. If something does contradict it, say in which
part of the step it lies (data, labels, model, loss, gradient or update), what it is, and which line shows it. If
nothing does, say so."""
"""What is asked of a reader of both."""


@dataclass(frozen=True)
class Line:
    """One sentence on one part of a step."""

    part: str
    text: str


@dataclass(frozen=True)
class Description:
    """What a loop does: of the last step that was read, and of the run until now."""

    step: int
    steps: int
    lines: tuple[Line, ...]

    def of(self, part: str) -> list[str]:
        """The sentences on one part: data, model, labels, loss, gradient, update or run."""
        return [line.text for line in self.lines if line.part == part]

    def question(self, intent: str) -> str:
        """The page under what the loop is meant to do, for whoever judges both, a colleague or a language model."""
        return f"A training loop is meant to do this:\n\n{intent.strip()}\n\nMeasured, {self}\n\n{QUESTION}\n"

    def __str__(self) -> str:
        shown = [f"what this loop does, as measured on step {self.step:,} and the run up to step {self.steps:,}"]
        for part in dict.fromkeys(line.part for line in self.lines):
            for index, text in enumerate(self.of(part)):
                name = f"  {'' if index else part:<{NAMES}}"
                shown.append(textwrap.fill(text, WIDTH, initial_indent=name, subsequent_indent=" " * len(name)))
        return "\n".join(shown)


def described(watched: Watched, record: StepRecord, history: History) -> tuple[Line, ...]:
    """The sentences of a step whose loss was read."""
    return tuple(Line(part, text) for part, tell in PARTS.items() for text in tell(watched, record, history))
