"""The chapter on alignment: its losses against numbers worked out by hand."""

import math

import pytest

from limpid.planning.adapters import low_rank
from limpid.primer.aligned import clipped_gain, dpo, group, masked_loss, preferred, reward_loss
from limpid.primer.chapter import Text, chapter


def said() -> str:
    return " ".join(part.markdown for part in chapter("alignment").parts if isinstance(part, Text)).replace("\n", " ")


def test_a_mask_leaves_out_the_prompt() -> None:
    losses = [-math.log(p) for p in (0.2, 0.5, 0.4, 0.8, 0.9)]
    assert masked_loss(losses, [0, 0, 1, 1, 1]) == pytest.approx(-math.log(0.4 * 0.8 * 0.9) / 3)
    assert "The loss is 0.415. Without the mask it would be 0.709" in said()


def test_a_low_rank_change_has_few_parameters() -> None:
    assert low_rank(4096, 4096, 8) == 65_536
    assert "0.39 percent" in said()
    assert "rows [3, 4] and [6, 8]" in said()


def test_the_reward_model_loses_by_the_gap_alone() -> None:
    assert reward_loss(1.5, 0.5) == pytest.approx(math.log(1 + math.exp(-1)))
    assert reward_loss(11.5, 10.5) == pytest.approx(reward_loss(1.5, 0.5))
    assert preferred(0, 0) == 0.5
    assert "probability 0.818, and the loss is 0.201" in said()


def test_dpo_starts_at_the_toss_of_a_coin() -> None:
    assert dpo((-12.0, -10.0), (-12.0, -10.0), 0.1) == pytest.approx(math.log(2))
    assert dpo((-10.0, -11.0), (-12.0, -10.0), 0.1) == pytest.approx(math.log(1 + math.exp(-0.3)))
    assert "the loss is 0.554" in said()


def test_the_divergence_of_a_policy() -> None:
    assert 0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5) == pytest.approx(0.368, abs=5e-4)
    assert "the divergence is 0.368 nats" in said()


def test_ppo_is_flat_beyond_its_bounds() -> None:
    gains = [clipped_gain(ratio, 1.0, 0.2) for ratio in (0.5, 1.0, 1.2, 1.5, 2.0)]
    assert gains == pytest.approx([0.5, 1.0, 1.2, 1.2, 1.2])
    assert [clipped_gain(ratio, -1.0, 0.2) for ratio in (0.5, 0.8, 1.5)] == pytest.approx([-0.8, -0.8, -1.5])


def test_advantages_within_a_group() -> None:
    assert group([1, 0, 0, 0]).tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5])
    assert group([1, 0, 0, 1]).tolist() == pytest.approx(
        [math.sqrt(0.75), -math.sqrt(0.75)] * 1 + [-0.866025, 0.866025]
    )
    assert group([1, 1, 1, 1]).tolist() == [0, 0, 0, 0]
    assert "[0.866, −0.866, −0.866, 0.866]" in said()
