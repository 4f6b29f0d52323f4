"""A solution as it is told: one equality a line."""

from __future__ import annotations

import re


def line_by_line(solution: str) -> str:
    """A solution with a line for each of its equalities."""
    return "\n".join(_chain(part) for part in _parts(solution))


def _parts(solution: str) -> list[str]:
    """Cut at ends of lines, at semicolons, and at commas that a further equation follows, where no bracket is open."""
    parts, depth, begun = [], 0, 0
    for place, sign in enumerate(solution):
        depth += (sign in "([") - (sign in ")]")
        if sign == "\n" or (depth == 0 and sign in ",;" and solution[place + 1 : place + 2] in (" ", "")):
            rest = re.split(r"[,;\n]\s?", solution[place + 1 :])[0]
            if sign != "," or (" = " in rest and " = " in solution[begun:place]):
                parts.append(solution[begun:place].strip())
                begun = place + 1
    return [part for part in (*parts, solution[begun:].strip()) if part]


def _chain(part: str) -> str:
    """One equality a line, each under the first sign of equality."""
    first, *rest = part.split(" = ")
    if len(rest) < 2:
        return part
    return f"\n{' ' * len(first)} = ".join([f"{first} = {rest[0]}", *rest[1:]])
