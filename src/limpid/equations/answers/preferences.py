"""Published numbers about objectives on preferences and rewards."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from limpid.equations.answers.kinds import Inputs, a, kind
from limpid.maths import alignment, foundations

PAIR = ("policy_chosen", "policy_rejected", "ref_chosen", "ref_rejected")


@kind("dpo.sigmoid", "dpo")
def _dpo(x: Inputs) -> Any:
    return alignment.dpo(*(x[name] for name in PAIR), x["beta"]).tolist()


@kind("dpo.mean_and_rewards", "dpo", "implicit_reward")
def _dpo_rewards(x: Inputs) -> Any:
    return {
        "loss": alignment.dpo(*(x[name] for name in PAIR), x["beta"]).mean(),
        "chosen_rewards": alignment.implicit_reward(x["policy_chosen"], x["ref_chosen"], x["beta"]).tolist(),
        "rejected_rewards": alignment.implicit_reward(x["policy_rejected"], x["ref_rejected"], x["beta"]).tolist(),
    }


@kind("dpo.with_sft_term", "dpo", "surprise")
def _dpo_sft(x: Inputs) -> Any:
    preference = alignment.dpo(x["margin"], 0.0, 0.0, 0.0, 1.0)
    return float(preference + x["sft_weight"] * x["tokens"] * foundations.surprise(1 / x["vocab"]))


@kind("ppo.clipped_loss", "ppo")
def _ppo(x: Inputs) -> Any:
    return float(alignment.ppo(math.log(x["ratio"]), 0.0, x["advantage"], x["epsilon"]))


@kind("kl.estimators", "kl_estimate")
def _estimators(x: Inputs) -> Any:
    """Bias and standard deviation over the true divergence, samples drawn from the second of two normal laws.

    Expectations by Gauss-Hermite quadrature, exact here: ratios of normal densities are exponentials.
    """
    points, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    sampled, other = -((points) ** 2) / 2, -((points - x["shift"]) ** 2) / 2
    true = x["shift"] ** 2 / 2
    found = {}
    for name in ("k1", "k2", "k3"):
        values = alignment.kl_estimate(sampled, other, name)
        mean = float(values @ weights)
        spread = float(np.sqrt(np.square(values - mean) @ weights))
        found[name] = [mean / true - 1, spread / true]
    return found


@kind("rl.rewards_with_kl", "rewards_with_kl")
def _kl_rewards(x: Inputs) -> Any:
    return alignment.rewards_with_kl(x["scores"], x["logprobs"], x["ref_logprobs"], x["kl_coefficient"]).tolist()


@kind("rl.lambda_returns", "lambda_returns")
def _returns(x: Inputs) -> Any:
    return alignment.lambda_returns(x["rewards"], x["discounts"], x["values"], x["lam"]).tolist()


@kind("grpo.objective_importance_weighted_k3", "grpo")
def _grpo(x: Inputs) -> Any:
    old = np.log(a(x["old"]))
    return alignment.grpo(
        old + np.log(a(x["rhos"])), old, np.log(a(x["ref"])), x["advantages"], x["epsilon"], x["beta"],
        importance_weighted=True,
    )  # fmt: skip
