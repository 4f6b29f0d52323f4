"""The run folder: whole or absent, found by name, never overwritten."""

import os
from pathlib import Path

import pytest

from limpid.config import TrainConfig
from limpid.errors import CheckpointError
from limpid.run import find_run, folder_written_atomically, new_run, write_atomically, write_config


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


def test_a_run_is_found_by_name_by_path_and_as_the_last() -> None:
    first, second = a_run("first"), a_run("second")
    os.utime(first / "config.toml", (2e9, 2e9))
    assert find_run("second").path == second
    assert find_run(first).path == first
    assert find_run("last").path == first


def test_a_run_that_exists_is_not_started_again() -> None:
    a_run("mine")
    with pytest.raises(CheckpointError, match="--resume runs/mine"):
        new_run("mine")


@pytest.mark.parametrize("name", ["nowhere", "last"])
def test_no_run_says_what_there_is(name: str) -> None:
    with pytest.raises(CheckpointError, match="limpid train"):
        find_run(name)


def test_a_failed_folder_leaves_the_old_one(here: Path) -> None:
    target = here / "thing"
    with folder_written_atomically(target) as temporary:
        (temporary / "a").write_text("old")

    def fail() -> None:
        with folder_written_atomically(target) as temporary:
            (temporary / "a").write_text("new")
            raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match=r"No space left.*intact"):
        fail()
    assert (target / "a").read_text() == "old"
    assert sorted(entry.name for entry in here.iterdir()) == ["thing"]


def test_a_file_is_replaced_as_a_whole(here: Path) -> None:
    file = here / "x"
    write_atomically(file, b"one")
    write_atomically(file, b"two")
    assert file.read_bytes() == b"two"
    assert list(here.iterdir()) == [file]
