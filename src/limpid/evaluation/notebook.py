"""An evaluation in a notebook: metrics with their intervals, the reliability curve, answers to tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from limpid.evaluation.intervals import Estimate
from limpid.evaluation.records.report import cells
from limpid.evaluation.tasks import UNITS
from limpid.html import curve, table, titled
from limpid.terminal import counted

if TYPE_CHECKING:
    from limpid.evaluation.evaluation import Evaluation, TextResult
    from limpid.evaluation.records.judge import Judged


def page(evaluation: Evaluation) -> str:
    """All of it."""
    parts = [table([(note,)]) for note in evaluation.notes]
    if evaluation.difference is not None:
        parts.append(table([(evaluation.difference.sentence(),)]))
    if evaluation.records is not None:
        parts.append(_records(evaluation.records))
    parts += [_text(result, evaluation) for result in evaluation.texts]
    for results in evaluation.tasks:
        names = [model.title for model in evaluation.models]
        rows = [(unit, *(_interval(one.accuracy[unit]) for one in results)) for unit in UNITS]
        parts.append(titled(results[0].name, table(rows, ("ranked by loss", *names))))
    return titled(f"evaluation of {evaluation.models[0].title}", *parts)


def _records(judged: Judged) -> str:
    before, after = judged.names
    header = ("", "before", "after", "difference", f"{judged.confidence:.0%} interval", "")
    rows = [(row.name, *cells(row), row.after.unit) for row in judged.rows]
    said = [(note,) for note in judged.notes]
    said += [] if judged.difference is None else [(judged.difference.sentence(),)]
    title = f"{after} against {before}: {counted(judged.count, 'record')}, {judged.origin}"
    return titled(title, table(rows, header, numbers=(1, 2, 3, 4)), table(said))


def _text(result: TextResult, evaluation: Evaluation) -> str:
    rows = [
        (metric.name, f"{metric.value:.5g}", "" if metric.estimate is None else _interval(metric.estimate), metric.unit)
        for metric in result.metrics
    ]
    if result.watermark is not None:
        rows.append(("watermark", f"{result.watermark.z:.2f}", f"p {result.watermark.p:.2g}", "standard deviations"))
    bins = result.calibration.bins
    drawn = curve(
        [one.confidence for one in bins],
        [one.accuracy for one in bins],
        "probability of the likeliest token",
        "share of times it came",
    )
    header = ("", "value", f"{evaluation.config.confidence:.0%} interval", "")
    title = f"{result.text.model.title}: {result.text.count:,} tokens of {evaluation.origin}"
    return titled(title, table(rows, header, numbers=(1,)), drawn)


def _interval(estimate: Estimate) -> str:
    return f"{estimate.low:.4g} … {estimate.high:.4g}"
