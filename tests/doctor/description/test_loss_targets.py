"""What loss functions are given as targets, and where gradients are, in loops in which that is known."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.small_loops import net


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 5), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(x).relu()
        return self.first(hidden), self.second(hidden)


def page(model: nn.Module, loss_of: object, batch: dict[str, Tensor]) -> str:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            loss = loss_of(model, batch)  # type: ignore[operator]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, batch)
    assert dict(doctor.skipped) == {}
    return " ".join(str(doctor.description).split())


@pytest.mark.parametrize("wrong", [False, True])
def test_two_heads_and_the_targets_of_each(wrong: bool) -> None:
    torch.manual_seed(0)
    batch = {"x": torch.randn(16, 6), "start": torch.randint(0, 5, (16,)), "end": torch.randint(0, 5, (16,))}

    def loss_of(model: nn.Module, given: dict[str, Tensor]) -> Tensor:
        first, second = model(given["x"])
        return F.cross_entropy(first, given["start"]) + F.cross_entropy(second, given["start" if wrong else "end"])

    told = page(TwoHeads(), loss_of, batch)
    assert f"targets in their order: cross_entropy start, cross_entropy {'start' if wrong else 'end'}" in told
    assert ("of the batch neither the model nor a loss function of torch's is given end" in told) == wrong


@pytest.mark.parametrize("wrong", [False, True])
def test_gradients_where_nothing_is_known(wrong: bool) -> None:
    """Pixels of no known class, in the overlap as they are in the cross-entropy, or not."""
    torch.manual_seed(0)
    labels = torch.randint(0, 3, (4, 8, 8))
    labels[:, :, 0] = 255
    batch = {"x": torch.randn(4, 2, 8, 8), "labels": labels}

    def loss_of(model: nn.Module, given: dict[str, Tensor]) -> Tensor:
        made, known = model(given["x"]), given["labels"] != 255
        one_hot = F.one_hot(given["labels"].where(known, 0), 3).movedim(3, 1)
        counted = torch.ones_like(known) if wrong else known
        overlap = (made.softmax(1) * one_hot * counted[:, None]).sum() / counted.sum()
        return F.cross_entropy(made, given["labels"], ignore_index=255) - overlap

    told = page(nn.Conv2d(2, 3, 1), loss_of, batch)
    at = told.split("gradient at an output by labels (norm, mean): ")[1].split("255: ")[1].split()[0]
    assert (float(at) > 0) == wrong


def test_labels_of_a_loss_that_is_no_cross_entropy_are_the_batchs_own() -> None:
    torch.manual_seed(0)
    model, y = net(3, 8, 3), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    batch = {"x": torch.eye(3)[y], "labels": y}

    def loss_of(model: nn.Module, given: dict[str, Tensor]) -> Tensor:
        made = model(given["x"])
        return 0.3 * F.cross_entropy(made, given["labels"]) + made.softmax(1).square().sum()

    with torch.no_grad():
        right = float((model(batch["x"]).argmax(1) == y).float().mean())
    assert f"the label has the largest output in {right:.0%}" in page(model, loss_of, batch)
