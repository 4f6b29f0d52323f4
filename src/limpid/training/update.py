"""From gradients to new parameters: clipping, and the update rules as PyTorch runs them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from limpid.config import UpdateConfig

MOMENTS = {
    "adamw": {"m": "exp_avg", "v": "exp_avg_sq"},
    "adam": {"m": "exp_avg", "v": "exp_avg_sq"},
    "momentum": {"m": "momentum_buffer"},
    "sgd": {},
}
"""Our names of each rule's moments, and PyTorch's."""


def make_optimizer(model: nn.Module, update: UpdateConfig) -> torch.optim.Optimizer:
    """Fast twin of maths.update: weight decay on matrices, none on gains and biases."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": update.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (update.beta1, update.beta2)
    match update.optimizer:
        case "adamw":
            return torch.optim.AdamW(groups, lr=update.learning_rate, betas=betas, eps=update.eps, fused=True)
        case "adam":
            return torch.optim.Adam(groups, lr=update.learning_rate, betas=betas, eps=update.eps, fused=True)
        case "momentum":
            optimizer = torch.optim.SGD(groups, lr=update.learning_rate, momentum=update.beta1, dampening=update.beta1)
            for parameter in parameters:  # v = βv + (1-β)g from v = 0; PyTorch alone would start from v = g
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            return optimizer
        case "sgd":
            return torch.optim.SGD(groups, lr=update.learning_rate)


def clip(model: nn.Module, max_grad_norm: float | None) -> float:
    """Scale all gradients down to the global norm `max_grad_norm`; returns the norm before."""
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf if max_grad_norm is None else max_grad_norm)
    return float(norm)


def read_moments(model: nn.Module, optimizer: torch.optim.Optimizer, update: UpdateConfig) -> dict[str, Tensor]:
    """The optimizer's memory by our names, as `m/NAME` and `v/NAME`; zeros before the first update."""
    return {
        f"{ours}/{name}": optimizer.state[parameter].get(theirs, torch.zeros_like(parameter))
        for ours, theirs in MOMENTS[update.optimizer].items()
        for name, parameter in model.named_parameters()
    }


def write_moments(
    model: nn.Module, optimizer: torch.optim.Optimizer, update: UpdateConfig, moments: dict[str, Tensor], updates: int
) -> None:
    """Put the optimizer into the state it had after `updates` updates."""
    for name, parameter in model.named_parameters():
        state = optimizer.state[parameter]
        for ours, theirs in MOMENTS[update.optimizer].items():
            state[theirs] = moments[f"{ours}/{name}"].to(parameter.device, copy=True)
        if "v" in MOMENTS[update.optimizer]:
            state["step"] = torch.tensor(float(updates), device=parameter.device)
