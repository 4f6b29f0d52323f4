"""What each policy loss estimates: its mean gradient over every answer there is, beside the gradient it claims."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from limpid.maths import alignment
from limpid.model.observe import FAST
from limpid.objectives import Policy

VOCAB, LENGTH = 3, 3
ANSWERS = np.array(list(itertools.product(range(VOCAB), repeat=LENGTH)))
CONTEXTS = sum(VOCAB**t for t in range(LENGTH))
RNG = np.random.default_rng(4)
REWARDS = RNG.standard_normal(len(ANSWERS))


def contexts() -> Tensor:
    """Which row of a table of next tokens stands before each token of each answer."""
    first = np.cumsum([0, *(VOCAB**t for t in range(LENGTH - 1))])
    return torch.tensor([[first[t] + sum(a[u] * VOCAB ** (t - 1 - u) for u in range(t)) for t in range(LENGTH)]
                         for a in ANSWERS])  # fmt: skip


def drawn_table(seed: int) -> Tensor:
    return torch.tensor(np.random.default_rng(seed).standard_normal((CONTEXTS, VOCAB)), requires_grad=True)


def token_log_p(table: Tensor) -> Tensor:
    """ln π of each token of every answer."""
    return table.log_softmax(-1)[contexts(), torch.tensor(ANSWERS)]


POLICY, OLD, REFERENCE = (drawn_table(seed) for seed in (1, 2, 3))
NOW, BEFORE, LEFT = (token_log_p(table).detach() for table in (POLICY, OLD, REFERENCE))


def gradient(loss: Tensor) -> np.ndarray:
    return torch.autograd.grad(loss, POLICY)[0].numpy()


def divergence() -> np.ndarray:
    """∇KL(π‖π₀) of whole answers."""
    whole = token_log_p(POLICY).sum(1)
    return gradient((whole.exp() * (whole - LEFT.sum(1))).sum())


def of_next_token(reverse: bool = False) -> np.ndarray:
    """∇ Σ_t KL of the next token, π‖π₀ or π₀‖π, what comes before being drawn from π and held fixed."""
    now, reference = POLICY.log_softmax(-1), REFERENCE.detach().log_softmax(-1)
    p, q = (reference, now) if reverse else (now, reference)
    each = (p.exp() * (p - q)).sum(-1)[contexts()]
    return gradient((NOW.sum(1).exp()[:, None] * each).sum())


def reward() -> np.ndarray:
    """-∇E r: what a loss that maximises the reward has for a gradient."""
    return -gradient(token_log_p(POLICY).sum(1).exp() @ torch.tensor(REWARDS))


def summed(level: str = "token", **choices: object) -> Policy:
    """Without a clip, the losses of an answer's tokens added up; an answer's ratio stands at each, and counts once."""
    over = "sequence" if level == "product" and not choices else "fixed_length"
    return Policy(level, "none", aggregation=over, max_completion_length=1, **choices)  # type: ignore[arg-type]


def mean_gradient(objective: Policy, advantages: np.ndarray, old: Tensor = NOW) -> np.ndarray:
    """Over all answers, as often as the old policy draws them."""
    log_p = token_log_p(POLICY)
    leaf = log_p.detach().requires_grad_()
    given = {"mask": torch.ones_like(leaf), "old_log_probabilities": old, "reference_log_probabilities": LEFT,
             "advantages": torch.tensor(advantages)}  # fmt: skip
    loss = objective.of_log_probabilities(leaf, given, 1, FAST).value
    (slopes,) = torch.autograd.grad(loss, leaf)
    return gradient((old.sum(1).exp()[:, None] * slopes * log_p).sum())


def penalty(kl: str, level: str = "token") -> Policy:
    return summed(level, beta=1, kl=kl)


NOTHING = np.zeros(ANSWERS.shape)


@pytest.mark.parametrize(
    ("objective", "claimed"),
    [
        (penalty("k1"), lambda: NOTHING[0, 0]),
        (penalty("k2"), of_next_token),
        (penalty("k3"), lambda: of_next_token(reverse=True)),
        (penalty("k3_ratio"), of_next_token),
        (penalty("k3_ratio", "product"), divergence),
    ],
    ids=[
        "k1: none",
        "k2: next token",
        "k3: the other direction",
        "k3 × ratio: next token",
        "k3 × answer's ratio: answer",
    ],
)
def test_a_penalty_in_the_loss_pulls_where_it_says(objective, claimed) -> None:
    np.testing.assert_allclose(mean_gradient(objective, NOTHING), np.broadcast_to(claimed(), POLICY.shape), atol=1e-12)


def test_k1_in_the_reward_is_the_divergence_of_answers() -> None:
    rewards = alignment.rewards_with_kl(np.zeros(len(ANSWERS)), NOW.numpy(), LEFT.numpy(), 1.0)
    advantages = alignment.generalised_advantages(rewards, NOTHING, 1.0, 1.0)
    np.testing.assert_allclose(mean_gradient(summed(), advantages), divergence(), atol=1e-12)


def test_only_the_ratio_of_the_whole_answer_is_right_after_the_policy_has_moved() -> None:
    whole = np.repeat(REWARDS[:, None], LENGTH, 1)
    for level, right in (("product", True), ("token", False), ("sequence", False)):
        loss = summed(level)
        np.testing.assert_allclose(mean_gradient(loss, whole), reward(), atol=1e-12)  # on policy each is
        off = np.abs(mean_gradient(loss, whole, BEFORE) - reward()).max()
        assert off < 1e-12 if right else off > 1e-2
    np.testing.assert_allclose(mean_gradient(penalty("k3_ratio", "product"), NOTHING, BEFORE), divergence(), atol=1e-12)


def test_groups_of_two_by_every_pair_there_is() -> None:
    first, second = (index.ravel() for index in np.meshgrid(*2 * [np.arange(len(ANSWERS))], indexing="ij"))
    p = NOW.sum(1).exp().numpy()
    pairs = np.stack([REWARDS[first], REWARDS[second]], 1)

    def mean_of(advantages: np.ndarray) -> np.ndarray:
        """Over all pairs; by symmetry that of the first answer alone."""
        of_first = np.bincount(first, weights=p[second] * advantages[:, 0])
        return mean_gradient(summed(), np.repeat(of_first[:, None], LENGTH, 1))

    np.testing.assert_allclose(mean_of(alignment.leave_one_out_advantages(pairs)), reward(), atol=1e-12)
    np.testing.assert_allclose(mean_of(alignment.group_advantages(pairs, scale="none")), reward() / 2, atol=1e-12)
    scaled = mean_of(alignment.group_advantages(pairs))
    cosine = (scaled * reward()).sum() / np.linalg.norm(scaled) / np.linalg.norm(reward())
    assert 0.5 < cosine < 0.999
