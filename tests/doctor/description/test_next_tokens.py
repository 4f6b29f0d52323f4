"""Nats of tokens by counts of the rows before, beside the entropies of chains that the rows are drawn from."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import limpid
from limpid.doctor.description.next_tokens import PARTS, NextTokens

WORDS, ROWS, LENGTH, STEPS = 8, 16, 65, 60


def chain(order: int, generator: np.random.Generator) -> tuple[np.ndarray, float]:
    """p(next | two before), of which one or both matter, and its entropy under its own stationary law, in nats."""
    p = generator.dirichlet(np.full(WORDS, 0.4), (WORDS, WORDS) if order == 2 else (1, WORDS))
    p = np.broadcast_to(p, (WORDS, WORDS, WORDS))  # (the one two before, the one before, next)
    pairs = np.full((WORDS, WORDS), 1 / WORDS**2)
    for _ in range(200):
        pairs = (pairs[:, :, None] * p).sum(0)
    return p, float(-(pairs[:, :, None] * p * np.log(p + 1e-300)).sum())


def drawn(p: np.ndarray, generator: np.random.Generator) -> torch.Tensor:
    ids = generator.integers(0, WORDS, (ROWS, LENGTH))
    for place in range(2, LENGTH):
        sums = p[ids[:, place - 2], ids[:, place - 1]].cumsum(1)
        ids[:, place] = (sums > generator.random((ROWS, 1)) * sums[:, -1:]).argmax(1)
    return torch.from_numpy(ids)


def page(batches: list[torch.Tensor]) -> list[list[float]]:
    """The three numbers of the line, where there is one."""
    model = nn.Sequential(nn.Embedding(2048, 16), nn.Linear(16, WORDS))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for ids in batches:
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten() % WORDS)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, ids)
    assert doctor.description is not None
    said = [line for line in doctor.description.of("data") if line.startswith("nats of a token")]
    return [[float(one) for one in re.findall(r"(\d+\.?\d*) (?:by how|after)", line)] for line in said]


@pytest.mark.parametrize("order", [1, 2])
def test_the_entropy_of_a_chain_is_told(order: int) -> None:
    generator = np.random.default_rng(order)
    p, entropy = chain(order, generator)
    ((_, one, two),) = page([drawn(p, generator) for _ in range(STEPS)])
    assert (one if order == 1 else two) == pytest.approx(entropy, rel=0.03)
    assert (two > one * 0.97) if order == 1 else (two < one * 0.9)


def test_padding_at_the_end_of_rows_counts_for_nothing() -> None:
    generator = np.random.default_rng(0)
    p, _ = chain(2, generator)
    batches = [drawn(p, generator) for _ in range(STEPS)]
    ((_, _, without),) = page(batches)
    ((_, _, padded),) = page([F.pad(one, (0, 64)) for one in batches])
    assert padded == pytest.approx(without, rel=0.02)


def test_what_is_kept_of_a_long_run_is_bounded() -> None:
    kept = NextTokens()
    for _ in range(500):
        kept._add(np.random.default_rng(0).integers(0, WORDS, (4, 8)))
    assert len(kept.parts) <= PARTS
    assert sum(part[0] for part in kept.parts) == 500


def test_nothing_is_told_of_more_words_than_tables_are_kept_for() -> None:
    assert page([torch.randint(0, 2048, (ROWS, LENGTH)) for _ in range(6)]) == []
