"""An evaluation in the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from limpid.evaluation.document import PRECISION
from limpid.evaluation.evaluation import Evaluation, TextResult
from limpid.evaluation.intervals import Estimate
from limpid.evaluation.records import report as records
from limpid.evaluation.tasks import UNITS
from limpid.planning import parameter_count
from limpid.theme import HEADING, QUIET, WARNING


def lines(evaluation: Evaluation) -> Iterator[RenderableType]:
    """What came of records, metrics of each text, the difference between the models, and answers to tasks."""
    if evaluation.records is not None:
        yield from records.lines(evaluation.records)
    yield from _results(evaluation)
    yield from _tasks(evaluation)


def _results(evaluation: Evaluation) -> Iterator[RenderableType]:
    for result in evaluation.texts:
        yield from _head(result, evaluation)
        yield _table(result, evaluation.config.confidence)
        if result.watermark is not None:
            yield Text(f"watermark {evaluation.config.watermark}: {result.watermark}")
        yield Text()
    for note in evaluation.notes:
        yield Text(note, WARNING)
    if evaluation.difference is not None:
        yield Text(evaluation.difference.sentence(), HEADING)


def _head(result: TextResult, evaluation: Evaluation) -> Iterator[Text]:
    text, windows = result.text, result.text.windows
    model, documents = text.model, _count(len(text.documents), "document")
    yield Text.assemble(
        (model.title, HEADING),
        f" · {parameter_count(model.transformer.config):,} parameters, {PRECISION} on {model.device} · "
        f"{_count(text.count, 'token')}, {_count(text.bytes, 'byte')} in {documents} of {evaluation.origin}",
    )
    unscored = text.tokens - text.count
    least = windows.context - windows.stride
    how = f"context {windows.context}, stride {windows.stride}: at least {least} tokens before each, or all there are"
    if unscored:
        how += f"; {_count(unscored, 'token')} with nothing to be predicted from"
    if result.blocks is None:
        yield Text(f"{how}; too short for intervals", QUIET)
        return
    kept = "whole documents" if result.blocks.unit == "documents" else "text"
    yield Text(f"{how}; intervals from {len(result.blocks)} blocks of {kept}", QUIET)


def _count(number: int, what: str) -> str:
    return f"one {what}" if number == 1 else f"{number:,} {what}s"


def _table(result: TextResult, confidence: float) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("")
    table.add_column("value", justify="right")
    table.add_column(f"{confidence:.0%} interval", justify="right")
    table.add_column("")
    for metric in result.metrics:
        unit, share = metric.unit, metric.unit == "of tokens"
        if metric.name == "overconfidence":
            unit = "nats: loss less entropy"
        unit = "" if metric.name == "bits per byte" else unit
        table.add_row(metric.name, *_numbers(metric.value, metric.estimate, share), unit)
    calibration = result.calibration
    chance = f"{_count(len(calibration.bins), 'bin')}; chance makes {calibration.chance:.2%}"
    table.add_row("calibration error", f"{calibration.error:.2%}", "", chance)
    if calibration.corrected is not None:
        table.add_row("  less chance", *_numbers(calibration.corrected.value, calibration.corrected, True), "")
    return table


def _numbers(value: float, interval: Estimate | None, share: bool) -> tuple[str, str]:
    """A value and its interval, to the digits that the interval leaves."""
    half = (
        interval.half
        if interval is not None and math.isfinite(interval.half) and interval.half > 0
        else abs(value) / 100 or 1
    )
    scale = 100 if share else 1
    places = min(8, max(0, 1 - math.floor(math.log10(half * scale))))

    def written(number: float) -> str:
        return f"{number * scale:,.{places}f}{'%' if share else ''}"

    return written(value), "" if interval is None else f"{written(interval.low)} … {written(interval.high)}"


def _tasks(evaluation: Evaluation) -> Iterator[RenderableType]:
    for number, results in enumerate(evaluation.tasks):
        first = results[0]
        yield Text.assemble(
            (f"\n{first.name}", HEADING),
            f" · {_count(first.questions, 'question')}; guessing gets {first.chance:.1%} right",
        )
        table = Table(box=None, pad_edge=False, show_edge=False)
        for column in ("ranked by loss", *(model.title for model in evaluation.models)):
            table.add_column(column, justify="left" if column == "ranked by loss" else "right")
        if len(results) == 2:
            table.add_column("difference", justify="right", no_wrap=True)
            table.add_column("p", justify="right")
        for unit in UNITS:
            cells = [" in ".join(_numbers(r.accuracy[unit].value, r.accuracy[unit], True)) for r in results]
            if len(results) == 2:
                between = evaluation.task_differences[number][unit]
                cells += [" in ".join(_numbers(between.value, between, True)), f"{between.p:.2g}"]
            table.add_row(unit, *cells)
        yield table
