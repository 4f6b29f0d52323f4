"""The longer exercises as the page is sent them: something to look into, and a choice among several."""

from __future__ import annotations

import inspect

from limpid.view.answers import Refused
from limpid.view.documents.learn import Look, PuzzleRow, PuzzleView


def rows() -> tuple[PuzzleRow, ...]:
    """Each of them, with what there is to do."""
    from limpid.primer.puzzles import PUZZLES

    return tuple(PuzzleRow(name, _purpose(inspect.getmodule(drawn))) for name, drawn in PUZZLES.items())


def puzzle_view(name: str, seed: int) -> PuzzleView:
    """One with the numbers of a seed.

    Raises  Refused for one that is not there
    """
    from limpid.primer.puzzles import PUZZLES

    if name not in PUZZLES:
        raise Refused(f"there is no longer exercise {name[:40]!r}: choose one of {', '.join(PUZZLES)}", 404)
    drawn = PUZZLES[name](seed)
    choices = tuple(one.label for one in drawn.choices)
    purpose = _purpose(inspect.getmodule(PUZZLES[name]))
    looks = tuple(Look(entry, written) for entry, written in drawn.looks.items())
    return PuzzleView(name, purpose, seed, drawn.asked, choices, drawn.hints, drawn.solution, drawn.opens, looks)


def _purpose(module: object) -> str:
    """What the first line of a file says it asks for."""
    return (inspect.getdoc(module) or "").split("\n")[0]
