"""Scaling laws in the terminal: allocations, judgements of a run, a fitted law and what it predicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from limpid.columns import Columns
from limpid.planning.figure import Figure, shown
from limpid.planning.laws.allocation import figure_prefix
from limpid.planning.laws.scaling import LAWS, Law
from limpid.theme import HEADING, QUIET, WARNING

if TYPE_CHECKING:
    from rich.console import Console

    from limpid.planning.laws.fit import Fit

SMALLEST = 2e7
"""Parameters below which the published laws say nothing about a loss: a third of the smallest model behind them."""
MEANINGS = {"E": "loss that no size and no data take away, nats/token", "A": "", "B": "",
            "alpha": "exponent of parameters", "beta": "exponent of tokens"}  # fmt: skip


def print_allocation(figures: list[Figure], console: Console) -> None:
    """The compute-optimal partner under every law, as a table."""
    rows, by_name = [], {figure.name: figure for figure in figures}
    for law in LAWS:
        prefix = figure_prefix(law)
        cells = [
            shown(by_name[f"{prefix}.{name}"].value, by_name[f"{prefix}.{name}"].unit).rpartition(" ")[0]
            if name != "compute" else f"{by_name[f'{prefix}.{name}'].value:.3g}"
            for name in ("compute", "parameters", "tokens")
        ]  # fmt: skip
        loss = by_name.get(f"{prefix}.loss")
        ratio = f"{by_name[f'{prefix}.tokens_per_parameter'].value:.3g}"
        rows.append((law.name, *cells, ratio, "" if loss is None else f"{loss.value:.3f}"))
    heads = ("law", "FLOPs", "parameters", "tokens", "tokens /\nparameter", "loss,\nnats/token")
    console.print(Columns(heads, rows, right=range(1, len(heads))))
    console.print(Text("C = 6 N D; losses are in nats per token of the text that each law was fitted on", QUIET))


def print_judgement(figures: list[Figure], console: Console) -> None:
    """How far parameters and tokens are from the best use of their compute, under each law of loss."""
    for line in scaling_lines(figures):
        console.print(line)


def scaling_lines(figures: list[Figure]) -> Iterator[Text]:
    """For a number of tokens, what a run loses; without one, the best partner under every law."""
    by_name = {figure.name: figure for figure in figures}
    judged = [figure for figure in figures if figure.name.endswith(".training")]
    for law in LAWS:
        prefix = figure_prefix(law)
        if judged and isinstance(law, Law):
            yield Text(f"{law.name}: {judgement(prefix, by_name)}")
        elif f"{prefix}.tokens" in by_name:
            yield Text(f"{law.name}: {partner(prefix, by_name)}")
    yield Text("the laws were fitted on other text and another vocabulary, 0.06 to 16 billion parameters: "
               "ratios carry over better than losses", QUIET)  # fmt: skip


def judgement(prefix: str, by_name: dict[str, Figure]) -> str:
    """One sentence: how far from the best use of this compute."""
    ratio, lost = by_name[f"{prefix}.training"].value, by_name[f"{prefix}.loss_lost"].value
    best_n, best_d = by_name[f"{prefix}.best_parameters"], by_name[f"{prefix}.best_tokens"]
    how = "about right" if 0.8 < ratio < 1.25 else "under-trained" if ratio < 1 else "over-trained"
    loses = f"this loses {lost:.4f} nats/token against it" if lost >= 5e-5 else "this loses nothing against it"
    if best_n.value < SMALLEST:
        loses = "no loss is given, since the law was fitted on far larger models"
    return (f"{how}: {ratio:.3g} × the tokens that are best for this size; the best use of this compute is "
            f"{shown(best_n.value, 'parameters')} on {shown(best_d.value, 'tokens')}; {loses}")  # fmt: skip


def partner(prefix: str, by_name: dict[str, Figure]) -> str:
    """One line: parameters, tokens, compute that belong together."""
    words = [shown(by_name[f"{prefix}.{name}"].value, by_name[f"{prefix}.{name}"].unit)
             for name in ("compute", "parameters", "tokens")]  # fmt: skip
    ratio = f"{by_name[f'{prefix}.tokens_per_parameter'].value:.3g} tokens per parameter"
    loss = f", loss {by_name[f'{prefix}.loss'].value:.3f} nats/token" if f"{prefix}.loss" in by_name else ""
    return " · ".join([*words, ratio]) + loss


def print_fit(fit: Fit, console: Console) -> None:
    """The constants with their intervals, and what follows from them."""
    level = f"{100 * fit.level:g} % interval"
    count = f"fitted to {len(fit.points)} runs"
    count += f", {len(fit.resampled)} resamplings" if len(fit.resampled) else ""
    console.print(Text.assemble(("L(N, D) = E + A / N^α + B / D^β", HEADING), f"   {count}"))
    table = Table(box=None, pad_edge=False, header_style=QUIET, padding=(0, 2, 0, 0))
    for column in ("", "value", level, "is"):
        table.add_column(column, justify="right" if column in ("value", level) else "left")
    for name in fit.law.constants:
        ends = _ends(fit.intervals.get(name))
        table.add_row(name, f"{getattr(fit.law, name):.5g}", ends, Text(MEANINGS[name], QUIET))
    ends = _ends(fit.interval(lambda law: law.exponent))
    table.add_row("a", f"{fit.law.exponent:.4g}", ends, Text("best N ∝ C^a: β / (α + β)", QUIET))
    console.print(table)
    if not len(fit.resampled):
        from limpid.planning.laws.fit import FEWEST_FOR_INTERVALS

        said = f"intervals need {FEWEST_FOR_INTERVALS} runs: {len(fit.points)} cannot say how sure these numbers are"
        console.print(Text(said, WARNING))
    if loose := fit.undetermined:
        console.print(Text(f"these runs do not determine {', '.join(loose)}: more sizes, budgets or tokens would",
                           WARNING))  # fmt: skip


def _ends(interval: tuple[float, float] | None) -> str:
    return "unknown" if interval is None else f"{interval[0]:.4g} … {interval[1]:.4g}"


def print_prediction(fit: Fit, compute: float, console: Console) -> None:
    """The best use of some compute under a fitted law, with intervals."""
    parameters, tokens = fit.law.optimum(compute)
    for name, value, unit, of in (
        ("parameters", parameters, "parameters", lambda law: law.optimum(compute)[0]),
        ("tokens", tokens, "tokens", lambda law: law.optimum(compute)[1]),
        ("loss", fit.law.loss(parameters, tokens), "nats/token", lambda law: law.loss(*law.optimum(compute))),
    ):
        interval = fit.interval(of)
        low, high = ("", "") if interval is None else (shown(end, unit).removesuffix(f" {unit}") for end in interval)
        ends = "" if interval is None else f"  ({low} … {high})"
        console.print(Text(f"  best {name}: {shown(value, unit)}{ends}"))
