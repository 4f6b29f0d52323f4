"""Files and folders: whole or absent, and nobody else's are touched."""

from pathlib import Path

import pytest

from limpid.errors import CheckpointError
from limpid.files import folder_written_atomically, write_atomically


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path


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
