"""Which outputs an update raises, and how rewards lie, on batches in which that is known."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import limpid
from doctor.small_loops import net
from limpid.doctor.description.pushes import rank_correlation

TIMES = torch.tensor([3.0, 1.0, 2.0, 2.0, 5.0, 4.0, 8.0, 7.0])


def test_rank_correlation_of_numbers_that_are_tied() -> None:
    ranks = torch.tensor([4.0, 1.0, 2.5, 2.5, 6.0, 5.0, 8.0, 7.0]).double()  # by hand; two share the places 2 and 3
    other = torch.arange(8.0).double()
    expected = float(torch.corrcoef(torch.stack([ranks, other]))[0, 1])
    assert rank_correlation(TIMES.double(), other) == pytest.approx(expected)


def page(sign: float) -> str:
    """Outputs that are to rise, or to fall, with the second number of the batch."""
    torch.manual_seed(0)
    model = net(3, 8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            x, time = torch.randn(32, 3), torch.randn(32)
            loss = -sign * (model(x)[:, 0] * time).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, {"x": x, "time": time})
    assert dict(doctor.skipped) == {}
    assert doctor.description is not None
    return "\n".join(doctor.description.of("loss"))


@pytest.mark.parametrize(("sign", "words"), [(1.0, "time is high (rank"), (-1.0, "time is low (rank")])
def test_the_side_to_which_outputs_are_raised(sign: float, words: str) -> None:
    assert f"the update raises outputs of rows whose {words}" in page(sign)


def test_rewards_by_prompt() -> None:
    torch.manual_seed(0)
    model = net(3, 8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    prompts = torch.tensor([[5, 6]] * 4 + [[7, 8]] * 4)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            x, y = torch.randn(8, 3), torch.randint(0, 3, (8,))
            loss: Tensor = (F.cross_entropy(model(x), y, reduction="none") * rewards).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, {"x": x, "rewards": rewards, "prompt_ids": prompts})
    assert doctor.description is not None
    told = "\n".join(doctor.description.of("data"))
    assert "rewards of a row: above 0 in 62%, below 0 in 0%" in told
    assert (
        "rewards by prompt: 2 groups of 4 rows, which stand together, with means 0.25 to 1; all alike in 1 of them"
        in told
    )
