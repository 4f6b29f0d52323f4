"""What TRL's own loss functions give on tensors of one's own: the numbers that tests/objectives/trl.json holds.

Importing TRL takes 20 seconds and loads its trainers; a loss is one method, which is taken from the source and called.
"""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limpid.comparison import trl_losses

FILE = Path(__file__).parents[2] / "tests" / "objectives" / "trl.json"

CASES: list[dict[str, Any]] = [
    {"trl": {"loss_type": "grpo"}, "policy": {"aggregation": "sequence"}},
    {"trl": {"loss_type": "bnpo"}, "policy": {}},
    {"trl": {"loss_type": "dapo", "epsilon_high": 0.28}, "policy": {"epsilon_high": 0.28}},
    {"trl": {"loss_type": "dr_grpo"}, "policy": {"aggregation": "fixed_length", "max_completion_length": 11}},
    {"trl": {"loss_type": "cispo", "epsilon_high": 1.3}, "policy": {"clip": "weight", "epsilon_high": 1.3}},
    {
        "trl": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
        "policy": {"aggregation": "sequence", "importance_sampling_level": "sequence"},
    },
    {
        "trl": {"loss_type": "dapo", "importance_sampling_level": "sequence", "beta": 0.1},
        "policy": {"importance_sampling_level": "sequence", "beta": 0.1},
    },
    {"trl": {"loss_type": "dapo", "beta": 0.1}, "policy": {"beta": 0.1}},
    {"trl": {"loss_type": "cispo", "epsilon_high": 1.3, "beta": 0.1},
     "policy": {"clip": "weight", "epsilon_high": 1.3, "beta": 0.1}},
    {
        "trl": {"loss_type": "grpo", "beta": 0.1, "use_bias_correction_kl": False},
        "policy": {"aggregation": "sequence", "beta": 0.1, "kl": "k3"},
    },
    {"trl": {"trainer": "rloo"}, "policy": {"importance_sampling_level": "product", "aggregation": "sequence"}},
]  # fmt: skip
"""The same loss in TRL's words and in ours."""


def inputs() -> dict[str, list[list[float]]]:
    """Answers of several lengths, drawn a while ago; float32."""
    rng = np.random.default_rng(7)
    mask = (np.arange(6) < np.array([[6], [3], [5], [1]])).astype(np.float32)
    log_p = -rng.gamma(2, 0.8, mask.shape)
    arrays = {
        "mask": mask,
        "log_probabilities": log_p,
        "old_log_probabilities": log_p + 0.25 * rng.standard_normal(mask.shape),
        "reference_log_probabilities": log_p + 0.5 * rng.standard_normal(mask.shape),
        "advantages": np.array([[1.3], [-0.7], [-1.1], [0.5]]) * mask,
    }
    return {name: (array * mask).astype(np.float32).tolist() for name, array in arrays.items()}


def theirs(case: dict[str, Any], given: dict[str, Tensor]) -> dict[str, Any]:
    """TRL's loss, its gradient along each token's log-probability, and what it logs."""
    options = {**case["trl"], "max_completion_length": 11}
    file = f"{options.pop('trainer', 'grpo')}_trainer.py"
    log_p, mask = given["log_probabilities"].clone().requires_grad_(), given["mask"]
    trainer = trl_losses.policy_trainer(log_p, torch.zeros_like(log_p), options)
    batch = trl_losses.policy_inputs(
        mask, given["advantages"][:, 0], given["old_log_probabilities"], given["reference_log_probabilities"]
    )
    loss = trl_losses.method(file, "_compute_loss")(trainer, None, batch)
    (slopes,) = torch.autograd.grad(loss, log_p)
    kept = ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "cispo_clip_ratio", "kl")
    metrics = {name: value for name, value in trl_losses.metrics(trainer).items() if name in kept}
    return {"loss": loss.item(), "gradient": slopes.tolist(), "metrics": metrics}


def main(words: list[str]) -> None:
    """Write the numbers down."""
    arrays = inputs()
    given = {name: torch.tensor(array) for name, array in arrays.items()}
    cases = [case | theirs(case, given) for case in CASES]
    told = {"trl": importlib.metadata.version("trl"), "inputs": arrays, "cases": cases}
    FILE.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(f"TRL {told['trl']}: {len(cases)} losses in {FILE}")
