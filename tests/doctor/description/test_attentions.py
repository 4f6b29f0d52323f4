"""Factors of attention's scores on the page."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid


class Attending(nn.Module):
    """One head of eight numbers, whose scores are multiplied by a factor, by hand or in PyTorch's kernel."""

    def __init__(self, factor: float | None) -> None:
        super().__init__()
        self.maps, self.factor = nn.Linear(8, 24), factor

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.maps(x).chunk(3, -1)
        if self.factor is None:
            return F.scaled_dot_product_attention(query, key, value)
        made: Tensor = (query @ key.transpose(1, 2) * self.factor).softmax(-1) @ value
        return made


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (None, "multiplied by 1/√8: scores up to "),
        (1 / math.sqrt(8), "multiplied by 1/√8: scores up to "),
        (8**-1 / 2, "multiplied by 0.0625 (1/√8 is 0.354): scores up to "),
    ],
)
def test_what_scores_are_multiplied_by(factor: float | None, said: str) -> None:
    torch.manual_seed(0)
    model = Attending(factor)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            x = torch.randn(4, 12, 8)
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, x)
    (line,) = [one for one in doctor.description.of("model") if "attention" in one]
    assert line.startswith(f"1 attention of 12 keys, queries and keys of 8 numbers, {said}")
