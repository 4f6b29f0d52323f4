"""Advantages beside what they mean, written out with PyTorch as TRL and verl do."""

import numpy as np
import pytest
import torch

from limpid.errors import DomainError, ShapeError
from limpid.maths import alignment

REWARDS = np.array([[1.0, 0.0, 0.0, 0.5], [0.2, 0.2, 0.2, 0.2], [3.0, -1.0, 0.5, 0.5]])
RNG = np.random.default_rng(3)
MASK = np.array([[0, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1], [0, 0, 1, 0, 0, 0]], dtype=np.float64)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_groups_are_scaled_as_trl_scales_them(scale: str) -> None:
    rewards = torch.tensor(REWARDS)
    centred = rewards - rewards.mean(1, keepdim=True)
    std = {"group": rewards.std(1, keepdim=True), "batch": rewards.std(), "none": torch.tensor(1 - 1e-4)}[scale]
    ours = alignment.group_advantages(REWARDS, scale=scale, eps=0.0 if scale == "none" else 1e-4)
    np.testing.assert_allclose(ours, (centred / (std + 1e-4)).numpy(), rtol=0, atol=1e-12)
    assert not ours[1].any()


def test_an_answer_alone_teaches_nothing_and_is_refused() -> None:
    for function in (alignment.group_advantages, alignment.leave_one_out_advantages):
        with pytest.raises(DomainError, match="at least two answers"):
            function([[1.0], [2.0]])
    with pytest.raises(DomainError, match="choose one of group, batch, none"):
        alignment.group_advantages(REWARDS, scale="prompt")


def test_leaving_one_out_is_the_group_mean_but_for_a_factor() -> None:
    ours = alignment.leave_one_out_advantages(REWARDS)
    np.testing.assert_allclose(ours, 4 / 3 * alignment.group_advantages(REWARDS, scale="none"), atol=1e-14)


def test_padding_is_passed_over_as_verl_passes_over_it() -> None:
    rewards, values = RNG.standard_normal(MASK.shape), RNG.standard_normal(MASK.shape)
    gamma, lam = 0.9, 0.8
    next_value, running, found = np.zeros(3), np.zeros(3), np.zeros(MASK.shape)
    for t in reversed(range(MASK.shape[1])):  # verl, core_algos.compute_gae_advantage_return
        here = rewards[:, t] + gamma * next_value - values[:, t] + gamma * lam * running
        next_value = values[:, t] * MASK[:, t] + (1 - MASK[:, t]) * next_value
        running = here * MASK[:, t] + (1 - MASK[:, t]) * running
        found[:, t] = running
    ours = alignment.generalised_advantages(rewards, values, gamma, lam, mask=MASK)
    np.testing.assert_allclose(ours, found * MASK, atol=1e-13)
    alone = alignment.generalised_advantages(rewards[0, 1:4], values[0, 1:4], gamma, lam)
    np.testing.assert_allclose(ours[0, 1:4], alone, atol=1e-13)


def test_without_discount_the_advantage_is_the_return_less_the_value() -> None:
    rewards, values = RNG.standard_normal(MASK.shape) * MASK, RNG.standard_normal(MASK.shape)
    returns = np.cumsum(rewards[:, ::-1], 1)[:, ::-1]
    ours = alignment.generalised_advantages(rewards, values, 1.0, 1.0, mask=MASK)
    np.testing.assert_allclose(ours, (returns - values) * MASK, atol=1e-13)
    with pytest.raises(ShapeError, match="mask"):
        alignment.generalised_advantages(rewards, values, mask=MASK[:, :2])


def test_global_advantages_are_whitened_returns() -> None:
    rewards = RNG.standard_normal(MASK.shape)
    ours = alignment.global_advantages(rewards, MASK, 0.9)
    later = [sum(0.9**k * rewards[0, t + k] for k in range(4 - t)) for t in range(1, 4)]
    there = MASK > 0
    assert not ours[~there].any()
    assert ours[there].mean() == pytest.approx(0, abs=1e-12)
    assert ours[there].var(ddof=1) == pytest.approx(1, abs=1e-7)
    slopes = np.diff(ours[0, 1:4]) / np.diff(later)
    np.testing.assert_allclose(slopes, slopes[0], rtol=1e-10)
    with pytest.raises(DomainError, match="at least two"):
        alignment.global_advantages(rewards, np.zeros(MASK.shape))
