"""A page beside a training."""

import subprocess
import sys
from pathlib import Path

import pytest

from limpid.cli import main
from limpid.run import Run
from limpid.view.beside import Page


class Server:
    """What stands for the process of the server."""

    def __init__(self, words: list[str], stdin: int) -> None:
        self.words, self.waited, self.ended = words, 0, 0

    def wait(self) -> None:
        self.waited += 1
        if self.waited == 1:
            raise KeyboardInterrupt

    def terminate(self) -> None:
        self.ended += 1


def test_the_page_opens_with_the_run_and_stays_until_it_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", Server)
    page = Page()
    page.stay()  # nothing was begun
    page.on_start(Run(Path("runs/001")))
    assert page.server.words == [sys.executable, "-m", "limpid", "serve", "runs/001", "--open"]
    page.stay()
    assert (page.server.waited, page.server.ended) == (2, 1)


@pytest.mark.parametrize("words", [["serve", "--port", "0"], ["train", "corpus", "--open"]])
def test_a_page_that_was_not_built_is_said_before_anything_begins(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("limpid.view.bundle.STATIC", tmp_path)
    (tmp_path / "corpus").write_text("the cat " * 100)
    assert main(words) == 2
    assert "the page was not built: run `python web/bundle.py`" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
