"""Folders of runs: made for new ones, and removed only where they are ours."""

from __future__ import annotations

import contextlib
import os
import shutil
import unicodedata
from pathlib import Path

from limpid.errors import CheckpointError
from limpid.files import explained, is_number, user_path
from limpid.lock import LOCK, hold, released_after
from limpid.manifest import MANIFEST
from limpid.run import RUNS, STARTING, TOKENIZER_FILES, Run
from limpid.terminal import command


def new_run(name: str | None) -> Run:
    """An empty folder for a run, locked: the name asked for, or the next free number.

    Nothing that limpid did not make is removed: only what lies in a folder that it marked, and that holds nothing of
    anybody else's.
    Raises  CheckpointError when there is something under this name, or another process is making it
    """
    path = _numbered() if name is None else place_of(name)
    with explained(f"cannot create {path}"):
        require_free(path)
        path.mkdir(parents=True, exist_ok=True)
        hold(path)
        require_free(path)  # another process may have been first
        _clear(path)
        (path / STARTING).touch()
    return Run(path)


def place_of(name: str) -> Path:
    """Where the run of a name lies: under runs/, or at a path.

    Raises  CheckpointError for a name that would not lead back to the run; ConfigError for one that no system takes
    """
    path = Path(name) if os.sep in name else RUNS / name
    odd = [letter for letter in name if unicodedata.category(letter)[0] == "C" or letter in "\u2028\u2029"]
    if odd or Path(name).name in ("", "..") or name in ("last", "-"):
        what = f"holds the control character {odd[0]!r}" if odd else "stands for something else" if name else "is none"
        raise CheckpointError(f"--name {name!r} {what}: choose a name such as {RUNS}/first")
    return user_path(path)


def _numbered() -> Path:
    """A new folder with the next free number; of two processes that ask at once each gets its own."""
    numbers = [int(entry.name) for entry in RUNS.glob("*") if is_number(entry.name)]
    number = max(numbers, default=0) + 1
    with explained(f"cannot create a run under {RUNS}"):
        RUNS.mkdir(parents=True, exist_ok=True)
        while True:
            with contextlib.suppress(FileExistsError):
                (RUNS / f"{number:03d}").mkdir()
                return RUNS / f"{number:03d}"
            number += 1


def require_free(path: Path) -> None:
    """Raises  CheckpointError where a run or something else lies already"""
    if (path / "config.toml").is_file():
        raise CheckpointError(
            f"{path} is a run already: continue it with `{command('limpid', 'train', '--resume', path)}`, or choose "
            "another --name"
        )
    if path.exists() and not (path.is_dir() and (_never_became_a_run(path) or set(os.listdir(path)) <= {LOCK})):
        raise CheckpointError(f"{path} exists and holds something that is no run: choose another --name, or move it")


def _never_became_a_run(path: Path) -> bool:
    """Whether this folder bears our mark, and holds nothing but what a run writes before its configuration."""
    if not (path / STARTING).is_file() or (path / "config.toml").exists():
        return False
    first = Run(path).checkpoint(0).name
    files = (*TOKENIZER_FILES, MANIFEST, "own.json")
    written = {LOCK, STARTING, "checkpoints", *files, *(f".{name}.writing" for name in (*files, "config.toml"))}
    within = {entry.name for entry in (path / "checkpoints").glob("*")}
    return set(os.listdir(path)) <= written and within <= {first, f".{first}.writing"}


def _clear(path: Path) -> None:
    """Empty a folder that is ours, but for the lock that this process holds."""
    for entry in path.iterdir():
        if entry.name == LOCK:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def remove_run(run: Run) -> None:
    """Remove a run, or what a run left before it was one; nothing else.

    Raises  CheckpointError when the folder is neither, or another process writes it
    """
    if run.config_file.is_file() or _never_became_a_run(run.path):
        with released_after():
            hold(run.path)
            shutil.rmtree(run.path, ignore_errors=True)
    elif run.path.exists():
        raise CheckpointError(f"{run.path} exists and is no run: move it, for a run of this name is to be trained")
