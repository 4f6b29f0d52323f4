"""PyTorch's way to the numbers of losses on preferences and rewards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from limpid.equations.formula_example import FormulaExample
from limpid.maths import alignment

SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "reverse_kl": lambda r: r,
    "forward_kl": lambda r: 1 - (-r).exp(),
    "js_divergence": lambda r: -((-r).expm1() / 2).log1p(),
    "alpha_divergence": lambda r: (r.exp() ** -0.5 - 1) / -0.5,
}


def margin(chosen: Tensor, rejected: Tensor, before_chosen: Tensor, before_rejected: Tensor) -> Tensor:
    return chosen - rejected - before_chosen + before_rejected


def smoothed(*log_p: Tensor) -> Tensor:
    h = 0.3 * margin(*log_p)
    return -0.9 * F.logsigmoid(h) - 0.1 * F.logsigmoid(-h)


def robust(*log_p: Tensor) -> Tensor:
    h = 0.3 * margin(*log_p)
    return (-0.9 * F.logsigmoid(h) + 0.1 * F.logsigmoid(-h)) / 0.8


def hinge(*log_p: Tensor) -> Tensor:
    return (1 - 0.3 * margin(*log_p)).relu()


def centred(chosen: Tensor, rejected: Tensor, lead: Tensor) -> Tensor:
    return -F.logsigmoid(chosen - rejected - lead) + 0.01 * (chosen + rejected).square()


def kahneman_tversky(policy: Tensor, reference: Tensor, judged: Tensor, baseline: Any = 0.2) -> Tensor:
    lead = policy - reference - baseline
    return torch.where(judged > 0, 1.5 * (1 - (0.3 * lead).sigmoid()), 1 - (-0.3 * lead).sigmoid())


def preference_examples(four: tuple[np.ndarray, ...], judged: np.ndarray) -> list[FormulaExample]:
    """At least one for every formula of preferences and rewards, on log-probabilities of answers and their labels."""
    rng, two, good = np.random.default_rng(12), four[:2], judged.astype(int)
    beta, weighted = {"beta": 0.3}, {"beta": 0.3, "desirable_weight": 1.5}
    mask = np.array([[0, 1, 1], [1, 1, 1], [0, 0, 1], [0, 1, 1]])
    x, last = rng.standard_normal((3, 5, 4)), np.array([2, 4, 0])
    divergences = [
        FormulaExample(f"score by {name}", alignment.divergence_score, two, twin, {"f_divergence_type": name})
        for name, twin in ((name, _of_ratio(SCORES[name])) for name in SCORES)
    ]
    return [
        FormulaExample("reward", alignment.reward_loss, two, lambda w, l: -F.logsigmoid(w - l)),
        FormulaExample(
            "reward, centred", alignment.reward_loss, four[:3], centred, {"center_rewards_coefficient": 0.01}
        ),
        FormulaExample("dpo", alignment.dpo, four, smoothed, {"beta": 0.3, "label_smoothing": 0.1}),
        FormulaExample("dpo without reference", alignment.dpo, two, lambda w, l: -F.logsigmoid(0.3 * (w - l)), beta),
        FormulaExample("robust", alignment.robust_preference, four, robust, beta),
        FormulaExample("implicit reward", alignment.implicit_reward, two, lambda x, y: 0.3 * (x - y), beta),
        FormulaExample("ipo", alignment.ipo, four, lambda *log_p: (margin(*log_p) - 1 / 0.6).square(), beta),
        FormulaExample("kto", alignment.kto, (*two, good), kahneman_tversky, {**weighted, "baseline": 0.2}),
        FormulaExample("kto, a baseline each", alignment.kto, (*two, good, rng.random(7)), kahneman_tversky, weighted),
        FormulaExample("hinge", alignment.hinge_preference, four, hinge, beta),
        *divergences,
        FormulaExample(
            "per token", alignment.per_token, (two[0][:2], mask), lambda x, m: x / m[1::2].sum(-1), {"start": 1}
        ),
        FormulaExample("at a position", alignment.at_position, (x, last), lambda x, t: x[torch.arange(3), t]),
        FormulaExample("score", alignment.score, (x[0], x[1][:1]), lambda x, w: F.linear(x, w).squeeze(-1)),
        FormulaExample("a score each", alignment.score, (x, x[1][:1]), lambda x, w: F.linear(x, w).squeeze(-1)),
    ]


def _of_ratio(score: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda policy, reference: score(policy - reference)
