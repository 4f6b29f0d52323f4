"""Curves between two axes, as SVG and in characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from limpid.primer.exercise import shown
from limpid.primer.figures.svg import FIRST, INK, MUTED, curve, dot, drawing, line, scale, words

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 376, 270, 54, 84, 26, 46
LINE, NAME_WIDTH = 14, 80
"""How far apart names stand."""
COLUMNS, ROWS, BEFORE = 52, 15, 9
"""Of a graph in characters: cells, and columns for the numbers on its left."""
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Axis(NamedTuple):
    """From where to where, and at which numbers a tick stands."""

    label: str
    lowest: float
    highest: float
    ticks: Sequence[float]
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """How far along the axis a number is: 0 at its start, 1 at its end."""
        if not self.logarithmic:
            return (value - self.lowest) / (self.highest - self.lowest)
        return math.log(value / self.lowest) / math.log(self.highest / self.lowest)

    def at(self, share: float) -> float:
        """The number that is so far along."""
        if not self.logarithmic:
            return self.lowest + share * (self.highest - self.lowest)
        return float(self.lowest * (self.highest / self.lowest) ** share)

    def said(self, tick: float) -> str:
        """A tick's number; on a logarithmic axis the far ones as powers of ten."""
        power = round(math.log10(tick)) if self.logarithmic and tick > 0 else 0
        return f"10{str(power).translate(RAISED)}" if abs(power) > 2 else shown(tick)

    def holds(self, value: float) -> bool:
        return self.lowest <= value <= self.highest


class Series(NamedTuple):
    """Points, joined or not, with the name that stands beside them."""

    name: str
    points: Sequence[tuple[float, float]]
    stroke: str = FIRST
    mark: str = "●"
    """In characters."""
    joined: bool = True
    note: str = ""
    """What it is, said below the characters only: a name beside it would be in the way."""


def graph_svg(title: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """Every series, named at its last point that lies between the axes."""
    across, up = scale(0, 1, LEFT, WIDTH - RIGHT), scale(0, 1, HEIGHT - BOTTOM, TOP)
    parts, names = _axes(x, y), []
    for one in series:
        inside = [(across(x.share(a)), up(y.share(b))) for a, b in one.points if x.holds(a) and y.holds(b)]
        parts += [curve(inside, one.stroke)] if one.joined else [dot(a, b, one.stroke, 3.5) for a, b in inside]
        if one.name:
            names.append((inside[-1][0] + 7, inside[-1][1] + (4 if one.joined else -6), one))
    return drawing(WIDTH, HEIGHT, title, [*parts, *_apart(names)])


def _apart(names: Sequence[tuple[float, float, Series]]) -> list[str]:
    """Names from the top down, none on another."""
    parts: list[str] = []
    taken: list[tuple[float, float]] = []
    for left, height, one in sorted(names, key=lambda name: name[1]):
        below = max([height, *(other + LINE for at, other in taken if abs(at - left) < NAME_WIDTH)])
        taken.append((left, below))
        parts.append(words(left, below, one.name, fill=one.stroke))
    return parts


def _axes(x: Axis, y: Axis) -> list[str]:
    across, up = scale(0, 1, LEFT, WIDTH - RIGHT), scale(0, 1, HEIGHT - BOTTOM, TOP)
    parts = [line(across(0), up(0), across(1), up(0), INK), line(across(0), up(0), across(0), up(1), INK)]
    for tick in x.ticks:
        at = across(x.share(tick))
        parts += [line(at, up(0), at, up(0) + 4), words(at, up(0) + 18, x.said(tick), "middle")]
    for tick in y.ticks:
        at = up(y.share(tick))
        parts.append(words(across(0) - 8, at + 4, y.said(tick), "end"))
        parts.append(line(across(0) - 4, at, across(0), at))
        if at < up(0) - 1:
            parts.append(line(across(0), at, across(1), at, MUTED, 0.3))
    parts.append(words(across(0.5), HEIGHT - 8, x.label, "middle", MUTED))
    parts.append(words(across(0) - 4, TOP - 12, y.label, "start", MUTED))
    return parts


def graph_text(x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """The same in a grid of characters; what stands for what is said below."""
    cells = [[" "] * COLUMNS for _ in range(ROWS)]
    for one in series:
        for column, share in _cells(one, x, y):
            cells[round((1 - share) * (ROWS - 1))][column] = one.mark
    ticks = {round((1 - y.share(tick)) * (ROWS - 1)): y.said(tick) for tick in y.ticks}
    lines = [f"{'':{BEFORE}}  {y.label}"]
    for row, content in enumerate(cells):
        edge = "┤" if row in ticks else "│"
        lines.append(f"{ticks.get(row, ''):>{BEFORE}} {edge}{''.join(content).rstrip()}")
    lines += [f"{'':{BEFORE}} └{'─' * COLUMNS}", _under(x), f"{'':{BEFORE}}  {x.label}"]
    said = dict.fromkeys(f"{one.mark} {one.name or one.note}" for one in series if one.name or one.note)
    return "\n".join([*lines, f"{'':{BEFORE}}  " + ", ".join(said)])


def _cells(one: Series, x: Axis, y: Axis) -> list[tuple[int, float]]:
    """Columns, and how far up each series is there."""
    if not one.joined:
        return [(round(x.share(a) * (COLUMNS - 1)), y.share(b)) for a, b in one.points if x.holds(a) and y.holds(b)]
    places = np.array([x.share(a) for a, _ in one.points])
    heights = np.array([y.share(min(max(b, y.lowest), y.highest * 2)) for _, b in one.points])
    order = np.argsort(places)
    found = []
    for column in range(COLUMNS):
        share = column / (COLUMNS - 1)
        height = float(np.interp(share, places[order], heights[order], left=-1, right=-1))
        if 0 <= height <= 1:
            found.append((column, height))
    return found


def _under(x: Axis) -> str:
    """The numbers below the axis, each centred at its tick."""
    under = [" "] * (BEFORE + 2 + COLUMNS + 8)
    for tick in x.ticks:
        said = x.said(tick)
        start = BEFORE + 2 + round(x.share(tick) * (COLUMNS - 1)) - len(said) // 2
        under[start : start + len(said)] = said
    return "".join(under).rstrip()
