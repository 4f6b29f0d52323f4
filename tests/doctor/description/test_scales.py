"""Sizes of what tables give and of what the first block is given, with a factor and without."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.bench import VOCAB, Decoder


class Scaled(nn.Embedding):
    """Vectors times a factor."""

    factor = 10.0

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * self.factor


@pytest.mark.parametrize("scaled", [False, True])
def test_a_table_times_a_factor(scaled: bool) -> None:
    model = Decoder()
    if scaled:
        model.tokens.__class__ = Scaled
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(2):
            ids = torch.randint(4, VOCAB, (4, 17))
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss)
    assert dict(doctor.skipped) == {}
    assert doctor.description is not None
    told = "\n".join(doctor.description.of("model"))
    line = next(line for line in told.splitlines() if line.startswith("size (rms) of what tables give: tokens 0."))
    assert ("(entries 0.02)" in line) is scaled
    given = float(line.partition("of the first block's input ")[2].split()[0])
    assert 0.15 < given < 0.25 if scaled else 0.02 < given < 0.04
    assert "if added as they are); outputs spread by 0.1" in line
