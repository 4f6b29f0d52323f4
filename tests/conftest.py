"""Tests run stricter than users: every seed explicit, one thread per worker."""

import hypothesis
import numpy as np
import pytest


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


# A test is right or wrong, never slow: machines are shared.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
