"""What TRL's own loss functions give on tensors of one's own: the numbers that tests/objectives/trl.json holds.

Importing TRL takes 20 seconds and loads its trainers; a loss is one method, which is taken from the source and called.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

FILE = Path(__file__).parents[2] / "tests" / "objectives" / "trl.json"
TRAINERS = {"grpo": "GRPOTrainer", "rloo": "RLOOTrainer"}

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


def method(trainer: str) -> Any:
    """A trainer's `_compute_loss`, from its source."""
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / "trainer" / f"{trainer}_trainer.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    owner = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == TRAINERS[trainer])
    found = next(node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == "_compute_loss")
    found.decorator_list = []
    room: dict[str, Any] = {"torch": torch, "nanmin": torch.min, "nanmax": torch.max}
    exec(compile(ast.Module([found], []), str(path), "exec"), room)
    return room["_compute_loss"]


def theirs(case: dict[str, Any], given: dict[str, Tensor]) -> dict[str, Any]:
    """TRL's loss, its gradient along each token's log-probability, and what it logs."""
    options = {"loss_type": "grpo", "importance_sampling_level": "token", "beta": 0.0, "epsilon_high": 0.2,
               "use_bias_correction_kl": True, "trainer": "grpo", **case["trl"]}  # fmt: skip
    log_p, mask = given["log_probabilities"].clone().requires_grad_(), given["mask"]

    def same(x: Any, **_: object) -> Any:
        return x

    accelerator = SimpleNamespace(gather=same, reduce=same, num_processes=1, gather_for_metrics=same)
    logged: dict[str, Any] = {"train": defaultdict(list)}
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (log_p, torch.zeros_like(log_p), None),
        aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None, use_vllm=False,
        epsilon_low=0.2, current_gradient_accumulation_steps=1, max_completion_length=11, accelerator=accelerator,
        _entropy_bonus_enabled=False, _metrics=logged, model=SimpleNamespace(training=True),
        args=SimpleNamespace(
            delta=None, steps_per_generation=1, use_bias_correction_kl=options["use_bias_correction_kl"]
        ),
        **{name: options[name] for name in ("loss_type", "importance_sampling_level", "beta", "epsilon_high")},
    )  # fmt: skip
    ids = mask.long()
    batch = {
        "prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1], "completion_ids": ids, "completion_mask": mask,
        "advantages": given["advantages"][:, 0], "old_per_token_logps": given["old_log_probabilities"],
        "old_logps": given["old_log_probabilities"].sum(1), "num_items_in_batch": mask.sum(),
        "ref_per_token_logps": given["reference_log_probabilities"],
    }  # fmt: skip
    loss = method(options["trainer"])(trainer, None, batch)
    (slopes,) = torch.autograd.grad(loss, log_p)
    kept = ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "cispo_clip_ratio", "kl")
    metrics = {name: float(values[0]) for name, values in logged["train"].items() if name in kept}
    return {"loss": loss.item(), "gradient": slopes.tolist(), "metrics": metrics}


def main(words: list[str]) -> None:
    """Write the numbers down."""
    arrays = inputs()
    given = {name: torch.tensor(array) for name, array in arrays.items()}
    cases = [case | theirs(case, given) for case in CASES]
    told = {"trl": importlib.metadata.version("trl"), "inputs": arrays, "cases": cases}
    FILE.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(f"TRL {told['trl']}: {len(cases)} losses in {FILE}")
