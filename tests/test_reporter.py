"""What a verb shows: lines or one document, bars on a terminal alone."""

import io
import json
import os

import pytest

from limpid.console import Console
from limpid.reporter import SILENT, LastingReporter, Reporter


def reporter_on(as_json: bool = False, terminal: bool = False) -> tuple[Reporter, io.StringIO, io.StringIO]:
    out, aside = io.StringIO(), io.StringIO()
    consoles = Console(file=out, width=20), Console(file=aside, force_terminal=terminal, width=80)
    return Reporter(as_json, *consoles), out, aside


def test_lines_are_shown_as_they_are() -> None:
    reporter, out, _ = reporter_on()
    reporter.line("weights[0, 1] of a name that is longer than the console is wide")
    reporter.document({"a": 1})
    assert out.getvalue() == "weights[0, 1] of a name that is longer than the console is wide\n"


def test_a_document_is_the_only_thing_on_standard_output() -> None:
    reporter, out, _ = reporter_on(as_json=True)
    reporter.line("for reading")
    reporter.document({"name": "Δ", "values": [1, 2]})
    assert json.loads(out.getvalue()) == {"name": "Δ", "values": [1, 2]}
    assert "Δ" in out.getvalue()


def test_bars_are_drawn_on_a_terminal_alone_and_go_when_it_closes() -> None:
    for terminal in (False, True):
        reporter, out, aside = reporter_on(terminal=terminal)
        with reporter:
            reporter.progress("training", 1, 2)
            reporter.progress("training", 2, 2)
        assert ("training" in aside.getvalue()) == terminal
        assert out.getvalue() == ""
        assert aside.getvalue().endswith("\x1b[2K") or not terminal


def test_the_silent_one_shows_nothing(capsys) -> None:
    SILENT.line("a")
    SILENT.note("b")
    SILENT.progress("c", 1, 2)
    SILENT.document({})
    assert capsys.readouterr() == ("", "")


def test_a_reader_that_left_is_an_error_that_can_be_caught_and_work_that_lasts_goes_on() -> None:
    """Work that is not saved yet hears of it; what was not shown is no error at the end."""
    for made in (Reporter, LastingReporter):
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "w") as pipe:
            reporter = made(console=Console(file=pipe))
            if made is Reporter:
                with pytest.raises(BrokenPipeError):
                    reporter.line("step 1")
            else:
                reporter.line("step 1")
                reporter.line("step 2")
                assert not reporter.listened_to


def test_bars_end_before_a_line_that_goes_elsewhere_and_what_has_no_end_ends_with_the_next() -> None:
    reporter, out, aside = reporter_on(terminal=True)
    with reporter:
        reporter.progress("loading the model", 0)
        reporter.progress("replaying", 1, 2)
        assert [task.description for task in reporter._bars.tasks if task.visible] == ["replaying"]
        reporter.line("done")
        assert reporter._bars is None
        assert aside.getvalue().endswith("\x1b[2K")
        reporter.progress("redoing", 1, 2)
        assert [task.description for task in reporter._bars.tasks] == ["redoing"]
    assert out.getvalue() == "done\n"
