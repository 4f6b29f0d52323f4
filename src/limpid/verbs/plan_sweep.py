"""`limpid plan sweep`: the runs for a scaling law, trained, and the law fitted to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from limpid.config.flags import read
from limpid.config.options import require
from limpid.config.threads import Threads
from limpid.errors import ConfigError
from limpid.planning.laws.sweep import Sweep


@dataclass(frozen=True)
class PlanSweepFlags(Threads):
    """Train the runs for a scaling law within a time budget, and fit it: several sizes per budget of compute."""

    compute: float | None = None
    """Predict the best size, tokens and loss for this many FLOPs."""
    json: bool = False
    """Print one JSON document."""
    sweep: Sweep = field(default_factory=Sweep)


def verb(argv: Sequence[str]) -> int:
    flags = read("plan sweep", PlanSweepFlags, argv)
    if flags.compute is not None:
        require(0 < flags.compute < math.inf, f"compute is {flags.compute}: FLOPs, above 0")
    from limpid.api import train
    from limpid.console import Console
    from limpid.planning.laws.fit import FEWEST, FEWEST_FOR_INTERVALS, fit, points_of
    from limpid.planning.laws.runs import points
    from limpid.reporter import Reporter
    from limpid.training.loop import Interrupted
    from limpid.training.sweep import train_all
    from limpid.verbs.plan_fit import show

    with Reporter(flags.json) as reporter:
        planned = flags.sweep.budgets * flags.sweep.sizes
        if planned < FEWEST_FOR_INTERVALS:
            reporter.note(f"{planned} runs give constants without intervals, which need {FEWEST_FOR_INTERVALS} runs")
        try:
            runs, notes = train_all(flags.sweep, train, reporter)
        except Interrupted:
            reporter.note("stopped, everything saved: the same command goes on from there")
            return 130
        for note in notes:
            reporter.note(note)
        if len(runs) < FEWEST:
            raise ConfigError(
                f"{len(runs)} of {planned} runs are trained, and a law needs {FEWEST}: the same command goes on with "
                "the others"
            )
        trained = points_of(*zip(*points([str(run.path) for run in runs]), strict=True))
        fitted = fit(trained, seed=flags.sweep.seed, report=reporter.progress)
    return show(fitted, flags.compute, str(flags.sweep.folder), flags.json, Console())
