"""Rows that come again, with their own targets and with others'."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import limpid
from doctor.small_loops import net


@pytest.mark.parametrize("kept_by_name", [False, True])
def test_pictures_that_a_cache_confuses(kept_by_name: bool) -> None:
    """Sixteen pictures of two folders; a cache that knows a file's name alone gives those of the first for both."""
    torch.manual_seed(0)
    pictures, labels = (torch.rand(16, 12) * 4).round() / 4, torch.arange(16) // 8
    read = torch.arange(16) % 8 if kept_by_name else torch.arange(16)
    model = net(12, 8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(4):
            order = torch.randperm(16)
            loss = F.cross_entropy(model(pictures[read[order]]), labels[order])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (pictures[read[order]], labels[order]))
    assert dict(doctor.skipped) == {}
    told = " ".join(str(doctor.description).split())
    again, other = (told.split("of ")[0], told.split(" rows that the model was given again, ")[1].split()[0])
    assert again
    assert (other == "none") != kept_by_name
    count = int(told.split(" rows that the model was given again, ")[0].split()[-1])
    assert count == (56 if kept_by_name else 48)  # of 64, less the different ones
