"""A plan in the terminal: one table per question, every number with its unit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from limpid.columns import Columns
from limpid.planning.figure import Figure, Number, plain, readable, shown
from limpid.planning.laws.terminal import print_allocation, print_judgement, scaling_lines
from limpid.planning.report import Plan
from limpid.theme import FAULT, GOOD, HEADING, QUIET

if TYPE_CHECKING:
    from rich.console import Console

TITLES = {
    "parameters": "parameters",
    "flops": "FLOPs per token",
    "memory": "memory of training, per device",
    "decoding": "memory of generating",
    "communication": "what a device sends in a step",
    "time": "time",
    "scaling": "scaling laws",
}
WITH_SHARES = ("parameters", "memory", "decoding")
"""Sections whose figures are parts of one total."""
EMPHASISED = ("total", "forward", "step")
LONGEST_EQUATION = 64
"""Letters of an equation that a table still shows."""
WORDS = {
    "six_n": "6 N", "mfu": "utilisation (MFU)", "hfu": "with what is repeated (HFU)", "peak": "peak of one device",
    "measured_mfu": "the run's utilisation (MFU)", "tokens_per_second": "tokens per second, all devices",
    "tokens_per_second_and_device": "tokens per second and device", "data": "for data parallelism",
    "tensor": "for tensor parallelism", "pipeline": "between pipeline stages", "context": "keys and values",
}  # fmt: skip
"""Figures whose names are not words."""
REPEATED = ("flops.exact_over_six_n", "memory.share", "memory.device")
"""Figures that another line already says."""


def print_plan(report: Plan, console: Console) -> None:
    """Print all sections, whether the plan fits, and what would make it fit."""
    if list(report.sections) == ["scaling"]:
        judged = any(one.name.endswith(".training") for one in report.figures)
        (print_judgement if judged else print_allocation)(report.figures, console)
        return
    total, active = report.figure("parameters.total"), [f for f in report.figures if f.name == "parameters.active"]
    sparse = f", {shown(active[0].value, 'parameters')} per token" if active else ""
    console.print(Text.assemble((report.name, HEADING), f" · {plain(total.value)} parameters{sparse}"))
    for note in report.notes:
        console.print(Text(note, QUIET))
    for section, figures in report.sections.items():
        console.print(Text(f"\n{TITLES[section]}", HEADING))
        if section == "scaling":
            for line in scaling_lines(figures):
                console.print(line)
        else:
            console.print(_table(section, figures))
    for line in _fits(report):
        console.print(line)
    if report.division is not None:
        console.print(Text(report.division))
    console.print(Text("\nevery figure answers: --why NAME, for example --why memory.activations", QUIET))


def print_figure(figure: Figure, console: Console) -> None:
    """One figure: its equation, the numbers put in, its source."""
    for line in figure.why():
        console.print(Text(line))


def _table(section: str, figures: list[Figure]) -> Columns:
    """Name, value, share of the total, and a short equation; `--why` has the long ones."""
    figures = [figure for figure in figures if figure.name not in REPEATED]
    total = next((figure.value for figure in figures if figure.name == f"{section}.total"), 0)
    total = total if section in WITH_SHARES else 0
    rows = [_row(section, figure, inside, total) for figure, inside in _grouped(figures)]
    return Columns(("", "", "share", "") if total else ("", "", ""), rows, right=(1, 2) if total else (1,))


def _row(section: str, figure: Figure, inside: bool, total: Number) -> list[Text]:
    name = figure.name.partition(".")[2] if figure.name.startswith(section) else figure.name
    strong = HEADING if not inside and (name in EMPHASISED or section == "parameters") else ""
    label = "  " + name.rpartition(".")[2] if inside else WORDS.get(name, name)
    value = plain(figure.value) if section == "parameters" else shown(figure.value, figure.unit)
    row = [Text(label.replace("_", " "), strong), Text(value, strong)]
    if total:
        is_part = figure.unit in ("bytes", "parameters") and not any(word in name for word in ("per_", "here", "read"))
        row.append(Text(f"{100 * figure.value / total:.1f} %" if is_part else "", QUIET))
    return [*row, Text(_short_equation(figure), QUIET)]


def _grouped(figures: list[Figure]) -> Iterator[tuple[Figure, bool]]:
    """Sums before their parts: `attention`, then `attention.query` and the others, which stand inside it."""
    depth = {figure.name: figure.name.count(".") for figure in figures}
    for figure in figures:
        if depth[figure.name] > 1:
            continue
        stem = "memory.saved" if figure.name == "memory.activations" else figure.name
        yield figure, False
        yield from ((part, True) for part in figures if part.name.startswith(f"{stem}."))


def _short_equation(figure: Figure) -> str:
    if figure.equation == figure.name:
        return figure.source
    if re.fullmatch(r"[a-z_0-9.]+( [+-] [a-z_0-9.]+)*", figure.equation):
        return ""  # a sum of lines that are shown
    text = readable(figure.equation)
    return text if len(text) <= LONGEST_EQUATION else ""


def _fits(report: Plan) -> Iterator[Text]:
    if report.fits is None:
        return
    used, limit = report.figure(report.limited).value, report.figure("memory.device").value
    what = "training" if report.limited == "memory.total" else "generating"
    said = f"{what} takes {shown(used, 'bytes')} of {shown(limit, 'bytes')} per device"
    if report.fits:
        yield Text(f"\nfits: {said}", f"bold {GOOD}")
        return
    yield Text(f"\ndoes not fit: {said}", f"bold {FAULT}")
    for advice in report.advice:
        yield Text(f"  {advice}")


def print_decisions(rows: Sequence[tuple[str, str, str]], console: Console) -> None:
    """How the engine would compute a run: part, choice and reason."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("part", "chosen here", "because"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
