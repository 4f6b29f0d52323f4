"""Everything printed goes through one place, so that no text, name or file can command the terminal."""

import ast
import io
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

import limpid
from limpid.console import Console
from limpid.terminal import command, printable, say, say_json

SOURCES = Path(limpid.__file__).parent
PRINTS = {"terminal.py", "console.py"}
"""The files that may print and make consoles."""
HOSTILE = ["\x1b]0;owned\x07", "\x9b31m", "a\rb", "\u202etxt.exe", "\x00\x08\x7f", "\u2066\u2069\u061c", "\udce9"]


def prints(file: Path) -> Iterator[str]:
    """Lines of a file that print, write to a standard stream, or import rich's own console to use it."""
    tree = ast.parse(file.read_text())
    types_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.stdout.write", "sys.stderr.write"):
            yield f"{file.name}:{node.lineno} {ast.unparse(node)}"
        if isinstance(node, ast.ImportFrom) and node.module == "rich.console" and node not in types_only:
            names = {alias.name for alias in node.names}
            if "Console" in names and any(
                isinstance(call, ast.Call) and ast.unparse(call.func) == "Console" for call in ast.walk(tree)
            ):
                yield f"{file.name}:{node.lineno} makes rich's own console"


def test_nothing_prints_around_the_one_place() -> None:
    files = [file for file in SOURCES.rglob("*.py") if str(file.relative_to(SOURCES)) not in PRINTS]
    assert list(itertools.chain.from_iterable(map(prints, files))) == []


def test_the_law_sees_a_print(tmp_path: Path) -> None:
    file = tmp_path / "rogue.py"
    file.write_text("from rich.console import Console\nConsole().print(1)\nprint(2)\nsys.stdout.write('3')\n")
    assert len(list(prints(file))) == 3


def commanding(text: str) -> bool:
    """Whether something in a text is neither printed nor a line break or tab."""
    control = "".join(map(chr, (*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0))))
    return bool(set(text) & set(control + "\u061c\u202e\u2066\u2069"))


@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_text_commands_the_terminal(hostile: str, capsys: pytest.CaptureFixture[str]) -> None:
    say(hostile)
    out = io.StringIO()
    console = Console(file=out, width=60)
    console.print(hostile, markup=False)
    console.print(Text(hostile))
    table = Table(hostile)
    table.add_row(Text.assemble(hostile, "x"))
    console.print(table)
    shown = capsys.readouterr().out + out.getvalue()
    assert not commanding(shown)
    shown.encode()


@pytest.mark.parametrize("hostile", HOSTILE)
def test_json_commands_nothing_and_reads_back_exactly(hostile: str) -> None:
    out = io.StringIO()
    say_json({hostile: [hostile]}, out)
    assert not commanding(out.getvalue())
    assert json.loads(out.getvalue()) == {hostile: [hostile]}


def test_ordinary_text_is_left_alone() -> None:
    text = "naïve\tüber – 漢字 👩‍👩‍👧 العربية\n"
    assert printable(text) == text


def test_a_suggested_command_is_read_back_by_the_shell_as_it_was_meant() -> None:
    assert command("limpid", "trace", Path("runs/x; touch PWNED #")) == "limpid trace 'runs/x; touch PWNED #'"
