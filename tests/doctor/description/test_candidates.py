"""Softmax over candidates: whether a row is among its own, and which is its target."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import limpid
from doctor.small_loops import net
from limpid.doctor.description.candidates import Candidates

N = 8


def vectors(count: int = 2 * N) -> Tensor:
    return F.normalize(torch.randn(count, 6, generator=torch.Generator().manual_seed(count)), dim=1)


def told(scores: Tensor, target: Tensor) -> str:
    found = Candidates.of(scores / 0.1, target)
    return "" if found is None else found.told()


def test_views_that_meet_themselves_and_views_that_do_not() -> None:
    z, other = vectors(), torch.arange(2 * N).roll(N)
    among = told(z @ z.T, other)
    assert "each of 16 rows chooses among 16 candidates, its target 8 places on from its own number" in among
    assert "a row itself is among them (scores are symmetric, the diagonal): its score with itself is the" in among
    assert "largest in 16 of 16 rows" in among
    without = torch.eye(2 * N, dtype=torch.bool)
    for shut_out in (-torch.inf, -1e9):
        assert "the diagonal is shut out" in told((z @ z.T).masked_fill(without, shut_out), other)
    left_out = (z @ z.T)[~without].view(2 * N, -1)
    assert "not among them (scores are symmetric, the diagonal is left out)" in told(
        left_out, other.roll(1) % (2 * N - 1)
    )
    assert "a row itself is its target" in told(z @ z.T, torch.arange(2 * N))


def test_a_target_first_and_all_others_behind_it() -> None:
    z, first = vectors(), torch.zeros(2 * N, dtype=torch.long)
    positive = (z * z.roll(N, 0)).sum(1, keepdim=True)
    others = (z @ z.T)[~torch.eye(2 * N, dtype=torch.bool)].view(2 * N, -1)
    without = told(torch.cat([positive, others], 1), first)
    assert "among 16 candidates, its target always number 0; a row itself is not among them" in without
    among = told(torch.cat([positive, z @ z.T], 1), first)
    assert "its target always number 0; a row itself is among them (scores are symmetric, the diagonal from" in among
    draw = torch.Generator().manual_seed(1)
    mixed = torch.stack([row[torch.randperm(len(row), generator=draw)] for row in z @ z.T])
    itself = told(torch.cat([positive, mixed], 1), first)
    assert "the largest score of every row is the same, 10, as of a vector of length one with itself" in itself
    assert "it is the target's in 0 of 16 rows" in itself


@pytest.mark.parametrize("itself", [True, False])
def test_two_views_beside_each_other(itself: bool) -> None:
    one, two = vectors().chunk(2)
    scores = torch.cat([one @ two.T, one @ (one if itself else two.flip(0)).T], 1)
    said = told(scores, torch.arange(N))
    assert "each of 8 rows chooses among 16 candidates, its target on the diagonal" in said
    assert ("a row itself is among them (scores are symmetric, the diagonal from candidate 8 on)" in said) is itself
    assert ("rows and candidates are different vectors" in said) is not itself


def test_classes_are_no_candidates() -> None:
    assert (
        told(torch.randn(N, N, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 0, 2, 2, 7, 4, 5, 1]))
        == ""
    )


def test_a_loop_of_pairs_is_told_both_ways_once() -> None:
    torch.manual_seed(0)
    model = net(4, 8, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(2):
            x = torch.randn(2 * N, 4)
            one, two = model(x).chunk(2)
            loss = F.cross_entropy(one @ two.T, torch.arange(N)) + F.cross_entropy(two @ one.T, torch.arange(N))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, x)
    assert dict(doctor.skipped) == {}
    assert doctor.description is not None
    [line] = [one for one in doctor.description.of("labels") if "candidates" in one]
    assert line.startswith("each of 8 rows chooses among 8 candidates, its target on the diagonal; scores are not symm")
    assert line.endswith("(×2)")
