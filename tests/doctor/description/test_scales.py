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


class Encoder(nn.Module):
    """Two layers of PyTorch's."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCAB, 32), nn.Linear(32, VOCAB)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True, norm_first=norm_first) for _ in range(2)
        )

    def forward(self, ids: Tensor) -> Tensor:
        h = self.tokens(ids)
        for block in self.blocks:
            h = block(h)
        out: Tensor = self.head(h)
        return out


@pytest.mark.parametrize(("norm_first", "which"), [(True, "none returns"), (False, "all return")])
def test_whether_blocks_end_in_a_norm(norm_first: bool, which: str) -> None:
    model = Encoder(norm_first)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(2):
            ids = torch.randint(4, VOCAB, (4, 16))
            loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss)
    assert doctor.description is not None
    (line,) = [one for one in doctor.description.of("model") if one.startswith("size (rms) of what blocks return")]
    assert line.endswith(f"; {which} what a norm of theirs gave")
    sizes = [float(one) for one in line.partition(": ")[2].partition(";")[0].split(", ")]
    assert sizes == pytest.approx([1.0, 1.0], abs=0.2)
