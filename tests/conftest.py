"""What every test runs under: the axes that signatures name are checked on each call."""

import gc
import os
import signal
from collections.abc import Iterator

import hypothesis
import jaxtyping
import numpy as np
import pytest

import typecheck

os.environ["HF_HUB_OFFLINE"] = "1"  # no test asks the network
typecheck.install()
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")  # torch.compile else tries every vector width in a process each
for number in (signal.SIGHUP, signal.SIGQUIT):  # a suite in the background ignores what its runs are to hear
    signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What is imported and collected by now stays, and whoever looks through all objects need not pass it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _learned_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What tests answer is not kept as the user's progress."""
    os.environ["LIMPID_LEARN"] = str(tmp_path_factory.mktemp("learn") / "learn.json")


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Lets arrays of the wrong shape through, to the errors that users get."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


# A test is right or wrong, never slow: machines are shared.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
