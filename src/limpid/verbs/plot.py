"""`limpid plot`: the curves of runs, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from limpid.config.domain import Count
from limpid.config.flags import read
from limpid.errors import ConfigError

LINES, COLUMNS = 16, 160
"""Height of the drawing in letters, and its width where the terminal has as many columns."""


@dataclass(frozen=True)
class PlotFlags:
    """Loss with its interval, learning rate, gradient norm and speed of runs, over each other.

    limpid plot last                   the loss, and all four in a picture
    limpid plot 001 002 -o both.svg    two runs in one picture
    limpid plot 001 002 --along tokens
    """

    what: tuple[str, ...] = field(default=("last",), metadata={"positional": "RUN"})
    """Runs, names under runs/, or `last`."""
    along: Literal["step", "tokens", "time"] = "step"
    """What the curves are drawn over."""
    window: Count | None = None
    """Steps that the loss is averaged over; a fiftieth of the run when left out, 1 averages nothing."""
    output: str | None = field(default=None, metadata={"short": "o"})
    """Picture to write, .png or .svg; curves.png in the run's folder when left out, under runs/ for several."""


def verb(argv: Sequence[str]) -> int:
    flags = read("plot", PlotFlags, argv)
    file = None if flags.output is None else Path(flags.output)
    if file is not None and file.suffix.lower() not in (".png", ".svg"):
        raise ConfigError(f"--output is {flags.output!r}: expected a name that ends in .png or .svg")
    from rich.text import Text

    from limpid.history.curves import curves
    from limpid.history.picture import draw, in_letters
    from limpid.plots import left_out_where_refused
    from limpid.reporter import Reporter
    from limpid.run import RUNS
    from limpid.source import find_run

    runs = list({run.path.resolve(): run for run in map(find_run, flags.what)}.values())
    drawn = [curves(run, flags.along, flags.window) for run in runs]
    with Reporter() as reporter:
        console = reporter.console
        coloured = console.color_system is not None and not console.no_color
        width = min(console.width, COLUMNS)
        reporter.line(Text.from_ansi(in_letters(drawn, flags.along, width, LINES, coloured)))
        with left_out_where_refused(file, reporter, "FILE"):
            written = draw(drawn, flags.along, file or (runs[0].path if len(runs) == 1 else RUNS) / "curves.png")
            reporter.line(f"written {written}")
    return 0
