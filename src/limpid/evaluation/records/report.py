"""What came of records, as a table: before, after, and how much that differs."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from limpid.evaluation.compared import Compared
from limpid.evaluation.metrics import Metric
from limpid.evaluation.records.judge import Judged
from limpid.terminal import counted
from limpid.theme import HEADING, QUIET, WARNING


def lines(judged: Judged) -> Iterator[RenderableType]:
    """The records, the table, and what it comes to."""
    before, after = judged.names
    of = "" if judged.of == judged.count else f" of {judged.of:,}"
    yield Text.assemble((after, HEADING), " against ", (before, HEADING),
                        f" · {counted(judged.count, 'record')}{of}, {judged.origin}")  # fmt: skip
    if asking := judged.asking:
        most = counted(asking.max_completion_length, "token")
        drawn = f"{counted(asking.num_generations, 'answer')} to each prompt from each model"
        yield Text(f"{drawn}, at temperature {asking.temperature:g}, of at most {most}", QUIET)
    yield _table(judged)
    for note in judged.notes:
        yield Text(note, WARNING)
    open_ = [row.name for row in judged.rows if row.told is False]
    if open_:
        yield Text(f"no difference can be told of {', '.join(dict.fromkeys(open_))}", QUIET)
    if judged.difference is not None:
        yield Text(judged.difference.sentence(), HEADING)


def _table(judged: Judged) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("")
    for column in ("before", "after", "difference", f"{judged.confidence:.0%} interval"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    for row in judged.rows:
        table.add_row(row.name, *cells(row), Text(row.after.unit, QUIET))
    return table


def cells(row: Compared) -> tuple[str, str, str, str]:
    """Before, after, difference and its interval, to the digits that the intervals leave."""
    scale, sign = (100, "%") if row.share else (1, "")
    places = min(_places(metric, scale) for metric in (row.before, row.after, row.difference) if metric is not None)

    def written(value: float, plus: str = "") -> str:
        return f"{value * scale:{plus},.{places}f}{sign}"

    def side(metric: Metric | None) -> str:
        if metric is None:
            return ""
        half = "" if metric.estimate is None or metric.estimate.half == 0 else f" ± {written(metric.estimate.half)}"
        return f"{written(metric.value)}{half}"

    if row.difference is None:
        return side(row.before), side(row.after), "", ""
    between = row.difference.estimate
    interval = "" if between is None else f"{written(between.low, '+')} … {written(between.high, '+')}"
    return side(row.before), side(row.after), written(row.difference.value, "+"), interval


def _places(metric: Metric, scale: float) -> int:
    """Digits behind the point: two of the interval's half; without one, three of the number."""
    half = None if metric.estimate is None else metric.estimate.half
    if half is None or not (math.isfinite(half) and half > 0):
        half = abs(metric.value) / 10
    return 8 if half == 0 else min(8, max(0, 1 - math.floor(math.log10(half * scale))))
