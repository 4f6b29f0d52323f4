"""Everything that is asked of a model at once: its reading of a text, its answers, and another model beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from limpid.config.options import require
from limpid.evaluate.blocks import Blocks
from limpid.evaluate.calibration import Calibration, calibration
from limpid.evaluate.intervals import Estimate
from limpid.evaluate.measure import Measured, encoded, measure
from limpid.evaluate.metrics import Difference, Metric, difference, metrics
from limpid.evaluate.subject import Subject, fingerprint, open_subject, sample, texts
from limpid.evaluate.tasks import UNITS, TaskResult, better_at, read_task, run_task
from limpid.evaluate.windows import Convention, Windows
from limpid.progress import Report


@dataclass(frozen=True)
class Asked:
    """How to evaluate."""

    context: int | None = None  # tokens that a prediction may see; None is the model's
    stride: int | None = None  # None is half the context
    convention: Convention = "sliding"
    max_tokens: int | None = None
    confidence: float = 0.95
    seed: int = 0
    text_field: str = "text"

    def __post_init__(self) -> None:
        require(
            0.5 <= self.confidence < 1,
            f"confidence is {self.confidence}: it must lie in [0.5, 1), for example 0.95",
        )
        require(
            self.convention in ("sliding", "transformers"),
            f"convention is {self.convention!r}: choose one of sliding, transformers",
        )
        require(
            self.max_tokens is None or self.max_tokens >= 1, f"max_tokens is {self.max_tokens}: it must be at least 1"
        )

    def windows(self, subject: Subject) -> Windows:
        """How this model's text is cut.

        Raises  ConfigError when more context is asked for than the model has
        """
        most = subject.model.config.context_length
        context = most if self.context is None else self.context
        require(
            1 <= context <= most,
            f"context is {context}: {subject.name} holds 1 … {most} tokens",
        )
        stride = max(1, context // 2) if self.stride is None else self.stride
        return Windows(context, stride, self.convention, subject.start)


@dataclass(frozen=True)
class Reading:
    """What a model's reading of a text amounts to."""

    measured: Measured
    blocks: Blocks | None
    metrics: list[Metric]
    calibration: Calibration


@dataclass(frozen=True)
class Evaluation:
    """What was found; the second of two entries belongs to the other model, where one is compared."""

    subjects: tuple[Subject, ...]
    asked: Asked
    origin: str = ""
    notes: tuple[str, ...] = ()
    readings: tuple[Reading, ...] = ()
    difference: Difference | None = None
    tasks: tuple[tuple[TaskResult, ...], ...] = ()  # of each task, one per model
    task_differences: tuple[dict[str, Estimate], ...] = ()


def evaluate(
    what: str,
    paths: Sequence[str] = (),
    *,
    against: str | None = None,
    tasks: Sequence[str] = (),
    asked: Asked | None = None,
    report: Report,
) -> Evaluation:
    """Read a text with one or two models, and have them answer the questions of task files.

    Without a path, a run reads the text that it held out; with tasks and no path, only the tasks are done.
    Raises  LimpidError for models, text or tasks that cannot be used
    """
    asked = asked or Asked()
    questions = [(Path(file).stem, read_task(file)) for file in tasks]
    subjects = tuple(open_subject(name).moved() for name in (what, *([] if against is None else [against])))
    found = Evaluation(subjects, asked)
    if paths or not tasks:
        found = _read(found, paths, asked, report)
    answers = tuple(
        tuple(run_task(subject, name, own, asked.confidence, report) for subject in subjects) for name, own in questions
    )
    between = tuple(
        {unit: better_at(one, two, unit, asked.confidence, asked.seed) for unit in UNITS}
        for one, two in (pair for pair in answers if len(pair) == 2)
    )
    return replace(found, tasks=answers, task_differences=between)


def _read(found: Evaluation, paths: Sequence[str], asked: Asked, report: Report) -> Evaluation:
    windows = [asked.windows(subject) for subject in found.subjects]
    source = texts(found.subjects[0], paths, asked.text_field)
    documents, notes = list(source.documents), [*source.notes, *_doubts(found.subjects, paths)]
    tokens = [encoded(subject, documents, report) for subject in found.subjects]
    chosen = list(range(len(documents)))
    if asked.max_tokens is not None and sum(len(ids) for ids, _ in tokens[0]) > asked.max_tokens:
        chosen = sample(source, asked.max_tokens, [len(ids) for ids, _ in tokens[0]], asked.seed)
        if len(chosen) == 1:
            documents[chosen[0]] = _cut(documents[chosen[0]], tokens[0][chosen[0]], asked.max_tokens)
            tokens = [encoded(subject, documents, report) for subject in found.subjects]
        part = "the start of one" if len(chosen) == 1 else f"{len(chosen):,}"
        notes.append(f"{part} of {len(documents):,} documents, drawn at random for --max-tokens")
    readings = tuple(
        _reading(measure(subject, [own[i] for i in chosen], window, report), asked)
        for subject, own, window in zip(found.subjects, tokens, windows, strict=True)
    )
    between = None
    if len(readings) == 2:
        between = difference(readings[0].measured, readings[1].measured, asked.confidence, asked.seed)
    return replace(found, origin=source.origin, notes=tuple(notes), readings=readings, difference=between)


def _cut(text: str, tokens: tuple[Any, Any], most: int) -> str:
    """The start of a document, about `most` tokens of it."""
    size = int(tokens[1][:most].sum())
    return text.encode()[:size].decode(errors="ignore")


def _reading(measured: Measured, asked: Asked) -> Reading:
    blocks = measured.blocks()
    found = metrics(measured, blocks, asked.confidence, asked.seed)
    return Reading(measured, blocks, found, calibration(measured, blocks, asked.confidence, asked.seed))


def _doubts(subjects: tuple[Subject, ...], paths: Sequence[str]) -> list[str]:
    """What makes a comparison unfair."""
    if paths or len(subjects) < 2 or subjects[0].run is None:
        return []
    first, second = subjects
    if second.run is None:
        return [f"whether {second.name} was trained on this text is not known: it counts as held out for {first.name}"]
    config, other = subjects[0].run.read_config(), second.run.read_config()
    same = (config.data, config.run.seed) == (other.data, other.run.seed)
    if same or fingerprint(subjects[0].run) == fingerprint(second.run):
        return []
    return [f"{second.name} has other data, split or tokenizer: it may have been trained on text held out here"]
