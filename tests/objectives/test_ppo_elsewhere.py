"""Advantages, losses, gradients and metrics of TRL's and verl's PPO on the same tensors: see benchmarks/alignment."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from limpid.maths.alignment import generalised_advantages, whitened
from limpid.model.observe import FAST
from limpid.objectives import PPO, Mean

THEIRS = json.loads((Path(__file__).parent / "ppo.json").read_text(encoding="utf-8"))
OBJECTIVE = PPO(**THEIRS["options"])


@pytest.mark.parametrize("whose", ["trl 1.12.0", "verl 0.9.1"])
def test_advantages_and_value_losses_are_theirs(whose: str) -> None:
    theirs, given = THEIRS[whose], {name: torch.tensor(array) for name, array in THEIRS["inputs"].items()}
    rewards, old, mask = (given[name].double().numpy() for name in ("rewards", "old_values", "mask"))
    gae = generalised_advantages(rewards, old, OBJECTIVE.gamma, OBJECTIVE.lam, 0.0, mask)
    np.testing.assert_allclose(whitened(gae, mask), theirs["advantages"], atol=1e-6)
    np.testing.assert_allclose(np.where(mask > 0, gae + old, 0), theirs["returns"], atol=1e-6)
    given |= {name: torch.tensor(theirs[name]) for name in ("advantages", "returns")}
    values, labels = given["values"].requires_grad_(), int(mask.sum())
    found = OBJECTIVE.of_values(values, given, labels, FAST)
    (slopes,) = torch.autograd.grad(found.value, values)
    assert found.value.item() == pytest.approx(theirs["value_loss"], abs=1e-6)
    torch.testing.assert_close(slopes, torch.tensor(theirs["value_gradient"]), rtol=0, atol=1e-6)
    clipped = found.metrics["val/clipfrac_avg"]
    assert isinstance(clipped, Mean)
    assert float(clipped.total / clipped.terms) == pytest.approx(theirs["val/clipfrac_avg"], abs=1e-6)
    assert 0 < theirs["val/clipfrac_avg"] < 1


def test_the_whole_loss_is_trls() -> None:
    theirs, given = THEIRS["trl 1.12.0"], {name: torch.tensor(array) for name, array in THEIRS["inputs"].items()}
    given |= {name: torch.tensor(theirs[name]) for name in ("advantages", "returns")}
    log_p, values = (given[name].requires_grad_() for name in ("log_probabilities", "values"))
    labels = int(given["mask"].sum())
    policy = OBJECTIVE.of_log_probabilities(log_p, given, labels, FAST).value
    loss = policy + OBJECTIVE.vf_coef * OBJECTIVE.of_values(values, given, labels, FAST).value
    assert loss.item() == pytest.approx(theirs["loss"], abs=1e-6)
    for name, x in (("log_probabilities", log_p), ("values", values)):
        (slopes,) = torch.autograd.grad(loss, x, retain_graph=True)
        torch.testing.assert_close(slopes, torch.tensor(theirs["gradients"][name]), rtol=0, atol=1e-6)
