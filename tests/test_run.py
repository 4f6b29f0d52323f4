"""The run folder: whole or absent, never overwritten."""

from pathlib import Path

import pytest

from limpid.config import TrainConfig
from limpid.errors import CheckpointError
from limpid.run import folder_written_atomically, new_run, write_atomically, write_config


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


def test_a_run_that_exists_is_not_started_again() -> None:
    a_run("mine")
    with pytest.raises(CheckpointError, match="--resume runs/mine"):
        new_run("mine")


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
