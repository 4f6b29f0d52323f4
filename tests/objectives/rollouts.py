"""Answers drawn a while ago, with advantages: what a policy's loss is given."""

import numpy as np
import torch
from tests.objectives.recorded_objective import answers

from limpid.data.batches import MicroBatch
from limpid.objectives.answers import token_log_probabilities
from limpid.training.state import State


def rollouts(state: State, seed: int, count: int = 4, drift: float = 0.3) -> MicroBatch:
    """Answers whose log-probabilities have drifted since they were drawn, and others under the reference."""
    arrays, rng = answers(seed, count), np.random.default_rng(seed + 100)
    tokens, targets = (torch.as_tensor(arrays[name]) for name in ("tokens", "targets"))
    with torch.no_grad():
        now = token_log_probabilities(state.model, tokens, targets).log_probabilities.double().numpy()

    def drifted(by: float) -> np.ndarray:
        return (now + by * rng.standard_normal(now.shape)) * arrays["mask"]

    advantages = rng.standard_normal((count, 1)) * arrays["mask"]
    given = {"old_log_probabilities": drifted(drift), "reference_log_probabilities": drifted(0.5)}
    formed = {name: array.astype(np.float32) for name, array in ({"advantages": advantages} | given).items()}
    return MicroBatch(arrays | formed, tuple(range(count)))
