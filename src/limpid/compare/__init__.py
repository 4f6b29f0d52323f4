"""Rounding or bug? Two ways to the same numbers, compared within computed bounds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def compare_ways(
    first: str, second: str, *, text: str | None = None, backward: bool = True, as_json: bool = False, console: Console
) -> int:
    """Take both ways over the same tokens and print the verdict; 0 when rounding explains all of it, 1 when not.

    Raises  ConfigError for a way that cannot be taken, CheckpointError for a model that cannot be read
    """
    from limpid.compare.show import document, tell
    from limpid.compare.verdict import judge
    from limpid.compare.ways import tokens_for, way

    with console.status("taking both ways", spinner="dots"):
        ways = way(first), way(second)
        tokens, targets = tokens_for(ways, text)
        taken = [one.take(tokens, targets, backward=backward) for one in ways]
        found = judge(ways[0].config, taken[0], taken[1], ways[1].config)
    if as_json:
        console.file.write(json.dumps(document(found), ensure_ascii=False) + "\n")
    else:
        tell(found, console)
    return 0 if found.agrees else 1
