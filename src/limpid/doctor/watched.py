"""What the doctor was given to watch; and schedules, run ahead of time on an optimizer that holds nothing."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from limpid.doctor.baseline import Baseline
from limpid.doctor.chat_form import ChatForm
from limpid.doctor.devices import same_numbers
from limpid.doctor.expected import Expected
from limpid.doctor.model_info import ModelInfo
from limpid.doctor.shield import Obstacle, Shield
from limpid.doctor.tuning import Tuning
from limpid.doctor.undisturbed import undisturbed


@runtime_checkable
class Scaler(Protocol):
    """What scales a loss against underflow, as torch.amp.GradScaler does."""

    def is_enabled(self) -> bool:
        """Whether it scales at all."""

    def get_scale(self) -> float:
        """What the loss is multiplied by."""


@dataclass
class Watched:
    """A model and what trains it."""

    info: ModelInfo
    optimizers: list[Any] = field(default_factory=list)
    schedulers: list[Any] = field(default_factory=list)
    scaler: Scaler | None = None
    total_steps: int | None = None
    pretrained: bool | None = None
    steps_per_epoch: float | None = None
    tuning: Tuning | None = None
    tokenizer: Any = None
    baseline: Baseline | None = None
    expected: Expected | None = None

    def __post_init__(self) -> None:
        self.given_rates = {  # of each group, as it was given before any schedule
            index: float(rate) for index, group in self.groups if (rate := given_rate(group)) is not None
        }

    @cached_property
    def chat_form(self) -> ChatForm:
        """How the model is talked to, as far as its tokenizer or its own configurations say."""
        generation = getattr(self.info.called, "generation_config", None)
        declared = self.info.declared("eos_token_id"), getattr(generation, "eos_token_id", None)
        return ChatForm(self.tokenizer, declared)

    def is_all_the_data(self, different: int, rows: int) -> bool:
        """Whether so many different rows are all that the data has, at `rows` a step; False where nobody knows."""
        return self.steps_per_epoch is not None and different > self.steps_per_epoch * rows - 0.5

    @property
    def planned(self) -> int | None:
        """Updates that the run is to make, as given or as its schedule says."""
        return self.total_steps or planned_steps(self.schedulers)

    @property
    def processes(self) -> int:
        """How many processes train together."""
        import torch.distributed as dist

        return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1

    @property
    def scaling(self) -> bool:
        """Whether the loss is scaled against underflow."""
        return self.scaler is not None and bool(self.scaler.is_enabled())

    @property
    def scale(self) -> float:
        return float(self.scaler.get_scale()) if self.scaler is not None and self.scaling else 1.0

    @property
    def groups(self) -> list[tuple[int, dict[str, Any]]]:
        """The parameter groups of all optimizers, numbered."""
        return list(enumerate(group for optimizer in self.optimizers for group in optimizer.param_groups))

    @property
    def held(self) -> list[nn.Parameter]:
        """Every tensor that an optimizer holds, as often as it does."""
        return [parameter for _, group in self.groups for parameter in group["params"]]

    @cached_property
    def masters(self) -> set[int]:
        """Identities of held tensors that are the model's half-precision weights before their rounding, in order."""
        others = [p for p in self.held if id(p) not in self.info.names]
        ours = [p for p in self.info.parameters.values() if p.requires_grad]
        if not others or len(others) != len(ours):
            return set()
        exact = all(
            other.shape == p.shape and other.dtype.itemsize > p.dtype.itemsize and same_numbers(p, other.to(p.dtype))
            for other, p in zip(others, ours, strict=True)
        )
        return {id(p) for p in others} if exact else set()

    @cached_property
    def decayed(self) -> list[tuple[dict[str, Any], Tensor, str]]:
        """The model's trained parameters with weight decay: group, parameter, name."""
        return [
            (group, parameter, self.info.names[id(parameter)])
            for _, group in self.groups
            for parameter in (group["params"] if group.get("weight_decay") else ())
            if id(parameter) in self.info.names and parameter.requires_grad
        ]

    @cached_property
    def decayed_vectors(self) -> tuple[list[str], float]:
        """Names of those with fewer than 2 dimensions, and the largest decay of any."""
        vectors = [(name, float(group["weight_decay"])) for group, p, name in self.decayed if p.ndim < 2]
        return [name for name, _ in vectors], max((decay for _, decay in vectors), default=0.0)

    @cached_property
    def groups_of_vectors(self) -> list[int]:
        """Numbers of the groups that decay such tensors."""
        groups = {id(group) for group, p, _ in self.decayed if p.ndim < 2}
        return [index for index, group in self.groups if id(group) in groups]

    @property
    def peak_rate(self) -> float:
        """The rate that the schedules were given to reach."""
        return peak(self.schedulers, [group for _, group in self.groups])

    def rates_to_come(self, steps: int) -> list[float] | None:
        """The largest rate at each of so many updates, if the schedule advances once per update."""
        rates = self.rates_of_groups(self.schedulers[0], steps) if self.schedulers else None
        return None if rates is None else [max(each, default=0.0) for each in rates]

    @staticmethod
    def rates_of_groups(scheduler: Any, steps: int) -> list[list[float]] | None:
        """The rates of a scheduler's groups at each of so many updates; None where it cannot be run ahead."""
        try:
            with undisturbed(Shield(functions=[scheduler, *functions_of(scheduler)])):
                return simulated(scheduler, steps)
        except Obstacle:  # a rate that is drawn from an iterator is known once it is used
            return None

    def sentinels(self) -> list[nn.Parameter]:
        """Three small parameters that stand for all: first, middle, last of those that are trained.

        What no optimizer has, none can clear.
        """
        held = {id(parameter) for parameter in self.held}
        trained = [p for p in self.info.parameters.values() if p.requires_grad and (not held or id(p) in held)]
        trained = [p for p in trained if not is_lazy(p)]
        small = sorted(trained, key=lambda p: p.numel())[: max(3, len(trained) // 4)]
        return [small[i] for i in sorted({0, len(small) // 2, len(small) - 1})] if small else []


def as_list(given: Any, inside: str) -> list[Any]:
    """None, one object or several, as a list; accelerate's wrappers hold the object itself as their `inside`."""
    several = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    return [getattr(entry, inside, entry) for entry in several]


def functions_of(scheduler: Any) -> list[Any]:
    """The functions of the user's that a schedule calls."""
    parts = getattr(scheduler, "_schedulers", [])
    return [*getattr(scheduler, "lr_lambdas", []), *(function for part in parts for function in functions_of(part))]


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


def simulated(scheduler: Any, steps: int) -> list[list[float]] | None:
    """The rates of the groups at the coming `steps` updates if the schedule advances once per update."""
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
            group.update(
                {k: copy.copy(v) for k, v in given.items() if k != "params"} | {"lr": float(given["lr"] or 0.0)}
            )
            for key in ("foreach", "fused", "differentiable", "maximize", "nesterov"):
                group[key] = False
            group.update(momentum=0.0, dampening=0.0, weight_decay=0.0)
        clone = _cloned(inner, dummy)
        for _ in range(steps):
            rates.append([float(group["lr"]) for group in dummy.param_groups])
            clone.step()
    return rates


def given_rate(group: dict[str, Any]) -> Any:
    """The rate that a group was given, before any schedule; None where the optimizer finds its own."""
    return group.get("initial_lr") or group.get("lr")


def peak(schedulers: list[Any], groups: list[dict[str, Any]]) -> float:
    """The rate that a schedule was given to reach."""
    rates = [float(rate) for group in groups if (rate := group.get("max_lr") or given_rate(group)) is not None]
    for scheduler in schedulers:
        rates.extend(float(rate) for rate in getattr(scheduler, "base_lrs", []))
    return max(rates, default=0.0)


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
