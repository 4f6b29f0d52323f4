"""A plan told in the terminal: one table per question, every number with its unit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from limpid.plan.figure import Figure, plain, readable, shown
from limpid.plan.laws.scaling import LAWS, Law
from limpid.plan.report import Plan

if TYPE_CHECKING:
    from rich.console import Console

    from limpid.plan.laws.fit import Fit

HEADING = "bold blue"
TITLES = {
    "parameters": "parameters",
    "flops": "FLOPs per token",
    "memory": "memory of training, per device",
    "decoding": "memory of generating",
    "time": "time",
    "scaling": "scaling laws",
}
SHARED = ("parameters", "memory", "decoding")
"""Sections whose figures are parts of one total."""
STRONG = ("total", "forward", "step")
LONGEST = 64
"""Letters of an equation that a table still shows."""
SMALLEST = 2e7
"""Parameters below which the published laws say nothing about a loss: a third of the smallest model behind them."""
QUIET = ("flops.exact_over_six_n", "memory.share", "memory.device")
"""Figures that another line already says."""


def tell(found: Plan, console: Console) -> None:
    """Print all of it."""
    total, active = found.figure("parameters.total"), [f for f in found.figures if f.name == "parameters.active"]
    sparse = f", {shown(active[0].value, 'parameters')} per token" if active else ""
    console.print(Text.assemble((found.name, "bold"), f" · {plain(total.value)} parameters{sparse}"))
    for note in found.notes:
        console.print(Text(note, "dim"), soft_wrap=True)
    for section, figures in found.sections.items():
        console.print(Text(f"\n{TITLES[section]}", HEADING))
        if section == "scaling":
            for line in _scaling(figures):
                console.print(line, soft_wrap=True)
        else:
            console.print(_table(section, figures))
    for line in _verdict(found):
        console.print(line, soft_wrap=True)
    console.print(
        Text("\nevery figure answers: --why NAME, for example --why " + _example(found), "dim"), soft_wrap=True
    )


def why(figure: Figure, console: Console) -> None:
    """One figure: its equation, the numbers put in, its source."""
    for line in figure.why():
        console.print(Text(line), soft_wrap=True)


def _example(found: Plan) -> str:
    return "memory.activations" if "memory" in found.sections else "parameters.total"


def _table(section: str, figures: list[Figure]) -> Table:
    """Name, value, share of the total, and a short equation; `--why` has the long ones."""
    figures = [figure for figure in figures if figure.name not in QUIET]
    whole = next((figure.value for figure in figures if figure.name == f"{section}.total"), None)
    parts = section in SHARED and bool(whole)
    rows: list[list[Text]] = []
    for figure, inside in _grouped(figures):
        name = figure.name.partition(".")[2] if figure.name.startswith(section) else figure.name
        strong = "" if inside else "bold" if name in STRONG or section == "parameters" else ""
        value = plain(figure.value) if section == "parameters" else shown(figure.value, figure.unit)
        label = name.rpartition(".")[2] if inside else name
        row = [Text(("  " if inside else "") + label.replace("_", " "), strong), Text(value, strong)]
        if parts:
            same = figure.unit in ("bytes", "parameters") and not any(
                word in name for word in ("per_", "here", "passing_")
            )
            row.append(Text(f"{100 * figure.value / (whole or 1):.1f} %" if same else "", "dim"))
        rows.append([*row, Text(_short_equation(figure), "dim")])
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for place, head in enumerate(
        ("", "", *(("share",) if parts else ()))
    ):  # only equations give way on a narrow screen
        width = max((row[place].cell_len for row in rows), default=0)
        table.add_column(head, justify="right" if place else "left", no_wrap=True, min_width=max(width, len(head)))
    table.add_column("", no_wrap=True, overflow="ellipsis")  # only equations give way on a narrow screen
    for row in rows:
        table.add_row(*row)
    return table


def _grouped(figures: list[Figure]) -> Iterator[tuple[Figure, bool]]:
    """Sums before their parts: `attention`, then `attention.query` and the others, which stand inside it."""
    depth = {figure.name: figure.name.count(".") for figure in figures}
    for figure in figures:
        if depth[figure.name] > 1:
            continue
        stem = "memory.kept" if figure.name == "memory.activations" else figure.name
        yield figure, False
        yield from ((part, True) for part in figures if part.name.startswith(f"{stem}."))


def _short_equation(figure: Figure) -> str:
    if figure.equation == figure.name:
        return figure.source
    if re.fullmatch(r"[a-z_0-9]+( [+-] [a-z_0-9]+)*", figure.equation):
        return ""  # a sum of lines that are shown
    text = readable(figure.equation)
    return text if len(text) <= LONGEST else ""


def _scaling(figures: list[Figure]) -> Iterator[Text]:
    """For a number of tokens, what a run loses; without one, the best partner under every law."""
    by_name = {figure.name: figure for figure in figures}
    judged = [figure for figure in figures if figure.name.endswith(".training")]
    for law in LAWS:
        short = f"scaling.{law.name.split(', ')[1].replace(' ', '_').replace('-', '')}"
        if judged and isinstance(law, Law):
            yield Text(f"{law.name}: {judgement(short, by_name)}")
        elif f"{short}.tokens" in by_name:
            yield Text(f"{law.name}: {partner(short, by_name)}")
    yield Text("the laws were fitted on other text and another vocabulary, 0.06 to 16 billion parameters: "
               "ratios carry over better than losses", "dim")  # fmt: skip


def judgement(short: str, by_name: dict[str, Figure]) -> str:
    """One sentence: how far from the best use of this compute."""
    ratio, lost = by_name[f"{short}.training"].value, by_name[f"{short}.loss_lost"].value
    best_n, best_d = by_name[f"{short}.best_parameters"], by_name[f"{short}.best_tokens"]
    how = "about right" if 0.8 < ratio < 1.25 else "under-trained" if ratio < 1 else "over-trained"
    loses = f"this loses {lost:.4f} nats/token against it" if lost >= 5e-5 else "this loses nothing against it"
    if best_n.value < SMALLEST:
        loses = "no loss is given, since the law was fitted on far larger models"
    return (f"{how}: {ratio:.3g} × the tokens that are best for this size; the best use of this compute is "
            f"{shown(best_n.value, 'parameters')} on {shown(best_d.value, 'tokens')}; {loses}")  # fmt: skip


def partner(short: str, by_name: dict[str, Figure]) -> str:
    """One line: parameters, tokens, compute that belong together."""
    words = [shown(by_name[f"{short}.{name}"].value, by_name[f"{short}.{name}"].unit)
             for name in ("compute", "parameters", "tokens")]  # fmt: skip
    ratio = f"{by_name[f'{short}.tokens_per_parameter'].value:.3g} tokens per parameter"
    loss = f", loss {by_name[f'{short}.loss'].value:.3f} nats/token" if f"{short}.loss" in by_name else ""
    return " · ".join([*words, ratio]) + loss


def _verdict(found: Plan) -> Iterator[Text]:
    if found.fits is None:
        return
    used, limit = found.figure(found.judged).value, found.figure("memory.device").value
    what = "training" if found.judged == "memory.total" else "generating"
    said = f"{what} takes {shown(used, 'bytes')} of {shown(limit, 'bytes')} per device"
    if found.fits:
        yield Text(f"\nfits: {said}", "bold green")
        return
    yield Text(f"\ndoes not fit: {said}", "bold red")
    for advice in found.advice:
        yield Text(f"  {advice}")


def tell_allocation(figures: list[Figure], console: Console) -> None:
    """The compute-optimal partner under every law, as a table."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("law", "FLOPs", "parameters", "tokens", "tokens / parameter", "loss, nats/token"):
        table.add_column(column, justify="left" if column == "law" else "right")
    by_name = {figure.name: figure for figure in figures}
    for law in LAWS:
        short = f"scaling.{law.name.split(', ')[1].replace(' ', '_').replace('-', '')}"
        cells = [
            shown(by_name[f"{short}.{name}"].value, by_name[f"{short}.{name}"].unit).rpartition(" ")[0]
            if name != "compute" else f"{by_name[f'{short}.{name}'].value:.3g}"
            for name in ("compute", "parameters", "tokens")
        ]  # fmt: skip
        loss = by_name.get(f"{short}.loss")
        ratio = f"{by_name[f'{short}.tokens_per_parameter'].value:.3g}"
        table.add_row(law.name, *cells, ratio, "" if loss is None else f"{loss.value:.3f}")
    console.print(table)
    console.print(Text("C = 6 N D; losses are in nats per token of the text that each law was fitted on", "dim"))


def tell_judgement(figures: list[Figure], console: Console) -> None:
    """How far parameters and tokens are from the best use of their compute, under each law of loss."""
    for line in _scaling(figures):
        console.print(line, soft_wrap=True)


def tell_fit(fit: Fit, console: Console) -> None:
    """The constants with their intervals, and what follows from them."""
    level = f"{100 * fit.level:g} % interval"
    console.print(Text.assemble(("L(N, D) = E + A / N^α + B / D^β", "bold"), f"   fitted to {len(fit.points)} runs, "
                                f"{len(fit.resampled)} resamplings"))  # fmt: skip
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("", "value", level, "is"):
        table.add_column(column, justify="right" if column in ("value", level) else "left")
    meanings = {"E": "loss that no size and no data take away, nats/token", "A": "", "B": "",
                "alpha": "exponent of parameters", "beta": "exponent of tokens"}  # fmt: skip
    for name, (low, high) in fit.intervals.items():
        table.add_row(name, f"{getattr(fit.law, name):.5g}", f"{low:.4g} … {high:.4g}", Text(meanings[name], "dim"))
    low, high = fit.interval(lambda law: law.exponent)
    table.add_row("a", f"{fit.law.exponent:.4g}", f"{low:.4g} … {high:.4g}", Text("best N ∝ C^a: β / (α + β)", "dim"))
    console.print(table)
    if loose := fit.undetermined:
        console.print(Text(f"these runs do not determine {', '.join(loose)}: more sizes, budgets or tokens would",
                           "yellow"), soft_wrap=True)  # fmt: skip


def tell_prediction(fit: Fit, compute: float, console: Console) -> None:
    """The best use of some compute under a fitted law, with intervals."""
    parameters, tokens = fit.law.optimum(compute)
    for name, value, unit, of in (
        ("parameters", parameters, "parameters", lambda law: law.optimum(compute)[0]),
        ("tokens", tokens, "tokens", lambda law: law.optimum(compute)[1]),
        ("loss", fit.law.loss(parameters, tokens), "nats/token", lambda law: law.loss(*law.optimum(compute))),
    ):
        low, high = fit.interval(of)
        console.print(Text(f"  best {name}: {shown(value, unit)}  ({shown(low, unit)} … {shown(high, unit)})"))
