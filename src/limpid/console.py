"""The console that every report is printed on: rich's, with nothing in a text that would command the terminal."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from typing import Any

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from limpid.terminal import printable


class Console(RichConsole):
    """Colours and tables as rich makes them; words are not coloured by what they look like."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The pieces of what is printed: all but rich's own control codes is text."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else Segment(printable(piece.text), piece.style)

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, as printing does: rich ends the whole process here, whatever it was at.

        What lies in the file's buffer goes nowhere, so that ending does not fail on it.
        """
        with contextlib.suppress(OSError):  # no descriptor: a file made in Python
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
