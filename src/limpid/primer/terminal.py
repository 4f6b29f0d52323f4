"""A chapter in a terminal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from limpid.latex import readable
from limpid.primer.chapter import Chapter, Equation, Example, Figure, Part, Practice, Text
from limpid.primer.figures import as_text
from limpid.primer.own.step import DRAWN
from limpid.primer.symbols import INLINE, in_characters, introduced
from limpid.terminal import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from limpid.console import Console

WIDTH = 88
"""Columns of a line of text that is easy to read."""


def show(chapter: Chapter, console: Console) -> None:
    """Print all of it."""
    from rich.padding import Padding

    console.print(f"[bold]{chapter.number} {chapter.title}[/bold]")
    about = f"[dim]{chapter.purpose} About {counted(chapter.minutes, 'minute')}.[/dim]"
    for part in (about, *(_shown(chapter, part) for part in chapter.parts)):
        console.print(Padding(part, (0, 0, 1, 0)), width=min(WIDTH, console.width))
    console.print(f"In a recorded step: [bold]limpid explain --worked {chapter.opens}[/bold]")
    console.print(f"In one of yours: [bold]limpid explain last {chapter.opens}[/bold]")
    asked = next((part.exercise.name for part in chapter.parts if isinstance(part, Practice)
                  and part.exercise.name in DRAWN), None)  # fmt: skip
    if asked:
        console.print(f"An exercise with numbers of it: [bold]limpid learn {asked} --of last[/bold]")


def _shown(chapter: Chapter, part: Part) -> RenderableType:
    from rich.console import Group
    from rich.markdown import Markdown
    from rich.padding import Padding
    from rich.text import Text as Line

    match part:
        case Text():
            return Markdown(_as_markdown(part.markdown))
        case Equation():
            said = [f"{readable(one.latex)}: {in_characters(one.says)}" for one in introduced(chapter, part)]
            return Padding(Group(Line(readable(part.latex), "bold"), *(Line(one, "dim") for one in said)), (0, 4))
        case Example():
            return Padding(Group(Line(part.question), Line(part.solution, "bold")), (0, 4))
        case Practice(exercise):
            return Padding(Group(Line(exercise.question(exercise.first)), Line(f"limpid learn {exercise.name}", "dim")),
                           (0, 4))  # fmt: skip
        case Figure():
            return Padding(Line(as_text(part.name, part.settings), no_wrap=True), (0, 4))


def _as_markdown(markdown: str) -> str:
    """Markdown whose mathematics is in the terminal's own characters."""
    return INLINE.sub(lambda found: re.sub(r"([*_`\[\]<>|\\])", r"\\\1", in_characters(found[0])), markdown)
