"""The run folder: whole or absent, never overwritten."""

from pathlib import Path

import pytest

from limpid.config import TrainConfig
from limpid.config.files import write_config
from limpid.errors import CheckpointError
from limpid.run import Run, new_run, remove_run


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
    assert contents(run.path) == ["config.toml"]
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
