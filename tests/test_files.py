"""Files and folders: whole or absent, and nobody else's are touched."""

import errno
import os
import resource
import stat
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from limpid.errors import CheckpointError, ConfigError
from limpid.files import (
    LineFile,
    cache_folder,
    explained,
    file_written_atomically,
    folder_written_atomically,
    write_atomically,
)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path


def test_what_belongs_into_a_folder_that_was_deleted_does_not_make_it_anew(here: Path) -> None:
    for written in (folder_written_atomically, file_written_atomically):
        with (
            pytest.raises(CheckpointError, match="its folder is gone"),
            written(here / "run" / "a" / "b", parents=False),
        ):
            pass
    assert not (here / "run").exists()


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


def test_a_line_that_does_not_fit_is_taken_back(here: Path) -> None:
    """The system refuses files beyond 25 bytes, and writes a part of the line first."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (25, 25))
        lines = LineFile(here / "lines")
        lines.write("0123456789")
        lines.write("0123456789")
        try:
            lines.write("0123456789", "more")
        except CheckpointError as error:
            os._exit(0 if "File too large" in str(error) and "ulimit -f" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (here / "lines").read_text() == 2 * "0123456789\n"


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "No space left on device; what was saved before is intact; make room and go on"),
        (errno.EDQUOT, "make room and go on"),
        (errno.EACCES, "Permission denied; nothing there was changed; get the rights"),
        (errno.EROFS, "Read-only file system; choose a place that can be written"),
        (errno.ENOENT, "its folder is gone"),
        (errno.EISDIR, "something of that name is in the way"),
        (errno.EIO, "see to the disk"),
    ],
)
def test_a_refusal_is_one_line_with_the_way_out_that_fits_it(number: int, said: str) -> None:
    for error in (OSError(number, "x"), RuntimeError(f"Error while serializing: I/O error: x (os error {number})")):
        with pytest.raises(CheckpointError, match="cannot write it: ") as caught, explained("cannot write it"):
            raise error
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_name_that_is_in_the_way_is_one_line(here: Path) -> None:
    (here / "file").touch()
    (here / "folder/inside").mkdir(parents=True)
    for place in (here / "file/inside", here / "folder"):
        with pytest.raises(CheckpointError, match="something of that name is in the way"):
            write_atomically(place, b"")
    assert sorted(path.name for path in here.rglob("*")) == ["file", "folder", "inside"]


def test_a_file_is_replaced_as_a_whole(here: Path) -> None:
    file = here / "x"
    write_atomically(file, b"one")
    write_atomically(file, b"two")
    assert file.read_bytes() == b"two"
    assert list(here.iterdir()) == [file]


def fill(folder: Path, text: str, ours: tuple[str, ...] | None) -> None:
    with folder_written_atomically(folder, ours) as temporary:
        (temporary / "weights").write_text(text)


def test_what_others_put_into_a_folder_stays_when_it_is_written_again(here: Path) -> None:
    fill(here / "model", "old", ("weights", "index"))
    (here / "model/README.md").write_text("mine")
    (here / "model/index").write_text("ours, and stale")
    (here / "model/notes").mkdir()
    (here / "model/notes/a").write_text("mine too")
    fill(here / "model", "new", ("weights", "index"))
    found = {str(p.relative_to(here)): p.read_text() for p in here.rglob("*") if p.is_file()}
    assert found == {"model/weights": "new", "model/README.md": "mine", "model/notes/a": "mine too"}


def test_a_writer_killed_between_its_renames_loses_nothing(here: Path) -> None:
    fill(here / "model", "old", ("weights",))
    (here / "model/README.md").write_text("mine")
    (here / "model").rename(here / ".model.retired")
    fill(here / "model", "new", ("weights",))
    assert (here / "model/README.md").read_text() == "mine"
    assert (here / "model/weights").read_text() == "new"
    assert [entry.name for entry in here.iterdir()] == ["model"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_have_the_rights_that_the_user_gives_new_ones(here: Path, umask: int, mode: int) -> None:
    """safetensors writes for the owner alone."""
    before = os.umask(umask)
    try:
        with file_written_atomically(here / "step.safetensors") as file:
            save_file({"a": np.zeros(3)}, file)
        with folder_written_atomically(here / "model") as folder:
            save_file({"a": np.zeros(3)}, folder / "model.safetensors")
    finally:
        os.umask(before)
    for file in (here / "step.safetensors", here / "model/model.safetensors"):
        assert stat.S_IMODE(file.stat().st_mode) == mode


def test_a_cache_in_a_home_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIMPID_CACHE", "~nobody-of-this-name/cache")
    with pytest.raises(ConfigError, match=r"~nobody-of-this-name/cache .* home .* set LIMPID_CACHE"):
        cache_folder()
