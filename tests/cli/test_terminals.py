"""What verbs show on terminals, wide and narrow: lines that fit, and nothing that is lost."""

import os
import pty
import re
import sys
import threading
from pathlib import Path

import pytest
from rich.cells import cell_len

from cli.typed import TINY
from limpid.cli import main

CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")


@pytest.fixture
def on_a_terminal(monkeypatch: pytest.MonkeyPatch):
    """Called with a width and words: the lines that the verb leaves on a terminal of so many columns."""
    for name in ("NO_COLOR", "FORCE_COLOR", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")

    def shown(width: int, *words: str) -> list[str]:
        leader, follower = pty.openpty()
        pieces: list[bytes] = []

        def read() -> None:
            while piece := _piece(leader):
                pieces.append(piece)

        reader = threading.Thread(target=read)
        reader.start()
        with os.fdopen(follower, "w", encoding="utf-8") as terminal, monkeypatch.context() as patch:
            patch.setenv("COLUMNS", str(width))  # rich asks the process's own standard output for its width
            patch.setattr(sys, "stdout", terminal)
            assert main(list(words)) == 0
        reader.join()
        os.close(leader)
        return CONTROL.sub("", b"".join(pieces).decode()).splitlines()

    return shown


def _piece(leader: int) -> bytes:
    try:
        return os.read(leader, 65536)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.parametrize("width", [40, 80])
def test_the_list_of_chapters_fits(width: int, on_a_terminal) -> None:
    lines = on_a_terminal(width, "learn")
    assert max(map(cell_len, lines)) <= width
    assert "product-order" in " ".join(lines)


def test_every_number_of_a_list_of_runs_is_whole_on_a_narrow_terminal(there: Path, on_a_terminal) -> None:
    line = next(line for line in on_a_terminal(40, "runs") if line.startswith("small "))
    assert "finished" in line
    assert "…" not in line
    assert re.search(r" \d\.\d{4} +\d\.\d{4} ", line)


def test_what_to_type_next_stands_on_a_line_each(there: Path, on_a_terminal) -> None:
    lines = on_a_terminal(80, "train", "corpus", "--name", "wide", "--max-steps", "3", *TINY)
    following = lines[lines.index("next") + 1 :]
    assert [line for line in following if line.startswith("  limpid ")] == [line for line in following if line]
    assert max(map(cell_len, following)) <= 80
