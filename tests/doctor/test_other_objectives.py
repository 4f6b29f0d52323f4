"""Objectives that are not the next token of a text: what their losses may do without being accused."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from doctor.bench import LENGTH, VOCAB, Decoder, batch, preflight
from limpid.doctor.attention_probe import AttentionProbe, off_diagonal_share
from limpid.doctor.history import History
from limpid.doctor.rules.learning_rate import lastingly
from limpid.doctor.rules.loss_curve import LOSS_SPIKE, rises
from limpid.doctor.step_record import StepRecord


def judged(losses: list[float]) -> list[str]:
    history, findings = History(), []
    for number, loss in enumerate(losses, 1):
        record = StepRecord(number, loss=loss)
        history._take_loss(record)
        findings += rises(SimpleNamespace(), record, history)  # type: ignore[arg-type]
    return [finding.rule for finding in findings if finding.severity != "notice"]


def test_a_surrogate_that_begins_at_zero_has_no_level_to_rise_from() -> None:
    """A policy's loss is 0 while it is its own reference, and then the distance between them."""
    scatter = random.Random(0)
    grows = [1e-8, *(0.004 * step * (1 + 0.3 * scatter.random()) for step in range(1, 80))]
    assert judged(grows) == []
    assert judged([loss - 0.002 for loss in grows]) == []  # advantages weigh either way
    assert judged([4.2 + loss for loss in grows]) != []


def test_a_noisy_loss_that_falls_is_not_a_rate_that_is_too_high() -> None:
    """A head on a frozen trunk, sixteen rows a step: steps of 40 % of its weights, a loss that scatters by a third."""

    def spoken(losses: list[float]) -> bool:
        history = History()
        for loss in losses:
            history.losses.add(loss, LOSS_SPIKE["z"])
        update = SimpleNamespace(
            median_ratio=lambda: 0.41, rates=[0.5], names=["head"], matrices=lambda: [0], start=[torch.zeros(1)]
        )
        history.updates = [(step, update) for step in (1, 2, 3, 10, 20)]  # type: ignore[misc]
        record = SimpleNamespace(judged_update=update, number=len(losses), loss=losses[-1], micros=[])
        return bool(list(lastingly(SimpleNamespace(optimizers=[]), record, history)))  # type: ignore[arg-type]

    scatter = random.Random(3)
    assert not any(spoken([1.3 + 0.4 * scatter.gauss(0, 1) for _ in range(20)]) for _ in range(200))
    assert spoken([3.5 - 0.1 * step + 0.03 * scatter.gauss(0, 1) for step in range(12)] + [3.4] * 8)  # goes back
    assert spoken([3.5 + 0.03 * scatter.gauss(0, 1) for _ in range(20)])  # learns nothing


def test_what_a_mask_hides_is_no_text_that_was_lost() -> None:
    """Masked diffusion: most labels stand at the mask, and each is what it hides."""
    ids, _ = batch(0)
    hidden = torch.rand(ids.shape, generator=torch.Generator().manual_seed(0)) < 0.7
    given = ids.masked_fill(hidden, VOCAB - 1), ids.masked_fill(~hidden, -100)
    assert preflight(Decoder(), given) == []


@pytest.mark.filterwarnings("error::UserWarning")
def test_a_head_that_gives_one_number_has_no_vocabulary() -> None:
    """A reward model: scores of chosen and rejected answers, large from the start."""
    model = Decoder()
    model.head = nn.Linear(model.norm.normalized_shape[0], 1, bias=False)
    assert preflight(model, loss=lambda model, given: -F.logsigmoid(model(given[0])[0::2, -1] - 1).mean()) == []


class Prefixed(Decoder):
    """The first fourteen tokens see each other; what follows sees what is before it."""

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1])
        seen = (places <= places[:, None]) | (places < 14)
        x = self.tokens(ids)
        for block in self.blocks:
            heads = (*x.shape[:2], 2, -1)
            query, key, value = (p.view(heads).transpose(1, 2) for p in block.qkv(block.norm1(x)).chunk(3, -1))
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
            x = x + block.out(mixed.transpose(1, 2).flatten(-2))
            x = x + block.down(F.gelu(block.up(block.norm2(x))))
        return self.head(self.norm(x))


@pytest.mark.parametrize(("first", "rules"), [(13, []), (6, ["not-causal"])])
def test_a_prefix_may_be_read_both_ways_where_it_has_no_labels(first: int, rules: list[str]) -> None:
    ids, targets = batch(0)
    given = ids, targets.masked_fill(torch.arange(LENGTH) < first, -100)
    assert preflight(Prefixed(rotary=True), given) == rules


class Biased(nn.Module):
    """Scores with a bias by distance, as ALiBi's, far larger than what fresh queries and keys give."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        places = torch.arange(query.shape[-2])
        return (query @ key.transpose(-2, -1) * self.factor - (places[:, None] - places).abs()).softmax(-1)


def test_a_bias_of_positions_is_no_part_of_the_factor_of_the_scores() -> None:
    torch.manual_seed(0)
    query, key = (0.1 * torch.randn(4, 2, 12, 8) for _ in range(2))
    with AttentionProbe() as seen:
        Biased(1 / math.sqrt(8))(query, key)
    assert math.isclose(seen.attentions[0].factor, 1 / math.sqrt(8), rel_tol=1e-3)


def test_weights_may_take_the_place_of_the_scores() -> None:
    torch.manual_seed(0)
    query, key = 20 * torch.randn(6, 16, 8), torch.randn(6, 16, 8)
    mask = torch.full((16, 16), -math.inf).triu(1)
    expected = (query @ key.transpose(1, 2) / math.sqrt(8)).masked_fill(mask < 0, 0).abs().amax()
    for room in (None, 2**20):
        with AttentionProbe(room) as seen:
            scores = torch.baddbmm(mask.expand(6, -1, -1), query, key.transpose(1, 2), alpha=1 / math.sqrt(8))
            torch.softmax(scores, -1, out=scores)
        (found,) = seen.attentions
        assert math.isclose(found.largest, float(expected), rel_tol=1e-4)
        assert math.isclose(found.factor, 1 / math.sqrt(8), rel_tol=1e-4)


def test_of_many_scores_some_queries_of_every_head_are_looked_at() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 3, 64, 8), torch.randn(2, 3, 64, 8)
    query[1, 2] *= 1e4
    with AttentionProbe(room=2**10) as seen:
        (query @ key.transpose(-1, -2)).softmax(-1)
    (found,) = seen.attentions
    assert found.query.shape == (2, 3, 4, 8)
    assert found.largest > 1e4


def test_queries_in_groups_are_heads_with_the_key_of_their_group() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 3, 4, 12, 8), torch.randn(2, 3, 1, 12, 8)
    with AttentionProbe() as seen:
        (query @ key.transpose(-1, -2) / math.sqrt(8)).softmax(-1)
    (scores,) = seen.attentions
    assert scores.query.equal(query.flatten(1, 2))
    assert scores.key.equal(key.expand(2, 3, 4, 12, 8).flatten(1, 2))
    assert off_diagonal_share(scores) > 0.5  # random vectors know no distance
