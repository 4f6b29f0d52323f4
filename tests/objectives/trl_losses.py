"""TRL's own losses, called on tensors: methods of its trainers, read from its files, for importing trl takes 20 s."""

import ast
import importlib.util
import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn


def method(file: str, name: str) -> Callable[..., object]:
    """A method of the trainer in a file, compiled as it stands there."""
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / "trainer" / file
    functions = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))
    module = ast.Module([next(node for node in functions if node.name == name)], [])
    known = {"torch": torch, "F": F, "nn": nn, "math": math, "is_peft_model": lambda model: False}
    exec(compile(module, path, "exec"), known)
    found: Callable[..., object] = known[name]  # type: ignore[assignment]
    return found


def trainer(**options: object) -> SimpleNamespace:
    """What the methods ask of a trainer: one process, no experts."""

    def same(x: torch.Tensor) -> torch.Tensor:
        return x

    accelerator = SimpleNamespace(device=torch.device("cpu"), gather=same, gather_for_metrics=same)
    return SimpleNamespace(
        accelerator=accelerator, model=SimpleNamespace(training=True), _metrics={"train": defaultdict(list)},
        _total_train_tokens=0, _tp_size=1, aux_loss_enabled=False, ld_alpha=None, precompute_ref_logps=True,
        use_weighting=False, calculate_KL=True, **options,
    )  # fmt: skip


def model(log_p: torch.Tensor, entropy: torch.Tensor) -> Callable[..., SimpleNamespace]:
    """A model that gives these log-probabilities to the tokens of its batch, and has this entropy there."""
    zeros = torch.zeros_like(log_p)
    return lambda **_: SimpleNamespace(log_probs=log_p, entropy=entropy, mean_logits=zeros, is_top1=zeros.bool())


def completions(log_p: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """The batch as TRL's collators make it; ids do not matter to a model that knows its answers."""
    ids = torch.zeros(len(log_p), log_p.shape[1] + 1, dtype=torch.long)
    whole = torch.cat([torch.zeros_like(mask[:, :1]), mask], 1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "completion_mask": whole.long()}


def metrics(of: SimpleNamespace) -> dict[str, float]:
    """What it logged."""
    return {name: float(values[-1]) for name, values in of._metrics["train"].items()}
