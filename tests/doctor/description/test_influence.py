"""From how far outputs are moved, in models in which that is known."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid


class Slopes(nn.Module):
    """One causal mean of embeddings, near tokens or far ones weighing more (Press et al. 2022, ALiBi)."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(12, 16), nn.Linear(16, 12)
        self.slope = slope

    def forward(self, ids: Tensor) -> Tensor:
        place = torch.arange(ids.shape[1])
        distance = (place[:, None] - place[None]).float()
        scores = (self.slope * distance).masked_fill(distance < 0, -torch.inf)
        made: Tensor = self.head(scores.softmax(1) @ self.tokens(ids))
        return made


class Masked(nn.Conv2d):
    """A convolution that reads what lies above and to the left, and the pixel itself or not (van den Oord 2016)."""

    def __init__(self, a: int, b: int, itself: bool) -> None:
        super().__init__(a, b, 3, padding=1)
        mask = torch.ones(3, 3)
        mask[1, 1 + itself :] = 0
        mask[2] = 0
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight * self.mask, self.bias, padding=1)


class Pooled(nn.Module):
    """A pooling by attention, over the places of a text or, by mistake, over the batch."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.tokens, self.score, self.head = nn.Embedding(12, 16), nn.Linear(16, 1), nn.Linear(16, 3)
        self.axis = axis

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        made: Tensor = self.head((self.score(x).softmax(self.axis) * x).sum(1))
        return made


class Blurred(nn.Module):
    """Adds noise in one mode."""

    def __init__(self, in_training: bool) -> None:
        super().__init__()
        self.map, self.in_training = nn.Linear(6, 3), in_training

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn_like(x) if self.training == self.in_training else 0.0
        made: Tensor = self.map(x + 0.3 * noise)
        return made


def page(model: nn.Module, x: Tensor, y: Tensor) -> str:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            made = model(x)
            loss = F.cross_entropy(made.transpose(1, 2) if made.ndim == 3 else made, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (x, y))
    assert dict(doctor.skipped) == {}
    return " ".join(str(doctor.description).split())


@pytest.mark.parametrize(("slope", "nearest"), [(-0.7, True), (0.7, False)])
def test_near_tokens_and_far_ones(slope: float, nearest: bool) -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 12, (4, 17))
    told = page(Slopes(slope), ids[:, :-1], ids[:, 1:])
    by = told.split("when a token so many places before it is another, by ")[1].split(" of the largest")[0]
    sizes = [float(one.split(": ")[1]) for one in by.split(", ")]
    assert (sizes[0] == 1) == nearest
    assert (sizes[-1] < 0.1) == nearest


@pytest.mark.parametrize("later", [True, False])
def test_pixels_that_no_layer_reads(later: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Masked(1, 8, False), nn.Tanh(), Masked(8, 8, later), nn.Tanh(), Masked(8, 2, later))
    told = page(model, torch.rand(4, 1, 8, 8), torch.randint(0, 2, (4, 8, 8)))
    still = told.split("another pixel at 4, 4 of picture 0 moves ")[1].split("not that at ")[1]
    assert still.startswith("the same, the left, above" if later else "the same, the left, the right, above, below")


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_that_are_pooled_together(axis: int) -> None:
    torch.manual_seed(0)
    told = page(Pooled(axis), torch.randint(0, 12, (4, 8)), torch.randint(0, 3, (4,)))
    which = "of no other row" if axis else "and outputs of rows 1, 2, 3"
    assert f"another token at position 4 of row 0 moves the output of row 0, {which}" in told


@pytest.mark.parametrize("in_training", [True, False])
def test_chance_in_the_other_mode(in_training: bool) -> None:
    torch.manual_seed(0)
    told = page(Blurred(in_training), torch.randn(16, 6), torch.randint(0, 3, (16,)))
    assert ("random numbers change no output in training mode" in told) != in_training
    assert ("outputs in evaluation mode are others with other random numbers" in told) != in_training
