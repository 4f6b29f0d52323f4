"""The second derivation of a batch finds the same rows as the engine's, with weights and without."""

import numpy as np
import pytest

from limpid.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from limpid.data.batches import Batches, Region
from limpid.tracing.batch import window_starts


@pytest.mark.parametrize("weights", [(), (1.0,), (0.7, 0.2, 0.1), (3.0, 1e-9, 2.5)])
def test_both_derivations_find_the_same_rows(weights: tuple[float, ...]) -> None:
    bounds = [(0, 211), (211, 230), (230, 503)][: len(weights) or 3]
    data = DataConfig(paths=("a", "b", "c")[: len(weights)], weights=weights)
    config = TrainConfig(ModelConfig(context_length=7), data, run=RunConfig(batch_size=5, seed=2**40))
    regions = [Region(start, end - start, weight) for (start, end), weight in zip(bounds, weights, strict=False)]
    engine = Batches(np.arange(503), 7, 5, 1, 2**40, regions)
    parts = list(zip(bounds, weights, strict=True)) if weights else [((0, 503), 1.0)]
    for step in (1, 2, 17, 10**9 if 1e-9 not in weights else 10**4):  # that many digits are dealt row by row
        assert window_starts(config, parts, step).tolist() == list(engine.batch(step)[0].rows)
