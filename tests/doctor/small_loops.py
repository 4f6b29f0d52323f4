"""Plain loops on small tasks without tokens, for mistakes and their honest twins."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import limpid


def table(count: int = 32, width: int = 6) -> tuple[Tensor, Tensor]:
    """Columns, and a number that depends on them."""
    x = torch.randn(count, width)
    return x, x[:, 0] * x[:, 1] + x[:, 2]


def classes(count: int = 32) -> tuple[Tensor, Tensor]:
    """Points around three corners, of which the first is frequent, and which corner it is."""
    y = torch.multinomial(torch.tensor([0.6, 0.3, 0.1]), count, replacement=True)
    return 2 * torch.eye(3)[y] + 0.3 * torch.randn(count, 3), y


def net(*sizes: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes[:-1]):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


def alarms(doctor: Any) -> list[str]:
    """What is said: what is worse than a notice, and choices that may be meant."""
    return [finding.rule for finding in doctor.findings if finding.is_said]


def watched(
    model: nn.Module,
    batch: Callable[[], Any],
    loss: Callable[[nn.Module, Any], Tensor],
    steps: int = 4,
    optimizer: Any = None,
    **options: Any,
) -> list[str]:
    """The alarms of a plain loop."""
    optimizer = optimizer or torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    with limpid.watch(model, optimizer, say=False, **options) as doctor:
        for _ in range(steps):
            given = batch()
            value = loss(model, given)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            doctor.step(value, given)
    assert dict(doctor.skipped) == {}
    return alarms(doctor)
