"""What a verb shows its user: lines to read, or one JSON document; and bars for what takes long."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from limpid.terminal import say_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress

Report = Callable[[str, int, "int | None"], None]
"""Called with what is being done, how much of it is done, and how much there is (None when unknown)."""


class Reporter:
    """Lines and the document go to standard output, bars to standard error, and only where that is a terminal.

    Whoever makes one closes it, best with `with`. `SILENT` shows nothing.
    """

    listened_to = True
    """Whether the console has taken every line so far; where it does not, `line` raises OSError."""

    def __init__(self, as_json: bool = False, console: Console | None = None, aside: Console | None = None) -> None:
        """`console` and `aside` are standard output and standard error when left out."""
        self.as_json = as_json
        self._console, self._aside = console, aside
        self._bars: Progress | None = None
        self._tasks: dict[str, Any] = {}

    @cached_property
    def console(self) -> Console:
        """Where lines go."""
        from limpid.console import Console

        return self._console or Console()

    @property
    def is_terminal(self) -> bool:
        """Whether lines go to somebody who looks on, and not to a file."""
        return not self.as_json and self.console.is_interactive

    @cached_property
    def aside(self) -> Console:
        """Where bars and notes go."""
        from limpid.console import Console

        return self._aside or Console(stderr=True)

    def line(self, content: RenderableType = "") -> None:
        """Print something to read, unless a document was asked for; a string is shown as it is, without markup."""
        if self.as_json:
            return
        if self._bars is not None and self.console is not self.aside:  # a line between bars would stand in them
            self.close()
        self.console.print(content, markup=False)

    def document(self, value: Any) -> None:
        """Print plain values as one line of JSON, if that was asked for."""
        if self.as_json:
            self.close()
            say_json(value, self.console.file)

    def note(self, text: str) -> None:
        """Print something beside the result, on standard error."""
        self.aside.print(text, markup=False)

    def progress(self, task: str, done: int, total: int | None = None) -> None:
        """Show how far a task is, and how long it takes yet; a total of None is not known."""
        if not self.aside.is_interactive:  # a file gets no carriage returns
            return
        if self._bars is None:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.table import Column

            name = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
            columns = name, BarColumn(bar_width=16), TimeElapsedColumn(), TimeRemainingColumn(compact=True)
            self._bars = Progress(*columns, console=self.aside, transient=True)
            self._bars.start()
        if task not in self._tasks:
            for other in [one for one in self._bars.tasks if one.total is None]:  # what has no end ends with the next
                self._bars.update(other.id, visible=False)
            self._tasks[task] = self._bars.add_task(task, total=total)
        self._bars.update(self._tasks[task], completed=done, total=total, visible=True)

    def close(self) -> None:
        """Take the bars away."""
        if self._bars is not None:
            self._bars.stop()
        self._bars, self._tasks = None, {}

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class LastingReporter(Reporter):
    """For work that does not end with its console: lines that it no longer takes are dropped, and nothing raises."""

    def line(self, content: RenderableType = "") -> None:
        try:
            super().line(content)
        except OSError:
            self.listened_to = False


class Silent(Reporter):
    """A reporter that shows nothing: for Python, where results are returned."""

    @property
    def is_terminal(self) -> bool:
        return False

    def line(self, content: RenderableType = "") -> None:
        return

    def document(self, value: Any) -> None:
        return

    def note(self, text: str) -> None:
        return

    def progress(self, task: str, done: int, total: int | None = None) -> None:
        return


SILENT = Silent()
