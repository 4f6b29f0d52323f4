"""Rows that a loss judges together, on losses in which that is known."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
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


@pytest.mark.parametrize("same", [True, False])
def test_whether_pairs_of_answers_have_one_question(same: bool) -> None:
    """A reward model's loss on chosen and rejected answers (Ouyang et al. 2022, eq. 1), in the halves of a batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(48, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(2):
            questions = torch.arange(16).reshape(8, 2).repeat(2, 1)
            ids = torch.cat([questions, torch.randint(20, 50, (16, 4))], 1)
            ids = ids if same else ids.roll(1, 0)[torch.tensor([*range(7, -1, -1), *range(8, 16)])]
            better, worse = model(ids)[:, 0].chunk(2)
            loss = -F.logsigmoid(better - worse).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, ids)
    assert doctor.description is not None
    (said,) = [line for line in doctor.description.of("loss") if "rows that meet begin" in line]
    assert ("begin with 2 to " if same else "begin with 0 equal") in said
