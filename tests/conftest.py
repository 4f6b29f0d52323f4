"""Tests run stricter than users: every seed explicit, one thread per worker."""

import numpy as np
import pytest


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
