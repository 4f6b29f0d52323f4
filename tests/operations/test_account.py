"""The account of the loss's rounding error, against the loss in float64."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import limpid
from operations.models import TOKENS, step_of


def deviation(name: str, form: str, seed: int) -> tuple[float, float, float]:
    """Measured, told, and the share of it that does not cancel."""
    model, _ = step_of(name)
    torch.manual_seed(seed)
    for weight in model.eval().parameters():
        nn.init.normal_(weight, std=0.3) if weight.ndim > 1 else None
    model = model.bfloat16() if form == "bf16" else model
    wide = copy.deepcopy(model).double()

    def loss_of(one: nn.Module) -> torch.Tensor:
        return functional.cross_entropy(one(input_ids=TOKENS).logits.flatten(0, 1), TOKENS.flatten())

    exact = loss_of(wide).item()
    with limpid.recording(model) as recorded, torch.autocast("cpu", torch.bfloat16, enabled=form == "autocast"):
        loss = loss_of(model)
        loss.backward()
    report = recorded.verify()
    assert not report.wrong, str(report.wrong[0])
    return loss.item() - exact, report.error, abs(report.error) / sum(abs(call.error) for call in report.calls)


@pytest.mark.parametrize("form", ["fp32", "bf16", "autocast"])
@pytest.mark.parametrize("name", ["GPT-2", "BERT"])
def test_rounding_errors_add_up_to_the_deviation_of_the_loss(name: str, form: str) -> None:
    told = [deviation(name, form, seed) for seed in range(3)]
    plain = [(measured, said) for measured, said, left in told if left > 0.2]
    assert plain
    assert [said for _, said in plain] == pytest.approx([measured for measured, _ in plain], rel=0.1)
