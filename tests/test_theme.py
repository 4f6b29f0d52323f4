"""Styles: one place says what a colour means, and every colour can be read on white and on dark grey."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.color import ANSI_COLOR_NAMES
from rich.style import Style

import limpid
from limpid import theme

SOURCES = Path(limpid.__file__).parent
CONTRAST = 3.5
DARK = 0.013
"""Relative luminance of #1e1e1e."""
DRAWING = ("limpid.plots", "plotille")
"""What files import that draw pictures, whose colours tell lines apart and mean nothing."""


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
def test_a_colour_stands_out_from_white_and_from_dark_grey(name: str) -> None:
    own = luminance(styles()[name])
    assert 1.05 / (own + 0.05) >= CONTRAST
    assert (own + 0.05) / (DARK + 0.05) >= CONTRAST


def colours(source: str) -> Iterator[str]:
    """Words of a file that rich would read as a colour or a way to write, outside its docstrings and keys of tables."""
    tree = ast.parse(source)
    keys = {key for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in node.keys}
    for node in ast.walk(tree):
        if node not in keys and isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value.removeprefix("[").removesuffix("]").split()
            plain = [word for word in words if word not in ("bold", "italic", "on")]
            if plain and len(words) < 5 and all(word in ANSI_COLOR_NAMES for word in plain):
                yield node.value


def test_no_other_place_names_a_colour() -> None:
    sources = {file: file.read_text() for file in SOURCES.rglob("*.py") if file.name != "theme.py"}
    terminal = {file: text for file, text in sources.items() if not any(word in text for word in DRAWING)}
    assert {
        str(file.relative_to(SOURCES)): list(colours(text)) for file, text in terminal.items() if any(colours(text))
    } == {}


def test_the_law_sees_a_colour() -> None:
    assert list(colours('{"tan": np.tan, "worst": "red"}')) == ["red"]
    assert list(colours('Text("x", "bold red")\nText("a red hat", style="blue")')) == ["bold red", "blue"]
