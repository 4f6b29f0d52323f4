"""A bar for anything that takes longer than a blink; silent when nobody watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

Report = Callable[[str, int, "int | None"], None]
"""Called with what is being done, how much of it is done, and how much there is (None when unknown)."""


@contextmanager
def progress(console: Console) -> Iterator[Report]:
    """Show what is reported as one transient bar per task, on a terminal only: a file gets no carriage returns."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bars = Progress(
        TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn(), console=console, transient=True,
        disable=not console.is_terminal,
    )  # fmt: skip
    tasks: dict[str, object] = {}

    def report(what: str, done: int, total: int | None) -> None:
        if what not in tasks:
            tasks[what] = bars.add_task(what, total=total)
        bars.update(tasks[what], completed=done, total=total)  # type: ignore[arg-type]

    with bars:
        yield report
