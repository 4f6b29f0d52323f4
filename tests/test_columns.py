"""A table that gives way: whatever the width, what is not there is marked."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from limpid.columns import GAP, Columns
from limpid.console import LEAST, Console

HEADS = ("name", "first\nnumber", "second", "equation")
ROWS = [
    ["blocks.0.attention.query.weight", "1,234", Text("✓ 0.42", "bold"), "num_layers · d_model · num_heads · d_head"],
    ["loss", "1", "2", ""],
]


def shown(width: int, rows=ROWS, terminal: bool = True) -> list[str]:
    out = io.StringIO()
    options = {"force_terminal": True, "width": width} if terminal else {}
    Console(file=out, color_system=None, **options).print(Columns(HEADS, rows, right=(1, 2)))
    return out.getvalue().splitlines()


def test_a_wide_screen_shows_all_of_it() -> None:
    for lines in (shown(200), shown(0, terminal=False)):
        assert lines[0].split() == ["first"]
        assert lines[1].split() == ["name", "number", "second", "equation"]
        assert lines[2].rstrip().endswith("d_head")
        assert "…" not in "".join(lines)


def test_the_last_column_gives_way_before_the_first() -> None:
    line = shown(80)[2]
    assert line.startswith("blocks.0.attention.query.weight   1,234  ✓ 0.42  num_layers")
    assert line.endswith("…")
    narrow = shown(50)[2]
    assert narrow.startswith("blocks.0.attent")
    assert narrow.count("…") == 2
    assert "1,234" in narrow


ENDS = st.lists(st.text("ab漢 ", max_size=40), min_size=2, max_size=2)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(45, 120),
    st.lists(st.lists(st.text("ab漢 ", max_size=40), min_size=2, max_size=2), min_size=1, max_size=4),
)
def test_nothing_is_cut_without_a_sign(width: int, ends: list[list[str]]) -> None:
    rows = [[first.strip(), "1", "2", last.strip()] for first, last in ends]
    for row, line in zip(rows, shown(width, rows)[2:], strict=True):
        assert cell_len(line) <= width
        for cell in row:
            assert cell in line or "…" in line


@pytest.mark.parametrize("width", [40, 80])
def test_a_column_keeps_what_it_needs(width: int) -> None:
    widths = Columns(HEADS, ROWS).widths(width)
    assert widths[1:3] == [6, 6]
    assert min(widths[0], widths[3]) >= LEAST
    assert sum(widths) + 3 * GAP <= width or widths[0] == widths[3] == LEAST
