"""Rows in other company: on few positions where these tell rows apart, on whole rows otherwise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import limpid
from limpid.doctor.calls import Call
from limpid.doctor.row_probe import SHORT

LENGTH = SHORT + 16


class Mixed(nn.Module):
    """Logits at every position, from the token there and the mean over rows."""

    def __init__(self, positions: int | None = None) -> None:
        super().__init__()
        self.positions = positions  # the only number of them that it takes
        self.embed, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)
        self.lengths: list[int] = []

    def forward(self, ids: Tensor) -> Tensor:
        if self.positions not in (None, ids.shape[1]):
            raise ValueError(f"rows of {ids.shape[1]} tokens")
        self.lengths.append(ids.shape[1])
        x = self.embed(ids)
        logits: Tensor = self.head(x + x.mean(0, keepdim=True))
        return logits


def ids(same: int = 0) -> Tensor:
    """Six rows that begin with so many tokens alike."""
    drawn = torch.randint(32, (6, LENGTH), generator=torch.Generator().manual_seed(0))
    drawn[:, :same] = drawn[:1, :same]
    return drawn


@pytest.mark.parametrize(
    ("model", "given", "positions"),
    [(Mixed(), ids(), SHORT), (Mixed(), ids(SHORT), LENGTH), (Mixed(LENGTH), ids(), LENGTH)],
    ids=["short", "rows that begin alike", "a model of one length"],
)
def test_positions_of_rows_in_other_company(model: Mixed, given: Tensor, positions: int) -> None:
    with limpid.watch(model, say=False) as doctor:
        probe = doctor.examinations.exam(call=Call((given,), {})).row_probe
        assert probe.plain is not None
        assert probe.plain.shape == (6, positions * 32)
        assert probe.among_copies > 0.01
