"""The run folder: whole or absent, never overwritten."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from limpid.config import TrainConfig
from limpid.config.files import write_config
from limpid.errors import CheckpointError
from limpid.lock import hold, release, released_after
from limpid.run import Run
from limpid.run_folder import new_run, remove_run


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def a_run(name: str) -> Path:
    run = new_run(name)
    write_config(run.config_file, TrainConfig())
    return run.path


def test_runs_are_numbered_from_one() -> None:
    assert [new_run(None).path.name for _ in range(3)] == ["001", "002", "003"]


def contents(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "files",
    [
        ["checkpoints/000500/model.safetensors"],
        ["tokenizer.json"],
        ["checkpoints/000000/model.safetensors", "tokenizer.json", ".config.toml.writing"],
        ["notes.txt"],
    ],
)
def test_what_limpid_did_not_make_is_never_removed(here: Path, files: list[str]) -> None:
    for file in files:
        (here / "runs/mine" / file).parent.mkdir(parents=True, exist_ok=True)
        (here / "runs/mine" / file).touch()
    before = contents(here / "runs/mine")
    with pytest.raises(CheckpointError, match="runs/mine exists and holds something that is no run: choose another"):
        new_run("mine")
    with pytest.raises(CheckpointError, match="exists and is no run"):
        remove_run(Run(here / "runs/mine"))
    assert contents(here / "runs/mine") == before


def test_a_run_that_broke_off_before_it_was_one_gives_way(here: Path) -> None:
    run = new_run("mine")
    run.checkpoint(0).mkdir(parents=True)
    run.tokenizer_file.touch()
    (run.path / "checkpoints/.000000.writing").mkdir()
    assert new_run("mine") == run
    assert not run.tokenizer_file.exists()


@pytest.mark.parametrize("file", ["checkpoints/000500/model.safetensors", "notes.txt"])
def test_a_file_put_into_an_unfinished_run_keeps_it(here: Path, file: str) -> None:
    run = new_run("mine")
    (run.path / file).parent.mkdir(parents=True, exist_ok=True)
    (run.path / file).touch()
    with pytest.raises(CheckpointError, match="choose another --name"):
        new_run("mine")
    assert (run.path / file).exists()


def test_the_mark_goes_when_a_run_is_born() -> None:
    run = new_run("mine")
    run.write_config(TrainConfig(), TrainConfig())
    assert contents(run.path) == [".limpid-lock", "config.toml"]
    remove_run(run)
    assert not run.path.exists()


def test_two_processes_that_ask_at_once_get_a_number_each(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_run(None)
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter(()))  # neither sees the other's folder
    assert [new_run(None).path.name for _ in range(2)] == ["002", "003"]


def test_a_run_that_exists_is_not_started_again() -> None:
    a_run("mine")
    with pytest.raises(CheckpointError, match="--resume runs/mine"):
        new_run("mine")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "last", "-", "a/..", "two\nlines", "tab\t", "\u202eright to left", "\udcff"]
)
def test_a_name_that_would_not_lead_back_to_the_run_is_refused(here: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="choose a name such as") as refused:
        new_run(name)
    assert str(refused.value).isprintable()
    assert not list(here.iterdir())


def test_a_name_that_the_file_system_refuses_is_one_line() -> None:
    with pytest.raises(CheckpointError, match="File name too long; choose a shorter name"):
        new_run("a" * 300)


def test_an_unfinished_run_behind_a_link_gives_way(here: Path) -> None:
    run = new_run(str(here / "elsewhere"))
    run.tokenizer_file.touch()
    (here / "runs").mkdir()
    (here / "runs/mine").symlink_to(here / "elsewhere")
    assert not new_run("mine").tokenizer_file.exists()


def test_only_plain_numbers_are_checkpoints_and_runs() -> None:
    run = new_run("mine")
    for name in ("000004", "\u00b2", "5", "٣"):
        (run.path / "checkpoints" / name).mkdir(parents=True)
    assert run.checkpoint_steps() == [4]


def in_another_process(work: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", work], capture_output=True, text=True)


def test_a_folder_that_another_process_starts_in_is_refused_and_kept() -> None:
    """The other process is named, and its lock ends with it, however it ends."""
    run = new_run("mine")
    run.tokenizer_file.touch()
    start = "import os, signal; from limpid.run_folder import new_run; new_run('mine'); "
    start += "os.kill(os.getpid(), signal.SIGKILL)"
    said = in_another_process(start).stderr.splitlines()[-1]
    assert re.search(
        rf"runs/mine is being written by process {os.getpid()} on \S+ since .*kill -INT {os.getpid()}", said
    )
    assert run.tokenizer_file.exists()
    release(run.path)
    assert in_another_process(start).returncode == -signal.SIGKILL
    assert new_run("mine") == run


def test_locks_taken_inside_are_given_back() -> None:
    hold_new = "from limpid.run_folder import new_run; new_run('{}')"
    outer = new_run("outer")
    with released_after():
        inner = new_run("inner")
        hold(outer.path)
    assert in_another_process(hold_new.format(inner.path.name)).returncode == 0
    assert in_another_process(hold_new.format(outer.path.name)).returncode == 1
