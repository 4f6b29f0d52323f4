"""A recorded step as the page is sent it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from limpid.mathml import equations
from limpid.tracing import Trace
from limpid.tracing.document import EntryDocument, StepDocument
from limpid.tracing.tensor_file import WORDS
from limpid.view.documents.step import ArrayPlace, EntryView, SliceKind, StepView


def step_view(trace: Trace) -> StepView:
    """A step with its equations, its arrays and the text of its tokens."""
    words, record = trace.record.meta["token_texts"], trace.record
    rows: Iterable[Any] = trace.array("tokens") if "batch/tokens" in record.names else []
    tokens = tuple(tuple(str(words.get(str(token), "")) for token in row) for row in rows)
    return StepView(trace.step, of_step(trace.step), dict(_places(trace)), tokens, words, record.path.stat().st_size)


def _places(trace: Trace) -> Iterator[tuple[str, ArrayPlace]]:
    """Every array of the step that can be looked at."""
    for name in trace.names():
        _, tensor = trace.tensor(name)
        if tensor in trace.record.names:
            kinds: tuple[SliceKind, ...] = ("value",)
            if trace.record.gradient_place(name) is not None:
                kinds += ("gradient",)
            form = WORDS.get(trace.record.format(tensor), "int64")
            yield name, ArrayPlace(trace.record.shape(tensor), form, trace.record.axes(name), kinds)


def entry_view(trace: Trace, asked: str) -> EntryView:
    """One entry explained, with its equations.

    Raises  ConfigError for an unknown name, or an index that lies outside
    """
    entry = trace.explain(asked)
    return EntryView(entry, of_entry(entry))


def of_step(step: StepDocument) -> dict[str, str]:
    """Every equation that a step's document holds, as MathML by its LaTeX."""
    made = [line for one in step.quantities for line in (one.equation, *one.adjoint)]
    rules = [line for rule in step.update.rules for line in rule.equations]
    return equations([*made, step.loss.formula, *rules])


def of_entry(entry: EntryDocument) -> dict[str, str]:
    """Every equation that an entry's document holds, as MathML by its LaTeX."""
    return equations(one.equation for one in (entry.made, *entry.passed) if one is not None)
