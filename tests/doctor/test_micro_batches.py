"""What a loop calls a batch: one of several tensors, as a loader collates it, or micro-batches one after another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import limpid
from limpid.doctor.micro_batches import micro_batches

IDS, OTHER_IDS, CLASSES, NUMBERS = torch.zeros(4, 6).long(), torch.ones(4, 9).long(), torch.arange(4), torch.rand(4, 3)


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        ([IDS, CLASSES], 1),
        ([IDS, NUMBERS, CLASSES.float()], 1),
        ([IDS, IDS], 1),
        ((IDS, OTHER_IDS), 1),
        ([IDS, OTHER_IDS], 2),
        ([(IDS, CLASSES), (IDS, CLASSES)], 2),
    ],
    ids=["ids and classes", "a table", "ids and next ones", "a pair", "two texts", "two pairs"],
)
def test_lists_of_tensors(batch: Any, count: int) -> None:
    assert len(micro_batches(batch)) == count


class Wide(nn.Module):
    """A table for each of two columns of categories, which have eight values and three, and measured numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.tables, self.head = nn.ModuleList([nn.Embedding(8, 4), nn.Embedding(3, 4)]), nn.Linear(12, 1)

    def forward(self, kinds: Tensor, numbers: Tensor) -> Tensor:
        each = [table(kinds[:, i]) for i, table in enumerate(self.tables)]
        made: Tensor = self.head(torch.cat([*each, numbers], 1))
        return made[:, 0]


def test_rows_of_categories_and_numbers_are_told_apart_by_both() -> None:
    torch.manual_seed(0)
    kinds = torch.stack([torch.randint(0, 8, (200,)), torch.randint(0, 3, (200,))], 1)
    data = TensorDataset(kinds, torch.randn(200, 4), (torch.arange(200) % 4 == 0).float())
    model = Wide()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with limpid.watch(model, optimizer, say=False, every=20) as doctor:
        for _ in range(2):
            for batch in DataLoader(data, batch_size=20, shuffle=True):
                loss = F.binary_cross_entropy_with_logits(model(batch[0], batch[1]), batch[2])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                doctor.step(loss, batch)
    assert dict(doctor.skipped) == {}
    assert doctor.description is not None
    assert "rows so far: 400, 200 of them different" in doctor.description.of("data")
    assert "targets of the first 400 rows: 1 in 25%" in doctor.description.of("run")
