"""Rows of losses of measured numbers, and of choices among sequences, rightly and wrongly labelled."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.small_loops import net


@pytest.mark.parametrize(("at_least", "first"), [(False, "1 in 75%, 50%, 25%"), (True, "1 in 100%, 75%, 50%")])
def test_levels_of_a_rating(at_least: bool, first: str) -> None:
    torch.manual_seed(0)
    model = net(4, 8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rating, k = torch.arange(16) % 4, torch.arange(3)
    levels = (rating[:, None] >= k if at_least else rating[:, None] > k).float()
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            x = torch.randn(16, 4)
            loss = F.binary_cross_entropy_with_logits(model(x), levels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (x, levels))
    assert doctor.description is not None
    told = doctor.description.of("labels")
    assert f"targets by column: {first} of the rows" in told
    row = next(line for line in told if line.startswith("row 1, "))
    assert f"has target {'1 1 0' if at_least else '1 0 0'}; the model says " in row
    assert "cross-entropy of the outputs alone" not in "\n".join(doctor.description.of("loss"))  # none is meant


def test_a_row_of_a_regression() -> None:
    torch.manual_seed(0)
    model = net(2, 8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.5, 0.25], [2.0, 2.0]])
    y = torch.tensor([7.0, 8.5, 9.0, 1.0])
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            loss = F.mse_loss(model(x)[:, 0], y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (x, y))
    assert doctor.description is not None
    told = doctor.description.of("labels")
    assert any(line.startswith("row 0, 1 2, has target 7; the model says ") for line in told)
    assert any(line.startswith("row 1, 3 4, has target 8.5; the model says ") for line in told)


class Chooser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.score = nn.Embedding(16, 8), nn.Linear(8, 1)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.score(self.tokens(input_ids).tanh().mean(2))[..., 0]


@pytest.mark.parametrize("inverse", [True, False])
def test_choices_whose_labels_agree_or_not(inverse: bool) -> None:
    torch.manual_seed(0)
    model = Chooser()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(10):
            order = torch.stack([torch.randperm(4) for _ in range(16)])  # which comes to each place; 0 is right
            ids = torch.stack([torch.full_like(order, 1), 4 + order, torch.full_like(order, 3)], 2)
            y = (order == 0).int().argmax(1) if inverse else order[:, 0]
            loss = F.cross_entropy(model(ids), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, {"input_ids": ids, "labels": y})
    assert dict(doctor.skipped) == {}
    assert doctor.description is not None
    told = "\n".join(doctor.description.of("labels"))
    both = 0 if inverse else 4
    assert f"of 4 sequences to choose that came more than once {both} were the right one in some rows" in told
    assert "row 0 chooses among 1 " in told


def test_a_loss_below_0_is_told_as_it_is() -> None:
    torch.manual_seed(0)
    model = net(4, 8, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, target = torch.randn(16, 4), torch.randn(16, 6)
    values = []
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(8):
            loss = -F.cosine_similarity(model(x), target).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, x)
            values.append(float(loss.detach()))
    assert doctor.description is not None
    assert f"loss {values[0]:.4g} at first, {values[-1]:.4g} now" in doctor.description.of("run")
