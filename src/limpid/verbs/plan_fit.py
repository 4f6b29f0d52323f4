"""`limpid plan fit`: a scaling law, fitted to runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from limpid.config.flags import read
from limpid.config.options import require
from limpid.errors import ConfigError
from limpid.files import user_path
from limpid.terminal import say_json

if TYPE_CHECKING:
    from rich.console import Console

    from limpid.planning.laws.fit import Fit


@dataclass(frozen=True)
class PlanFitFlags:
    """Fit L(N, D) = E + A/N^α + B/D^β to runs, with bootstrap intervals.

    limpid plan fit runs/sweep --compute 1e18
    limpid plan fit table.csv
    """

    runs: tuple[str, ...] = field(default=(), metadata={"positional": "RUNS"})
    """Runs, folders of runs, or CSV/JSONL with parameters, tokens (or compute), loss."""
    compute: float | None = None
    """Predict the best size, tokens and loss for this many FLOPs."""
    delta: float = 1e-3
    """Where the Huber loss on log loss turns straight; larger trusts every run more."""
    resamples: int = 200
    """Draws of the bootstrap."""
    level: float = 0.95
    """Probability that an interval is to hold the truth with."""
    seed: int = 0
    """Of the draws."""
    output: str | None = field(default=None, metadata={"short": "o"})
    """Folder for pictures: the fit, and iso-FLOP curves."""
    json: bool = False
    """Print one JSON document."""


def verb(argv: Sequence[str]) -> int:
    flags = read("plan fit", PlanFitFlags, argv)
    if not flags.runs:
        raise ConfigError("plan fit takes runs, or tables with parameters, tokens and loss: limpid plan fit runs.csv")
    if flags.compute is not None:
        require(0 < flags.compute < math.inf, f"compute is {flags.compute}: FLOPs, above 0")
    from limpid.console import Console
    from limpid.planning.laws.fit import fit, points_of
    from limpid.planning.laws.runs import points
    from limpid.reporter import Reporter

    notes: list[str] = []
    trained = points_of(*zip(*points(flags.runs, notes), strict=True))
    with Reporter(flags.json) as reporter:
        for note in notes:
            reporter.note(note)
        fitted = fit(trained, flags.delta, flags.resamples, flags.level, flags.seed, reporter.progress)
    return show(fitted, flags.compute, flags.output, flags.json, Console())


def show(fitted: Fit, compute: float | None, output: str | None, as_json: bool, console: Console) -> int:
    """Print a fitted law and its predictions, and draw it."""
    from limpid.planning.laws.terminal import print_fit, print_prediction

    drawn = []
    if output is not None:
        from limpid.planning.laws.plots import draw_fit

        drawn = draw_fit(fitted, user_path(output))
    if as_json:
        say_json({**fitted.document(compute), "pictures": [str(file) for file in drawn]})
        return 0
    print_fit(fitted, console)
    if compute is not None:
        console.print(f"with {compute:.3g} FLOPs")
        print_prediction(fitted, compute, console)
    for file in drawn:
        console.print(f"written {file}")
    return 0
