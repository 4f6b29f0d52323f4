"""Schedules run ahead of time, on an optimizer that holds nothing."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch


def planned_steps(schedulers: list[Any]) -> int | None:
    """The number of updates that a schedule was made for, where it says so."""
    for scheduler in schedulers:
        for entry in [scheduler, *getattr(scheduler, "_schedulers", [])]:
            total = getattr(entry, "total_steps", None) or getattr(entry, "T_max", None)
            if isinstance(total, int) and total > 1:
                offset = getattr(scheduler, "_milestones", [0])
                return total + (offset[-1] if entry is not scheduler else 0)
            for function in getattr(entry, "lr_lambdas", []):
                words = getattr(function, "keywords", None) or {}
                if isinstance(words.get("num_training_steps"), int):
                    return int(words["num_training_steps"])
    return None


def simulated(scheduler: Any, steps: int) -> list[float] | None:
    """The largest rate of the coming `steps` updates if the schedule advances once per update."""
    inner = getattr(scheduler, "scheduler", scheduler)  # accelerate's wrapper
    real = getattr(inner, "optimizer", None)
    if real is None:
        return None
    groups = [
        {
            "params": [torch.zeros(1)],
            **{k: v for k, v in group.items() if k in ("lr", "initial_lr", "max_lr", "min_lr")},
        }
        for group in real.param_groups
    ]
    rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dummy = torch.optim.SGD(groups, lr=0.0)
        for group, given in zip(dummy.param_groups, real.param_groups, strict=True):
            group.update({k: copy.copy(v) for k, v in given.items() if k != "params"} | {"lr": float(given["lr"])})
            for key in ("foreach", "fused", "differentiable", "maximize", "nesterov"):
                group[key] = False
            group.update(momentum=0.0, dampening=0.0, weight_decay=0.0)
        clone = _cloned(inner, dummy)
        for _ in range(steps):
            rates.append(max(float(group["lr"]) for group in dummy.param_groups))
            clone.step()
    return rates


def peak(schedulers: list[Any], groups: list[dict[str, Any]]) -> float:
    """The rate that a schedule was given to reach."""
    found = [float(group.get("max_lr") or group.get("initial_lr") or group["lr"]) for group in groups]
    for scheduler in schedulers:
        found.extend(float(rate) for rate in getattr(scheduler, "base_lrs", []))
    return max(found, default=0.0)


def _cloned(scheduler: Any, optimizer: Any) -> Any:
    clone = copy.copy(scheduler)
    for key, value in vars(scheduler).items():
        if key == "optimizer":
            clone.optimizer = optimizer
        elif key == "_schedulers":
            clone._schedulers = [_cloned(entry, optimizer) for entry in value]
        elif isinstance(value, list | dict | tuple) and key not in ("lr_lambdas",):
            setattr(clone, key, copy.deepcopy(value))
    for name in ("step", "get_lr"):  # bound to the original where somebody wrapped them
        clone.__dict__.pop(name, None)
    return clone
