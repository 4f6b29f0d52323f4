"""Rows that a loss judges together, on losses in which that is known."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from doctor.small_loops import net
from limpid.doctor.description.couplings import Coupling, couplings_of

ROWS = 12
GROUP = torch.arange(ROWS) // 4


def coupled(loss: Tensor, *outputs: Tensor) -> list[Coupling]:
    """As a backward pass finds it, gradients being off around it."""
    with torch.no_grad():
        return couplings_of(loss, {i: (one.grad_fn, one.output_nr) for i, one in enumerate(outputs)})


def outputs(size: int = 1) -> Tensor:
    torch.manual_seed(0)
    made: Tensor = net(3, 8, size)(torch.randn(ROWS, 3))
    return made


def pairs_of(scores: Tensor, within: bool) -> Tensor:
    """RankNet's loss (Burges 2005): of all pairs, or of pairs of one group."""
    apart = scores[:, None] - scores[None]
    chosen = (torch.arange(ROWS)[:, None] > torch.arange(ROWS)[None]) & ((GROUP[:, None] == GROUP[None]) | (not within))
    return F.softplus(-apart)[chosen].mean()


@pytest.mark.parametrize("within", [True, False])
def test_pairs_of_a_ranking(within: bool) -> None:
    made = outputs()
    (found,) = coupled(pairs_of(made[:, 0], within), made)
    for row, met in zip(found.asked, found.met, strict=True):
        expected = (GROUP[row] == GROUP) if within else torch.ones(ROWS, dtype=torch.bool)
        expected[row] = False
        assert torch.equal(met, expected)


def test_rows_that_are_judged_one_by_one() -> None:
    made = outputs(5)
    (found,) = coupled(F.cross_entropy(made, GROUP), made)
    assert not found.met.any()


def test_a_loss_that_is_linear_in_its_outputs() -> None:
    made = outputs(5)
    (found,) = coupled((made * torch.randn(ROWS, 5)).mean(), made)
    assert not found.met.any()


def test_queries_and_candidates_of_two_passes() -> None:
    torch.manual_seed(0)
    query, key = nn.Linear(3, 4)(torch.randn(ROWS, 3)), nn.Linear(3, 4)(torch.randn(ROWS, 3))
    found = {
        (one.first, one.second): one for one in coupled(F.cross_entropy(query @ key.T, torch.arange(ROWS)), query, key)
    }
    assert not found[0, 0].met.any()  # queries do not meet
    assert found[0, 1].met.all()
    assert found[1, 1].met[0].sum() == ROWS - 1  # candidates share the sums of all softmaxes
