"""Passes without gradients: their mode, and whether their rows were trained on."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import limpid
from doctor.bench import VOCAB, Decoder
from doctor.small_loops import net, table
from limpid.doctor import Doctor


def trained(model: Decoder, optimizer: torch.optim.Optimizer, doctor: Doctor) -> Tensor:
    """Three updates; the rows of the last one."""
    for _ in range(3):
        ids = torch.randint(4, VOCAB, (4, 17))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        doctor.step(loss)
    return ids


def test_modes_and_rows_of_evaluations() -> None:
    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    other = torch.randint(4, VOCAB, (6, 16))
    with limpid.watch(model, optimizer, say=False) as doctor:
        ids = trained(model, optimizer, doctor)
        with torch.no_grad():
            model(ids[:, :-1])  # rows of the last step
            model.eval()
            model(other)
    assert doctor.description is not None
    told = "\n".join(doctor.description.of("run"))
    assert (
        "without gradients: 1 pass in evaluation mode and 1 pass in training mode; of 10 rows of these 4 had been"
        in told
    )


def test_rows_of_another_length_are_not_looked_for() -> None:
    """Padded otherwise a row is another one: nothing is said of whether it was trained on."""
    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        ids = trained(model, optimizer, doctor)
        with torch.no_grad():
            model(ids[:, :12])
    assert doctor.description is not None
    told = "\n".join(doctor.description.of("run"))
    assert "without gradients: 1 pass in training mode" in told
    assert "had been" not in told


@pytest.mark.parametrize("seen", [False, True])
def test_measured_rows_that_were_trained_on(seen: bool) -> None:
    torch.manual_seed(0)
    model = net(6, 16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    held_out, _ = table(8)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(3):
            x, y = table()
            loss = F.mse_loss(model(x)[:, 0], y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (x, y))
        with torch.no_grad():
            model(x[:8] if seen else held_out)
    assert dict(doctor.skipped) == {}
    assert doctor.description is not None
    told = "\n".join(doctor.description.of("run"))
    assert "without gradients: 1 pass in training mode" in told
    assert ("of 8 rows of these 8 had been trained on" in told) is seen
