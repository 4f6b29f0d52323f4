"""From gradients to new parameters: clipping, and the update rules as PyTorch runs them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from limpid.config import UpdateConfig
from limpid.model.spread import spread_like, whole
from limpid.quantities import MOMENTS, Parameter, update_rule
from limpid.training.muon import Muon, Products
from limpid.training.optimizers import SGD, Adam, AdamW, Plain
from limpid.training.parallel.pipeline import Pipeline

TORCH_NAMES = {
    "adamw": ("exp_avg", "exp_avg_sq"),
    "muon": ("momentum_buffer",),
    "adam": ("exp_avg", "exp_avg_sq"),
    "momentum": ("momentum_buffer",),
    "sgd": (),
}
"""What PyTorch's optimizers call the moments of each rule, in the order of `quantities.MOMENTS`."""


def make_optimizer(model: nn.Module, update: UpdateConfig) -> torch.optim.Optimizer:
    """Fast twin of maths.rules: weight decay on matrices, none on gains and biases."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if update.optimizer != "muon":
        return _of_one_rule(update.optimizer, [parameter for _, parameter in named], update)
    hidden = [parameter for name, parameter in named if is_hidden(name, parameter)]
    others = [parameter for name, parameter in named if not is_hidden(name, parameter)]
    rules = [(rule, moved) for rule, moved in (("muon", hidden), ("adamw", others)) if moved]
    return Both(*(_of_one_rule(rule, moved, update) for rule, moved in rules))


def _of_one_rule(rule: str, parameters: list[nn.Parameter], update: UpdateConfig) -> torch.optim.Optimizer:
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": update.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (update.beta1, update.beta2)
    match rule:
        case "adamw":
            return AdamW(groups, lr=update.learning_rate, betas=betas, eps=update.eps, fused=True)
        case "muon":
            return Muon(groups[:1], lr=update.learning_rate, adjust_lr_fn="match_rms_adamw")
        case "adam":
            return Adam(groups, lr=update.learning_rate, betas=betas, eps=update.eps, fused=True)
        case "momentum":
            optimizer = SGD(groups, lr=update.learning_rate, momentum=update.beta1, dampening=update.beta1)
            for parameter in parameters:  # v = βv + (1-β)g from v = 0; PyTorch alone would start from v = g
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            return optimizer
    return SGD(groups, lr=update.learning_rate)


class Both(Plain):
    """Two optimizers, each with its own parameters and rule, stepped as one."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.param_groups = [group for part in parts for group in part.param_groups]  # theirs, not copies
        for part in parts:
            part.state = self.state

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else closure()
        for part in self.parts:
            part.step()
        return loss


def is_hidden(name: str, parameter: Tensor) -> bool:
    """Whether muon moves this parameter itself."""
    return _described(name, parameter).hidden


def _described(name: str, parameter: Tensor) -> Parameter:
    """A tensor as an entry of the vocabulary, as far as update rules ask."""
    return Parameter(name, tuple(parameter.shape), (), "normal")


def clip(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    max_grad_norm: float | None,
    pipeline: Pipeline | None = None,
) -> float | Tensor:
    """Undo the loss scale and scale all gradients down to the global norm `max_grad_norm`; returns the norm before,
    which on a graphics processor is not waited for."""
    scaler.unscale_(optimizer)
    most = math.inf if max_grad_norm is None else max_grad_norm
    own = optimizer.norm() if isinstance(optimizer, AdamW) and pipeline is None else None
    if isinstance(optimizer, AdamW) and own is not None and math.isfinite(own):  # else as PyTorch, seen by who watches
        scale_down([p for group in optimizer.param_groups for p in group["params"]], most, own, optimizer)
        return own
    if pipeline is None:
        norm = whole(torch.nn.utils.clip_grad_norm_(model.parameters(), most))
        return float(norm) if norm.device.type == "cpu" else norm
    pipeline.share_overflow(scaler, optimizer)
    norm = pipeline.grad_norm()
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), most, norm)
    return float(norm)


def scale_down(parameters: list[Tensor], max_norm: float, total_norm: float, optimizer: AdamW) -> None:
    """Have the update scale these gradients, whose global norm is known, and finite, down to `max_norm`; who watches a
    run wraps this."""
    optimizer.factor = min(1.0, max_norm / (total_norm + 1e-6))


def update(
    optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, rate: float, *, finite: bool | Tensor
) -> bool:
    """Move every parameter by its rule, unless a gradient is not finite: then nothing moves. Returns whether it did.

    Where `finite` lies on a graphics processor the kernel of the update asks it there, and the step waits after it.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate
    if isinstance(finite, Tensor) and isinstance(optimizer, AdamW | Adam) and not scaler.is_enabled():
        optimizer.found_inf = (~finite).float()  # type: ignore[union-attr]  # where PyTorch's fused kernels look for it
        optimizer.step()
        del optimizer.found_inf  # type: ignore[union-attr]
    elif finite:
        scaler.step(optimizer)
    if scaler.is_enabled():
        scaler.update()  # float16: lowers the scale when a gradient overflowed
    return bool(finite)


def read_moments(model: nn.Module, optimizer: torch.optim.Optimizer, update: UpdateConfig) -> dict[str, Tensor]:
    """The optimizer's memory by our names, as `m/NAME` and `v/NAME`; zeros before the first update."""
    return {
        f"{ours}/{name}": optimizer.state[parameter].get(theirs, torch.zeros_like(parameter))
        for name, parameter, ours, theirs in _remembered(model, update)
    }


def write_moments(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    update: UpdateConfig,
    moments: Mapping[str, Tensor],
    updates: int,
) -> None:
    """Put the optimizer into the state it had after `updates` updates."""
    for name, parameter, ours, theirs in _remembered(model, update):
        state = optimizer.state[parameter]
        state[theirs] = spread_like(moments[f"{ours}/{name}"].to(parameter.device, copy=True), parameter)
        if ours == "v":
            state["step"] = torch.tensor(float(updates), device=parameter.device)


@contextmanager
def observed_products(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[dict[str, Tensor]]:
    """Muon's products of the next update, as `update/KIND/NAME`."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    seen: dict[str, Tensor] = {}

    def observe(parameter: Tensor, products: Products) -> None:
        seen.update({f"update/{kind}/{names[parameter]}": made for kind, made in products._asdict().items()})

    parts = optimizer.parts if isinstance(optimizer, Both) else (optimizer,)
    muons = [part for part in parts if isinstance(part, Muon)]
    for muon in muons:
        muon.observe = observe
    try:
        yield seen
    finally:
        for muon in muons:
            muon.observe = None


def _remembered(model: nn.Module, update: UpdateConfig) -> Iterator[tuple[str, Tensor, str, str]]:
    """Every parameter with each of its moments: our name and PyTorch's."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        rule = update_rule(update.optimizer, _described(name, parameter))
        for ours, theirs in zip(MOMENTS[rule], TORCH_NAMES[rule], strict=True):
            yield name, parameter, ours, theirs
