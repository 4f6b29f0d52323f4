"""TRL's own losses, called on tensors: methods of its trainers, read from its files, for importing trl takes 20 s."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import math
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from packaging.version import Version
from torch import Tensor, nn

from limpid.errors import ConfigError

KNOWN = "1.16"
"""The version whose losses these are."""


def method(file: str, name: str) -> Callable[..., Any]:
    """A method of the trainer in a file, compiled as it stands there.

    Raises  ConfigError where trl is not installed, or has no such method
    """
    spec = importlib.util.find_spec("trl")
    if spec is None or spec.origin is None:
        raise ConfigError(f"TRL's losses need trl: pip install 'trl=={KNOWN}.*'")
    path = Path(spec.origin).parent / "trainer" / file
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
    found = next((node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name), None)
    if found is None:
        raise ConfigError(
            f"trl {importlib.metadata.version('trl')} has no {name} in {file}: pip install 'trl=={KNOWN}.*'"
        )
    found.decorator_list = []
    known: dict[str, Any] = {
        "torch": torch, "F": F, "nn": nn, "math": math, "is_peft_model": lambda model: False, "nanmin": torch.min,
        "nanmax": torch.max, "Version": Version, "accelerate": SimpleNamespace(__version__="0"),
    }  # fmt: skip
    exec(compile(ast.Module([found], []), path, "exec"), known)
    compiled: Callable[..., Any] = known[name]
    return compiled


def called(function: Callable[..., Any], *arguments: Any) -> tuple[Tensor, dict[str, Any]]:
    """What a function returns, and its local variables as it does: every step on the way to a loss."""
    seen: dict[str, Any] = {}
    code = function.__code__

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "return" and frame.f_code is code:
            seen.update(frame.f_locals)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        loss = function(*arguments)
    finally:
        sys.setprofile(before)
    return loss, seen


def trainer(**options: Any) -> SimpleNamespace:
    """What the methods ask of a trainer: one process, no experts."""

    def same(x: Any, **_: Any) -> Any:
        return x

    accelerator = SimpleNamespace(
        device=torch.device("cpu"), gather=same, gather_for_metrics=same, reduce=same, num_processes=1
    )
    settled = {
        "accelerator": accelerator, "model": SimpleNamespace(training=True), "_metrics": {"train": defaultdict(list)},
        "_total_train_tokens": 0, "_tp_size": 1, "aux_loss_enabled": False, "ld_alpha": None,
        "precompute_ref_logps": True, "use_weighting": False, "calculate_KL": True, "compute_loss_func": None,
        "label_smoother": None, "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None, "use_vllm": False,
        "current_gradient_accumulation_steps": 1, "_entropy_bonus_enabled": False, **options,
    }  # fmt: skip
    return SimpleNamespace(**settled)


def model(log_p: Tensor, entropy: Tensor) -> Callable[..., SimpleNamespace]:
    """A model that gives these log-probabilities to the tokens of its batch, and has this entropy there."""
    zeros = torch.zeros_like(log_p)
    return lambda **_: SimpleNamespace(
        log_probs=log_p, entropy=entropy, mean_logits=zeros, is_top1=zeros.bool(), label_mask=log_p != 0
    )


def completions(log_p: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """The batch as TRL's collators make it; ids do not matter to a model that knows its answers."""
    ids = torch.zeros(len(log_p), log_p.shape[1] + 1, dtype=torch.long)
    whole = torch.cat([torch.zeros_like(mask[:, :1]), mask], 1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "completion_mask": whole.long()}


def metrics(of: SimpleNamespace) -> dict[str, float]:
    """What it logged."""
    return {name: float(values[-1]) for name, values in of._metrics["train"].items()}


def policy_trainer(log_p: Tensor, entropy: Tensor, options: dict[str, Any]) -> SimpleNamespace:
    """The trainer of GRPO or RLOO, whose model gives these log-probabilities; `options` as TRL names them."""
    settled = {"loss_type": "grpo", "importance_sampling_level": "token", "beta": 0.0, "epsilon_low": 0.2,
               "epsilon_high": 0.2, "max_completion_length": 1, "use_bias_correction_kl": True, **options}  # fmt: skip
    corrected = settled.pop("use_bias_correction_kl")
    return trainer(
        _get_per_token_logps_and_entropies=lambda *_, **__: (log_p, entropy, None),
        args=SimpleNamespace(delta=None, steps_per_generation=1, use_bias_correction_kl=corrected),
        **settled,
    )


def policy_inputs(mask: Tensor, advantages: Tensor, old: Tensor, reference: Tensor | None) -> dict[str, Tensor | None]:
    """The batch of GRPO and RLOO: the mask is of completions, prompts are of no interest to a model that answered."""
    ids = mask.long()
    return {
        "prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1], "completion_ids": ids, "completion_mask": mask,
        "advantages": advantages, "old_per_token_logps": old, "old_logps": (old * mask).sum(1),
        "num_items_in_batch": mask.sum(), "ref_per_token_logps": reference,
    }  # fmt: skip
