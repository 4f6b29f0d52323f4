"""An evaluation told: in the terminal, and as one JSON document."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from limpid.evaluate.evaluation import Evaluation, Reading
from limpid.evaluate.intervals import Estimate
from limpid.evaluate.tasks import UNITS
from limpid.plan import parameter_count

HEADING = "bold"
PRECISION = "fp32"
"""In which every model is judged, wherever it computes."""


def tell(found: Evaluation, console: Console) -> None:
    """Print what was found."""
    for part in (*_readings(found), *_tasks(found)):
        console.print(part, soft_wrap=isinstance(part, Text))


def document(found: Evaluation) -> dict[str, Any]:
    """Everything that was found, as plain values."""
    return {
        "models": [
            {"name": s.name, "step": s.step, "parameters": parameter_count(s.model.config)} for s in found.subjects
        ],
        "text": found.origin or None,
        "confidence": found.asked.confidence,
        "notes": list(found.notes),
        "readings": [_plain_reading(reading) for reading in found.readings],
        "difference": _plain_difference(found),
        "tasks": [
            {"results": [result.plain() for result in results], "difference": between}
            for results, between in zip(found.tasks, _plain_between(found), strict=True)
        ],
    }


def _plain_between(found: Evaluation) -> list[dict[str, Any] | None]:
    if not found.task_differences:
        return [None] * len(found.tasks)
    return [
        {unit: {k: v for k, v in d.plain().items() if not math.isnan(v)} for unit, d in between.items()}
        for between in found.task_differences
    ]


def _plain_reading(reading: Reading) -> dict[str, Any]:
    measured, calibration = reading.measured, reading.calibration
    windows = measured.windows
    return {
        "model": measured.subject.name,
        "device": measured.subject.device,
        "precision": PRECISION,
        "tokens": measured.tokens,
        "scored": measured.scored,
        "bytes": measured.bytes,
        "documents": len(measured.documents),
        "convention": windows.convention,
        "context": windows.context,
        "stride": windows.stride,
        "blocks": None if reading.blocks is None else {"count": len(reading.blocks), "of": reading.blocks.unit},
        "metrics": {metric.name.replace(" ", "_"): metric.plain() for metric in reading.metrics},
        "calibration": {
            "error": calibration.error,
            "chance": calibration.chance,
            "corrected": None if calibration.corrected is None else calibration.corrected.plain(),
            "bins": [vars(b) for b in calibration.bins],
        },
    }


def _plain_difference(found: Evaluation) -> dict[str, Any] | None:
    if found.difference is None:
        return None
    own = found.difference
    return {
        "unit": "bits per byte",
        **({"value": own.value} if own.estimate is None else own.estimate.plain()),
        "told": own.told,
        "sentence": own.sentence(),
    }


def _readings(found: Evaluation) -> Iterator[RenderableType]:
    for reading in found.readings:
        yield from _head(reading, found)
        yield _table(reading, found.asked.confidence)
        yield Text()
    for note in found.notes:
        yield Text(note, "yellow")
    if found.difference is not None:
        yield Text(found.difference.sentence(), HEADING)


def _head(reading: Reading, found: Evaluation) -> Iterator[Text]:
    measured, windows = reading.measured, reading.measured.windows
    subject, documents = measured.subject, _count(len(measured.documents), "document")
    yield Text.assemble(
        (subject.title, HEADING),
        f" · {parameter_count(subject.model.config):,} parameters, {PRECISION} on {subject.device} · "
        f"{_count(measured.scored, 'token')}, {_count(measured.bytes, 'byte')} in {documents} of {found.origin}",
    )
    unscored = measured.tokens - measured.scored
    least = windows.context - windows.stride
    how = f"context {windows.context}, stride {windows.stride}: at least {least} tokens before each, or all there are"
    if unscored:
        how += f"; {_count(unscored, 'token')} with nothing to be predicted from"
    if reading.blocks is None:
        yield Text(f"{how}; too short for intervals", "dim")
        return
    kept = "whole documents" if reading.blocks.unit == "documents" else "text"
    yield Text(f"{how}; intervals from {len(reading.blocks)} blocks of {kept}", "dim")


def _count(number: int, what: str) -> str:
    return f"one {what}" if number == 1 else f"{number:,} {what}s"


def _table(reading: Reading, confidence: float) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("")
    table.add_column("value", justify="right")
    table.add_column(f"{confidence:.0%} interval", justify="right")
    table.add_column("")
    for metric in reading.metrics:
        unit, share = metric.unit, metric.unit == "of tokens"
        if metric.name == "overconfidence":
            unit = "nats: surprise less entropy"
        unit = "" if metric.name == "bits per byte" else unit
        table.add_row(metric.name, *_numbers(metric.value, metric.estimate, share), unit)
    calibration = reading.calibration
    chance = f"{_count(len(calibration.bins), 'bin')}; chance makes {calibration.chance:.2%}"
    table.add_row("calibration error", f"{calibration.error:.2%}", "", chance)
    if calibration.corrected is not None:
        table.add_row("  less chance", *_numbers(calibration.corrected.value, calibration.corrected, True), "")
    return table


def _numbers(value: float, found: Estimate | None, share: bool) -> tuple[str, str]:
    """A value and its interval, to the digits that the interval leaves."""
    half = found.half if found is not None and math.isfinite(found.half) and found.half > 0 else abs(value) / 100 or 1
    scale = 100 if share else 1
    places = min(8, max(0, 1 - math.floor(math.log10(half * scale))))

    def written(number: float) -> str:
        return f"{number * scale:,.{places}f}{'%' if share else ''}"

    return written(value), "" if found is None else f"{written(found.low)} … {written(found.high)}"


def _tasks(found: Evaluation) -> Iterator[RenderableType]:
    for number, results in enumerate(found.tasks):
        first = results[0]
        yield Text.assemble(
            (f"\n{first.name}", HEADING),
            f" · {_count(first.questions, 'question')}; guessing gets {first.chance:.1%} right",
        )
        table = Table(box=None, pad_edge=False, show_edge=False)
        for column in ("ranked by surprise", *(subject.title for subject in found.subjects)):
            table.add_column(column, justify="left" if column == "ranked by surprise" else "right")
        if len(results) == 2:
            table.add_column("difference", justify="right", no_wrap=True)
            table.add_column("p", justify="right")
        for unit in UNITS:
            cells = [" in ".join(_numbers(r.accuracy[unit].value, r.accuracy[unit], True)) for r in results]
            if len(results) == 2:
                between = found.task_differences[number][unit]
                cells += [" in ".join(_numbers(between.value, between, True)), f"{between.p:.2g}"]
            table.add_row(unit, *cells)
        yield table
