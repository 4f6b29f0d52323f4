"""What every test runs under: the axes that signatures name are checked on each call."""

from collections.abc import Iterator

import hypothesis
import jaxtyping
import numpy as np
import pytest

import typecheck

typecheck.install()


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
