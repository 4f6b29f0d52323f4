"""The sheet of exercises in the page: the same as `limpid learn --sheet` writes."""

from __future__ import annotations

from collections.abc import Sequence

from limpid.view.answers import Refused
from limpid.view.documents.learn import SheetView

MOST_SEEDS = 40
"""A class."""


def sheet_view(names: Sequence[str], seeds: Sequence[int], answers: bool, slips: bool) -> SheetView:
    """Questions with the numbers of each seed, then answers, then slips where they are asked for.

    Raises  Refused where nothing was chosen, or what is not there
    """
    from limpid.primer.exercises import EXERCISES
    from limpid.primer.sheet import STYLE, sections

    unknown = [name for name in names if name not in EXERCISES]
    if unknown:
        raise Refused(f"there is no exercise {unknown[0][:40]!r}: choose among {', '.join(EXERCISES)}", 404)
    if not names or not seeds:
        raise Refused("nothing is chosen: choose an exercise and a seed")
    if len(seeds) > MOST_SEEDS:
        raise Refused(f"{len(seeds)} seeds are more than {MOST_SEEDS}: print them in several parts")
    chosen = [one for name, one in EXERCISES.items() if name in names]
    return SheetView(STYLE, sections(chosen, seeds, answers=answers, slips=slips))
