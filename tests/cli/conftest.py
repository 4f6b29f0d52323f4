"""A folder with a corpus and a finished run, which the command line is tried in."""

import os
from pathlib import Path

import pytest

from cli.typed import TINY
from limpid.cli import main
from small import corpus, share_kernels


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and one finished run of eight steps, runs/small."""
    folder = tmp_path_factory.mktemp("place")
    corpus(folder / "corpus")
    before = Path.cwd()
    os.chdir(folder)
    cache = share_kernels(folder / "cache")
    os.environ["LIMPID_CACHE"] = str(cache)
    try:
        assert main(["train", "corpus", "--name", "small", "--max-steps", "8", *TINY]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def there(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    monkeypatch.setenv("LIMPID_CACHE", str(place / "cache"))
    return place
