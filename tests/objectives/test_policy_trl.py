"""Losses, gradients and metrics of TRL's own trainers on the same tensors: `python -m benchmarks.alignment trl`."""

import json
from pathlib import Path

import pytest
import torch

from limpid.data.batches import MicroBatch
from limpid.model.observe import FAST
from limpid.objectives import Mean, Policy

TRL = json.loads((Path(__file__).parent / "trl.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", TRL["cases"], ids=lambda case: " ".join(map(str, case["trl"].values())))
def test_a_loss_is_trls(case: dict) -> None:
    objective = Policy(**case["policy"])
    given = {name: torch.tensor(array) for name, array in TRL["inputs"].items()}
    log_p = given["log_probabilities"].requires_grad_()
    labels = objective.labels(MicroBatch({"mask": given["mask"].numpy()}))
    loss = objective.of_log_probabilities(log_p, given, labels, FAST)
    (slopes,) = torch.autograd.grad(loss.value, log_p)
    assert loss.value.item() == pytest.approx(case["loss"], abs=1e-6)
    torch.testing.assert_close(slopes, torch.tensor(case["gradient"]), rtol=0, atol=1e-6)
    for name, value in case["metrics"].items():
        mean = loss.metrics[name]
        assert isinstance(mean, Mean)
        assert float(mean.total / mean.terms) == pytest.approx(value, abs=1e-6), name
