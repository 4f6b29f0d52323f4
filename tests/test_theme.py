"""Styles: one place says what a colour means, and every colour can be read on white and on black."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.color import ANSI_COLOR_NAMES
from rich.style import Style

import limpid
from limpid import theme

SOURCES = Path(limpid.__file__).parent
CONTRAST = 3.8
DRAWINGS = {"history/picture.py", "inspection/loss_curves.py"}
"""Colours of pictures, which tell their lines apart and mean nothing."""


def styles() -> dict[str, Style]:
    named = {name: value for name, value in vars(theme).items() if name.isupper() and isinstance(value, str)}
    return {name: Style.parse(value) for name, value in named.items()}


def luminance(style: Style) -> float:
    """Relative luminance of a style's colour; source: WCAG 2.1, relative luminance."""
    assert style.color is not None
    parts = [part / 255 for part in style.color.get_truecolor()]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("name", [name for name, style in styles().items() if style.color and not style.bgcolor])
def test_a_colour_stands_out_from_white_and_from_black(name: str) -> None:
    own = luminance(styles()[name])
    assert 1.05 / (own + 0.05) >= CONTRAST
    assert (own + 0.05) / 0.05 >= CONTRAST


def colours(source: str) -> Iterator[str]:
    """Words of a file that rich would read as a colour or a way to write, outside its docstrings."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value.removeprefix("[").removesuffix("]").split()
            plain = [word for word in words if word not in ("bold", "italic", "on")]
            if plain and len(words) < 5 and all(word in ANSI_COLOR_NAMES for word in plain):
                yield node.value


def test_no_other_place_names_a_colour() -> None:
    files = (file for file in SOURCES.rglob("*.py") if file.name != "theme.py")
    found = {str(file.relative_to(SOURCES)): list(colours(file.read_text())) for file in files}
    assert {name for name, words in found.items() if words} <= DRAWINGS


def test_the_law_sees_a_colour() -> None:
    assert list(colours('Text("x", "bold red")\nText("a red hat", style="blue")')) == ["bold red", "blue"]
