"""The console: lines as wide as a terminal, whole everywhere else."""

import io
import os
import pty

import pytest
from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from limpid.console import Console, hanging
from limpid.reporter import Reporter

LONG = "attention.scores  " + " ".join(f"word{number}" for number in range(40))


def on_a_terminal(width: int = 40) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=True, width=width, color_system=None), out


def test_a_long_line_goes_on_below_and_further_in() -> None:
    console, out = on_a_terminal()
    console.print(Text("    " + LONG.replace("  ", " ")))
    first, *rest = out.getvalue().splitlines()
    assert first.startswith("    attention.scores")
    assert len(rest) > 3
    assert all(line.startswith(" " * 6 + "word") for line in rest)
    assert all(cell_len(line) <= 40 for line in (first, *rest))
    assert " ".join(out.getvalue().split()) == " ".join(LONG.split()), "nothing is left out"


def test_what_stands_in_a_column_goes_on_in_it() -> None:
    console, out = on_a_terminal(60)
    console.print(f"  model/     {LONG}")
    first, *rest = out.getvalue().splitlines()
    assert first.startswith("  model/     attention")
    assert all(line.startswith(" " * 13 + "word") for line in rest)


@pytest.mark.parametrize("text", ["", "\n", "a\n\nb", "x" * 95, "  " * 30 + "deep", "漢字" * 30, " " * 90])
def test_no_text_is_lost_and_none_is_wider(text: str) -> None:
    console, _ = on_a_terminal()
    broken = hanging(Text(text), console)
    assert all(cell_len(line) <= 40 for line in broken.plain.split("\n")) or not text.strip()
    assert "".join(broken.plain.split()) == "".join(text.split())


def test_a_style_survives_the_break() -> None:
    console, _ = on_a_terminal()
    broken = hanging(Text.assemble("plain ", (LONG, "bold")), console)
    last = broken.plain.rindex("word39")
    assert any(span.start <= last < span.end and span.style == "bold" for span in broken.spans)


@pytest.mark.parametrize("width", [30, 45, 60, 90])
def test_a_narrow_terminal_cuts_no_number_of_a_table_and_loses_no_word(width: int) -> None:
    console, out = on_a_terminal(width)
    table = Table(box=None, pad_edge=False)
    table.add_column("run", overflow="fold")
    table.add_column("trained on", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("loss", justify="right", no_wrap=True)
    table.add_column("note")
    for number in range(3):
        table.add_row(f"attempt-number-{number}", "a/folder/of/texts", f"124,439,80{number}", f"3.141{number}", LONG)
    console.print(Group("", table))
    lines = out.getvalue().splitlines()
    for number in range(3):
        assert sum(f"124,439,80{number}  3.141{number}" in line for line in lines) == 1
    assert "".join(out.getvalue().split()).count("word39") == 3
    assert ("a/folder/of/texts" in out.getvalue()) == (width == 90)
    assert max(map(cell_len, lines)) <= max(width, 10 + 10 + 11 + 6 + 10 + 4 * 2), "no wider than it must be"


@pytest.mark.parametrize("force", [False, True])
def test_a_pipe_gets_whole_lines_and_whole_tables(force: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where colours are forced, and whatever COLUMNS says."""
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("TERM", "xterm")
    if force:
        monkeypatch.setenv("FORCE_COLOR", "1")
    out = io.StringIO()
    with Reporter(console=Console(file=out), aside=Console(file=out)) as reporter:
        table = Table(box=None)
        table.add_column("equation", no_wrap=True, overflow="ellipsis")
        table.add_row(LONG)
        reporter.line(Text(LONG, "bold"))
        reporter.line(table)
        reporter.progress("training", 1, 2)
        assert not reporter.is_terminal
    plain = out.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert plain.splitlines() == [LONG, " equation", f" {LONG}"], "and no blanks fill up a line"
    assert ("\x1b[1m" in out.getvalue()) == force


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb"), ("TERM", "xterm-256color")])
def test_colour_is_off_where_the_user_says_so(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv(variable, value)
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal:
        Console(file=terminal).print(Text("engine", "color(32)"))
        terminal.flush()
        shown = os.read(leader, 1000).decode()
    os.close(leader)
    assert ("\x1b[38;5;32m" in shown) == (value == "xterm-256color")
