"""What became of gradients between two backward passes, where the second's graph does not reach them."""

from __future__ import annotations

import pytest
import torch

from limpid.doctor.pass_gradients import PassGradients


@pytest.mark.parametrize(("happens", "factor"), [("cleared", 0.0), ("added to", 1.0), ("nothing", 1.0)])
def test_a_pass_that_reaches_no_parameter(happens: str, factor: float) -> None:
    """Of another model, before which a loop clears; or one whose forward pass has added to them, as a graph does."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(8))
    passes = PassGradients({"weight": weight})
    loss = weight.square().sum()
    passes.begins(loss)
    loss.backward()
    passes.ended()
    passes.called()
    if happens == "cleared":
        weight.grad = None
    elif happens == "added to":
        assert weight.grad is not None
        weight.grad = weight.grad + torch.randn(8)
    passes.begins(torch.randn(4, requires_grad=True).sum())
    assert passes.factors[-1].tolist() == pytest.approx([factor])
