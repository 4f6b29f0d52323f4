"""What a loss function is given beside the outputs, where what lies between is known."""

from __future__ import annotations

from collections import Counter

import torch
import torch.nn.functional as F

from limpid.doctor.description.into_loss import into_loss
from limpid.doctor.step_record import StepRecord

torch.manual_seed(0)
OUTPUTS = torch.randn(16, 5)
COUNTS = Counter({0: 60, 1: 10, 2: 20, 3: 5, 4: 1})
PRIOR = torch.tensor([60.0, 10, 20, 5, 1]).log()


def said(given: torch.Tensor, *outputs: torch.Tensor) -> str:
    found = into_loss("cross_entropy", given, outputs or (OUTPUTS,))
    return "" if found is None else "".join(found.told(StepRecord(1), COUNTS))


def test_the_outputs_themselves() -> None:
    assert said(OUTPUTS.clone()) == ""
    assert said(OUTPUTS.clone(), torch.randn(16, 5), OUTPUTS) == ""


def test_a_temperature() -> None:
    assert said(OUTPUTS / 0.07) == "cross_entropy is given 14.29 × the model's outputs"


def test_the_prior_of_classes_on_either_side() -> None:
    added, taken = said(OUTPUTS + PRIOR), said(OUTPUTS - PRIOR)
    assert "the model's outputs and a number for each class: 4.09 2.3 3 1.61" in added
    assert "how often the class is a label 1.00" in added
    assert "how often the class is a label -1.00" in taken


def test_outputs_that_are_cut() -> None:
    assert "the model's outputs, but for 6.2% of them; it is given" in said(
        OUTPUTS.clamp(max=OUTPUTS.flatten().topk(6)[0][-1])
    )


def test_probabilities() -> None:
    assert "something else than a multiple of the model's outputs: correlation" in said(OUTPUTS.softmax(1))


def test_cosines_of_two_towers() -> None:
    a, b = torch.randn(8, 4), torch.randn(8, 4)
    cosines = F.normalize(a, dim=1) @ F.normalize(b, dim=1).T
    assert said(20 * cosines, a, b) == "cross_entropy is given 20 × the cosines of outputs of two rows"
    assert "a number for each candidate" in said(a @ b.T + torch.arange(8.0), a, b)
