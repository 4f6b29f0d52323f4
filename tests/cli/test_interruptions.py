"""Ctrl-C, and readers that leave: what was done is kept."""

import functools
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Sequence
from pathlib import Path

import pytest

from cli.typed import TINY
from limpid.cli import main
from limpid.source import find_run


def test_ctrl_c_ends_quietly_while_limpid_is_still_being_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    from limpid.__main__ import main as command

    class Interrupted(types.ModuleType):
        def __getattr__(self, name: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "limpid.cli", Interrupted("limpid.cli"))
    assert command() == 130


def test_ctrl_c_is_answered_in_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from limpid.verbs import generate

    def interrupted(words: Sequence[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(generate, "verb", interrupted)
    assert main(["generate", "small"]) == 130
    assert capsys.readouterr().err == "limpid: stopped by Ctrl-C\n"
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["generate", "small"]) == 130
    assert capsys.readouterr().out == ""


def test_ctrl_c_saves_and_says_how_to_go_on(there: Path) -> None:
    words = ["train", "corpus", "--name", "stopped", "--max-steps", "100000", "--compile", "off", *TINY]
    running = subprocess.Popen(
        [sys.executable, "-m", "limpid", *words], stdout=subprocess.PIPE, text=True,
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a background job ignores it
    )  # fmt: skip
    metrics = there / "runs/stopped/metrics.jsonl"
    while not metrics.is_file() or metrics.read_text().count("\n") < 5:
        assert running.poll() is None
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    shown, _ = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "limpid train --resume runs/stopped" in shown
    assert main(["trace", "runs/stopped"]) == 0


def test_training_outlives_its_reader(there: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """As `| head` does: what was trained is saved, and where to go on is said on standard error."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(["train", "corpus", "--name", "unheard", "--max-steps", "1000", *TINY]) == 130
    shown = capsys.readouterr().err
    assert "standard output was closed" in shown
    assert "limpid train --resume runs/unheard" in shown
    assert find_run("unheard").latest_checkpoint() > 0


def test_a_closed_pipe_ends_quietly(there: Path) -> None:
    command = f"{sys.executable} -m limpid plan gpt2 | head -1; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert ended.stdout.count("\n") == 1
    assert ended.stderr == ""
    assert ended.returncode == 0  # 1 would be a check that failed
