"""What an update did, on a sample of each tensor: observed against what rate, moments and decay predict."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from limpid.doctor.devices import together
from limpid.doctor.weights import local, rate_of, sample

Pick = Callable[[Tensor], Tensor]
"""Some elements of a tensor."""
TENSORS, ELEMENTS = 96, 512
HALVES = (torch.float16, torch.bfloat16)
NEARLY_HALF = 0.45
"""Spacings: a change below half of one is lost to the nearest; a tenth is left for what moments in bfloat16 tell."""


@dataclass(frozen=True)
class Product:
    """Sums over samples that add up, for the cosine of two vectors."""

    product: float = 0.0
    one: float = 0.0  # squares
    other: float = 0.0

    def __add__(self, added: Product) -> Product:
        return Product(self.product + added.product, self.one + added.one, self.other + added.other)

    @property
    def cosine(self) -> float | None:
        """None where one of them is nothing."""
        return self.product / (math.sqrt(self.one) * math.sqrt(self.other)) if self.one and self.other else None


@dataclass
class UpdateSample:
    """One update, tensor by tensor. All lists are parallel to `names`."""

    names: list[str] = field(default_factory=list)
    dims: list[int] = field(default_factory=list)
    ratio: list[float] = field(default_factory=list)  # RMS of the change over RMS of the weights
    weight: list[float] = field(default_factory=list)  # RMS of the weights before
    change: list[float] = field(default_factory=list)  # RMS of the change
    predicted: list[float] = field(default_factory=list)  # RMS of the change that Adam's state gives; 0 if unknown
    rounded: list[bool] = field(default_factory=list)  # whether rounding makes of most changes none, or a spacing
    lost: list[float] = field(default_factory=list)  # share of elements with an update that left them as they were
    still: list[bool] = field(default_factory=list)  # nothing moved although there is a gradient
    step: list[float] = field(default_factory=list)  # RMS of rate times gradient, which SGD subtracts; 0 for Adam
    slopes: list[bool] = field(default_factory=list)  # whether any entry of the gradient is other than 0
    moves: list[bool] = field(default_factory=list)  # whether there is anything to subtract
    eps_share: list[float] = field(default_factory=list)  # median ε/(√v̂ + ε) where v̂ > 0; nan if unknown
    root_v: list[float] = field(default_factory=list)  # median √v̂ there
    rates: list[float] = field(default_factory=list)
    start: list[Tensor] = field(default_factory=list)  # the samples before the change
    with_gradient: Product = Product()  # the change, over all samples
    with_mean: Product = Product()  # and with the mean gradient that an optimizer keeps
    against: int = 0  # elements of narrow formats that moved where rounding to the nearest leaves them
    spacings: float = 0.0  # of such elements the change over the spacing of their format: nine in ten are below it

    @property
    def cosine(self) -> float:
        """Of gradient and change; 0 where one of them is nothing."""
        return self.with_gradient.cosine or 0.0

    @property
    def cosine_of_mean(self) -> float | None:
        """Of the mean gradient that the optimizer keeps and the change; None where it keeps none."""
        return self.with_mean.cosine

    def beside(self, other: UpdateSample) -> UpdateSample:
        """This update and another of the same step, by an optimizer that holds other tensors."""
        both = UpdateSample(against=self.against + other.against, spacings=max(self.spacings, other.spacings))
        for one in fields(UpdateSample):
            ours, theirs = getattr(self, one.name), getattr(other, one.name)
            if isinstance(ours, list | Product):
                setattr(both, one.name, ours + theirs)
        return both

    def matrices(self) -> list[int]:
        return [i for i, dims in enumerate(self.dims) if dims >= 2]

    def stands_still(self, name: str) -> bool:
        """Whether a tensor did not move, although it has a gradient and a rate above 0."""
        index = self.names.index(name) if name in self.names else None
        return index is not None and self.still[index] and self.rates[index] > 0

    def median_ratio(self) -> float:
        """Median over the matrices of the change over the weights."""
        values = sorted(self.ratio[i] for i in self.matrices() if self.weight[i] > 0)
        return values[len(values) // 2] if values else 0.0


@dataclass
class Before:
    """Samples taken before the update."""

    entries: list[tuple[str, Tensor, dict[str, Any], Tensor, Tensor]]  # name, parameter, group, weights, gradient


def before(optimizer: Any, names: dict[int, str]) -> Before:
    """Samples of up to 96 tensors that have gradients."""
    held = [
        (parameter, group)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None and not parameter.grad.is_sparse and local(parameter).numel()
    ]
    held = held[:: max(1, -(-len(held) // TENSORS))]
    weights = together([sample(p, ELEMENTS) for p, _ in held])
    gradients = together([sample(p.grad, ELEMENTS) for p, _ in held])
    return Before(
        [
            (names.get(id(p), "?"), p, group, w.clone(), g.clone())
            for (p, group), w, g in zip(held, weights, gradients, strict=True)
        ]
    )


def _picked(taken: Before, optimizer: Any) -> Pick:
    """Samples of the parameters, and of what the optimizer remembers of each, on the host."""
    tensors: list[Tensor] = []
    for _, parameter, *_ in taken.entries:
        state = optimizer.state.get(parameter, {})
        kept = state.values() if isinstance(state, dict) else ()
        tensors += [parameter, *(t for t in kept if isinstance(t, Tensor) and t.shape == parameter.shape)]
    samples = together([sample(tensor, ELEMENTS) for tensor in tensors])
    found = {id(tensor): one for tensor, one in zip(tensors, samples, strict=True)}
    return lambda tensor: found[id(tensor)]


def after(taken: Before, optimizer: Any) -> UpdateSample:
    """Compare with what is there now."""
    update = UpdateSample()
    along: list[Tensor] = []  # dot product of change and mean gradient, and their squares, of each that has one
    pick = _picked(taken, optimizer)
    for name, parameter, group, w, g in taken.entries:
        now = pick(parameter)
        delta, slope = now.float() - w.float(), g.float()
        size = float(w.float().pow(2).mean().sqrt())
        change = float(delta.pow(2).mean().sqrt())
        predicted, eps_share, root, direction = _adam(optimizer, parameter, group, w, pick)
        live = (g != 0) if direction is None else (direction != 0)
        count = int(live.sum())
        stuck = float(((delta == 0) & live).sum()) / count if count else 0.0
        rounded = parameter.dtype in HALVES
        if direction is not None and rounded:
            spacings = _in_spacings(direction, w)
            rounded = float(spacings.median()) < 1
            small = live & (spacings < NEARLY_HALF)  # these stay where they are if rounded to the nearest
            update.against += int((small & (delta != 0)).sum())
            if bool(small.any()):
                update.spacings = max(update.spacings, float(spacings[small].quantile(0.9)))
        update.names.append(name)
        update.start.append(w)
        update.dims.append(parameter.ndim)
        update.ratio.append(change / size if size else 0.0)
        update.weight.append(size)
        update.change.append(change)
        update.predicted.append(predicted)
        update.rounded.append(rounded)
        update.step.append(0.0 if predicted else float(group.get("lr") or 0.0) * float(slope.pow(2).mean().sqrt()))
        update.slopes.append(bool((g != 0).any()))
        update.moves.append(bool(count))
        update.lost.append(stuck)
        update.still.append(bool(count) and stuck == 1.0)
        update.eps_share.append(eps_share)
        update.root_v.append(root)
        update.rates.append(rate_of(group))
        sums = (delta * slope).sum(), slope.pow(2).sum(), delta.pow(2).sum()
        update.with_gradient += Product(*map(float, sums))
        mean = _mean_gradient(optimizer, parameter, group, pick)
        if mean is not None:
            along.append(torch.stack([(delta * mean).sum(), delta.pow(2).sum(), mean.pow(2).sum()]))
    if along:
        update.with_mean = Product(*torch.stack(along).sum(0).tolist())
    return update


def _in_spacings(change: Tensor, weight: Tensor) -> Tensor:
    """How many spacings of the weight's format a change is, element by element."""
    exponent = weight.float().frexp().exponent - 1
    spacing = torch.ldexp(torch.full_like(change, torch.finfo(weight.dtype).eps), exponent)
    return (change.abs() / spacing).masked_fill(weight == 0, math.inf)  # beside 0 numbers are as fine as can be


def lost_share(weight: Tensor, update: float) -> float:
    """Share of the elements that an update of this size, either way, leaves as they are."""
    w = sample(weight, 4096)
    down, up = ((w.float() + sign * update).to(w.dtype) == w for sign in (-1.0, 1.0))
    return float((down.double().mean() + up.double().mean()) / 2)


def moments(
    optimizer: Any, parameter: Tensor, group: dict[str, Any], pick: Pick = lambda t: t
) -> tuple[Tensor, Tensor] | None:
    """m̂ and √v̂ as they are after the update, of the elements that `pick` takes; None where the rule is not Adam's."""
    state = optimizer.state.get(parameter, {})
    if not {"exp_avg", "exp_avg_sq"} <= state.keys() or not {"betas", "eps"} <= group.keys():
        return None
    square = state.get("max_exp_avg_sq") if group.get("amsgrad") else state["exp_avg_sq"]  # AMSGrad: Reddi et al. 2018
    if square is None or state["exp_avg"].shape != parameter.shape or square.shape != parameter.shape:
        return None
    count = float(state.get("step", 1))
    beta1, beta2 = (float(b) for b in group["betas"])
    mean = pick(state["exp_avg"]).float() / (1 - beta1**count)
    return mean, (pick(square).float() / (1 - beta2**count)).sqrt()


def decoupled(optimizer: Any, group: dict[str, Any]) -> bool:
    """Whether weight decay acts on the weights, not through the gradient."""
    return type(optimizer).__name__.lower().startswith("adamw") or bool(group.get("decoupled_weight_decay"))


def adds_to_a_rule(optimizer: Any) -> bool:
    """Whether its class has a step of its own around that of a rule of torch's: what it changes is not that rule's."""
    kinds = type(optimizer).__mro__
    own = next((kind for kind in kinds if "step" in vars(kind)), object)
    rules = [k for k in kinds if k.__module__.startswith("torch.") and k is not torch.optim.Optimizer]
    return bool(rules) and not own.__module__.startswith("torch.")


def _mean_gradient(optimizer: Any, parameter: Tensor, group: dict[str, Any], pick: Pick) -> Tensor | None:
    """What a rule of torch's own remembers of the gradients, with their sign; None where it remembers nothing."""
    state = optimizer.state.get(parameter, {})
    mean = state.get("exp_avg", state.get("momentum_buffer"))
    if not type(optimizer).__module__.startswith("torch.") or mean is None or mean.shape != parameter.shape:
        return None
    return pick(mean).float() * (-1 if group.get("maximize") else 1)


def _adam(
    optimizer: Any, parameter: Tensor, group: dict[str, Any], w: Tensor, pick: Pick
) -> tuple[float, float, float, Tensor | None]:
    """RMS of the predicted change, median ε share, median √v̂, and the change itself, where the rule is Adam's."""
    state = optimizer.state.get(parameter, {})
    if "square_avg" in state and "alpha" in group:  # RMSprop
        root = pick(state["square_avg"]).float().sqrt()
        return 0.0, *_beside_eps(root, float(group["eps"])), None
    known = moments(optimizer, parameter, group, pick)
    if known is None:
        return 0.0, float("nan"), 0.0, None
    mean, root = known
    if _is_rectified(optimizer, state, group):
        return 0.0, float("nan"), 0.0, None
    eps, rate, decay = float(group["eps"]), float(group["lr"]), float(group.get("weight_decay") or 0)
    if type(optimizer).__name__ == "NAdam":  # which adds a part of the gradient itself: Dozat 2016, algorithm 2
        return 0.0, *_beside_eps(root, eps), None
    direction = rate * mean / (root + eps)
    if decoupled(optimizer, group):
        direction = direction + rate * decay * w.float()
    return float(direction.pow(2).mean().sqrt()), *_beside_eps(root, eps), direction


def _beside_eps(root: Tensor, eps: float) -> tuple[float, float]:
    """Median share of ε in √v̂ + ε, and median √v̂, of the elements that ever had a gradient; a mask may hold others."""
    live = root[root > 0]
    return (float((eps / (live + eps)).median()), float(live.median())) if live.numel() else (float("nan"), 0.0)


def _is_rectified(optimizer: Any, state: dict[str, Any], group: dict[str, Any]) -> bool:
    """Whether an update of RAdam is not Adam's by more than a factor: its variance is not known yet.

    Liu et al. 2019, algorithm 2, arXiv:1908.03265: below 2 / (1 - β₂) steps or so it steps along m̂, or by a fraction.
    """
    young = float(state.get("step", 1)) < 2 / (1 - float(group["betas"][1]))
    return type(optimizer).__name__.lower().startswith("radam") and young


def norm_of(gradients: list[Tensor]) -> Tensor:
    norms = torch._foreach_norm(gradients)
    where = norms[0].device
    return torch.stack([n.to(where, torch.float32) for n in norms]).norm()


def norms_of(tensors: list[Tensor]) -> list[float]:
    """The norm of each, with one wait for the device."""
    if not tensors:
        return []
    norms = torch._foreach_norm(tensors)
    found: list[float] = torch.stack([n.to(norms[0].device, torch.float32) for n in norms]).tolist()
    return found


def unclipped(clips: list[tuple[set[int], Tensor]], optimizer: Any) -> tuple[float, float]:
    """Norm of the gradients that no clip had, and of all before clipping."""
    had = set().union(*(ids for ids, _ in clips))
    held = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    missed = [local(p.grad) for p in held if id(p) not in had and not p.grad.is_sparse]
    left = float(norm_of(missed)) if missed else 0.0
    before = sum(float(norm) ** 2 for ids, norm in clips if any(id(p) in ids for p in held))
    return left, math.sqrt(left**2 + before)
