"""Numbers bit by bit, and where the numbers of a format lie."""

from __future__ import annotations

from collections.abc import Sequence

from limpid.primer.exercise import shown
from limpid.primer.figures.drawn import Drawn
from limpid.primer.figures.svg import FIRST, INK, MUTED, SECOND, drawing, line, scale, words
from limpid.primer.stored import bits, numbers

BOX, ROW, LEFT, WIDTH = 14, 36, 96, 640
GAPS = 376
"""Width of the picture of gaps."""


def bits_svg(value: float, formats: Sequence[str]) -> str:
    """A box for each bit: sign, exponent, fraction; and the number that is stored."""
    parts = []
    for column, (name, colour) in enumerate({"sign": INK, "exponent": FIRST, "fraction": SECOND}.items()):
        parts.append(words(LEFT + 80 * column, 18, name, fill=colour))
    for row, name in enumerate(formats):
        y, one = 34 + ROW * row, bits(value, name)
        parts.append(words(LEFT - 10, y + 15, name, "end"))
        place = LEFT
        for field, colour in ((one.sign, INK), (one.exponent, FIRST), (one.fraction, SECOND)):
            for bit in field:
                parts.append(_box(place, y, bit, colour))
                place += BOX
        parts.append(words(place + 10, y + 15, f"= {shown(one.value, 9)}"))
    return drawing(WIDTH, 44 + ROW * len(formats), f"The bits of {shown(value)}", parts)


def _box(x: float, y: float, bit: str, colour: str) -> str:
    filled = "0.25" if bit == "1" else "0"
    return (
        f'<rect x="{x}" y="{y}" width="{BOX}" height="22" fill="{colour}" fill-opacity="{filled}" stroke="{colour}"/>'
        + words(x + BOX / 2, y + 15, bit, "middle", colour)
    )


def bits_text(value: float, formats: Sequence[str]) -> str:
    """The same, the parts of a number set apart by spaces."""
    every = {name: bits(value, name) for name in formats}
    rows = [f"{name:12} {one.sign} {one.exponent:8} {one.fraction:23} = {shown(one.value, 9)}"
            for name, one in every.items()]  # fmt: skip
    return "\n".join([f"{'':12} ± {'exponent':8} {'fraction':23}   number", *rows])


def gaps_svg(formats: Sequence[str], start: float, stop: float) -> str:
    """A mark for each number of a format."""
    x = scale(0, stop, LEFT, GAPS - 20)
    parts = []
    for row, name in enumerate(formats):
        y = 40 + 60 * row
        parts += [words(LEFT - 10, y + 4, name, "end"), line(x(0), y, x(stop), y, MUTED)]
        for number in numbers(name, start, stop):
            power = float(number).hex().startswith("0x1.0000000000000p")
            parts.append(line(x(number), y - (12 if power else 7), x(number), y + (12 if power else 7),
                              SECOND if power else FIRST, 2 if power else 1))  # fmt: skip
            if power and number >= stop / 8:
                parts.append(words(x(number), y + 28, shown(number), "middle"))
        parts.append(words(x(0), y + 28, "0", "middle"))
    return drawing(GAPS, 30 + 60 * len(formats), f"Every number from {shown(start)} to {shown(stop)}", parts)


def gaps_text(formats: Sequence[str], start: float, stop: float) -> str:
    """A bar for each number, powers of two set off, 64 columns to the highest."""
    lines = []
    for name in formats:
        marks = [" "] * 57
        for number in numbers(name, start, stop):
            power = float(number).hex().startswith("0x1.0000000000000p")
            place = round(number / stop * 56)
            marks[place] = "┃" if power or marks[place] == "┃" else "│"
        lines.append(f"{name:13}{''.join(marks)}")
    ends = f"{'0':13}"[:13].rjust(13)
    return "\n".join([*lines, f"{'':13}0{ends.strip()[1:]}{shown(stop):>56}"])


FIGURES = {"bits": Drawn(bits_svg, bits_text), "gaps": Drawn(gaps_svg, gaps_text)}
