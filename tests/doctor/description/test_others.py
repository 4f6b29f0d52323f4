"""What an input that is no token moves: added to its own row, and along the rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid


class OfAKind(nn.Module):
    def __init__(self, along: bool) -> None:
        super().__init__()
        self.tokens, self.kinds, self.head, self.along = nn.Embedding(8, 6), nn.Embedding(3, 6), nn.Linear(6, 8), along

    def forward(self, ids: Tensor, kind: Tensor) -> Tensor:
        kinds = self.kinds(kind)
        return self.head((self.tokens(ids) + (kinds if self.along else kinds[:, None])).cumsum(1))


@pytest.mark.parametrize(
    ("along", "moved"),
    [(False, "all of the 8 outputs of row 0, of no other row"), (True, "8 outputs of row 0, and of 7 of 7 other rows")],
)
def test_a_kind_of_each_row(along: bool, moved: str) -> None:
    torch.manual_seed(0)
    model = OfAKind(along)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            ids, kind = torch.randint(0, 8, (8, 9)), torch.arange(8) % 3
            loss = F.cross_entropy(model(ids[:, :-1], kind).flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (ids, kind))
    assert doctor.description is not None
    told = "\n".join(doctor.description.of("model"))
    assert "another kind in row 0 moves" in told
    assert moved in told
    assert "another token at position" in told  # also where the model takes no fewer rows than these
