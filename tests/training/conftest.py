"""Each test trains in a folder of its own, with a token cache that the tests share."""

from pathlib import Path

import pytest
import torch

from small import corpus, share_kernels


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    cache = share_kernels(tmp_path / "cache")
    monkeypatch.setenv("LIMPID_CACHE", str(cache))
    threads = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(threads)


@pytest.fixture
def data(here: Path) -> Path:
    return corpus(here / "corpus")
