"""Optimizers in one operation, and what a loss that was scaled asks for."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from limpid.maths.operation import Array
from limpid.operations.exact.exact import Exact, arithmetic

Written = dict[str, list[Exact]]


class _Gradient(NamedTuple):
    """The gradient that an update takes."""

    value: Array
    off: Array  # how far it may be off, in units of u
    decay: Array  # |λ x|: a kernel may round λ to the format of the parameters, as it may other numbers it is given
    unscaled: Array


def _gradient(g: Array, x: Array, scale: Array | None, maximize: bool, decay: float) -> _Gradient:
    """g / scale, its sign turned where the aim is more, + λ x."""
    unscaled = g if scale is None else g / scale
    value = (-unscaled if maximize else unscaled) + decay * x
    off = np.abs(unscaled) if scale is not None else np.zeros_like(g)
    pull = np.abs(decay * x)
    return _Gradient(value, off + 2 * (np.abs(unscaled) + pull) if decay else off, pull, unscaled)


def _kept(lists: dict[str, list[Array]]) -> Written:
    return {name: [Exact(one) for one in arrays] for name, arrays in lists.items()}


def _is_infinite(found_inf: Array | None) -> bool:
    return found_inf is not None and bool(np.any(found_inf))


def _with_gradients(found: Written, scale: Array | None, gradients: list[_Gradient]) -> Written:
    """A kernel leaves unscaled gradients where scaled ones were."""
    if scale is None:
        return found
    return found | {"grads": [Exact(one.unscaled, np.abs(one.unscaled)) for one in gradients]}


@arithmetic("_fused_adamw", "_fused_adam")
def fused_adam(
    self: list[Array], grads: list[Array], exp_avgs: list[Array], exp_avg_sqs: list[Array],
    max_exp_avg_sqs: list[Array], state_steps: list[Array], name: str, lr: Any, beta1: float, beta2: float,
    weight_decay: float, eps: float, amsgrad: bool, maximize: bool, grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> Written:  # fmt: skip
    """Decay, moments, their correction and the step (Loshchilov and Hutter 2019, algorithm 2)."""
    if _is_infinite(found_inf):
        return _kept({"self": self, "exp_avgs": exp_avgs, "exp_avg_sqs": exp_avg_sqs})
    rate, coupled = float(lr), weight_decay if name == "_fused_adam" else 0.0
    found: Written = {"self": [], "exp_avgs": [], "exp_avg_sqs": []}
    if amsgrad:
        found["max_exp_avg_sqs"] = []
    gradients = [_gradient(g, x, grad_scale, maximize, coupled) for g, x in zip(grads, self, strict=True)]
    for place, (x, m, v, step) in enumerate(zip(self, exp_avgs, exp_avg_sqs, state_steps, strict=True)):
        bar, off, _, _ = gradients[place]
        decayed = x if coupled else x * (1 - rate * weight_decay)
        first, second = m + (1 - beta1) * (bar - m), beta2 * v + (1 - beta2) * bar**2
        off_first = 4 * (np.abs(m) + (1 - beta1) * (np.abs(bar) + np.abs(m))) + (1 - beta1) * off
        off_second = 4 * second + 2 * (1 - beta2) * np.abs(bar) * off
        largest = np.maximum(max_exp_avg_sqs[place], second) if amsgrad else second
        one, two = 1 - beta1 ** float(step), 1 - beta2 ** float(step)
        root = np.sqrt(largest)
        off_root = np.divide(off_second, 2 * root, out=np.zeros_like(root), where=root > 0) + 2 * root
        below = root / np.sqrt(two) + eps
        taken = rate / one * first / below
        off_taken = rate / one * off_first / below + np.abs(taken) * (off_root / np.sqrt(two) / below + 8)
        found["self"].append(Exact(decayed - taken, 2 * np.abs(x) + 2 * np.abs(decayed) + off_taken))
        found["exp_avgs"].append(Exact(first, off_first))
        found["exp_avg_sqs"].append(Exact(second, off_second))
        if amsgrad:
            found["max_exp_avg_sqs"].append(Exact(largest, off_second))
    return _with_gradients(found, grad_scale, gradients)


@arithmetic("_fused_sgd")
def fused_sgd(
    self: list[Array], grads: list[Array], momentum_buffer_list: list[Array], weight_decay: float, momentum: float,
    lr: Any, dampening: float, nesterov: bool, maximize: bool, is_first_step: bool, grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> Written:  # fmt: skip
    """Momentum and the step as torch.optim.SGD has them: the first buffer is the gradient."""
    if _is_infinite(found_inf):
        return _kept({"self": self} | ({} if is_first_step else {"momentum_buffer_list": momentum_buffer_list}))
    found: Written = {"self": [], "momentum_buffer_list": []}
    gradients = [_gradient(g, x, grad_scale, maximize, weight_decay) for g, x in zip(grads, self, strict=True)]
    for place, (x, (bar, off, pull, _)) in enumerate(zip(self, gradients, strict=True)):
        way, unsure, given = bar, off, pull
        if momentum:
            if not is_first_step:
                before = momentum * momentum_buffer_list[place]
                way, unsure = before + (1 - dampening) * bar, off + 3 * (np.abs(before) + np.abs(bar))
                given = pull + np.abs(before) + np.abs(bar)
            found["momentum_buffer_list"].append(Exact(way, unsure, np.abs(way) + given))
            if nesterov:
                unsure = off + momentum * unsure + 3 * (np.abs(bar) + np.abs(momentum * way))
                given = pull + momentum * given + np.abs(momentum * way)
                way = bar + momentum * way
        taken, rounding = float(lr) * way, np.abs(x) + 3 * np.abs(float(lr) * way) + float(lr) * unsure
        found["self"].append(Exact(x - taken, rounding, np.abs(x - taken) + np.abs(taken) + float(lr) * given))
    return _with_gradients(found, grad_scale, gradients)


@arithmetic("_fused_adagrad")
def fused_adagrad(
    self: list[Array], grads: list[Array], state_sums: list[Array], state_steps: list[Array], lr: Any, lr_decay: float,
    weight_decay: float, eps: float, maximize: bool, grad_scale: Array | None = None, found_inf: Array | None = None,
) -> Written:  # fmt: skip
    """Squares added up, and the step over their root (Duchi, Hazan and Singer 2011)."""
    if _is_infinite(found_inf):
        return _kept({"self": self, "state_sums": state_sums})
    found: Written = {"self": [], "state_sums": []}
    gradients = [_gradient(g, x, grad_scale, maximize, weight_decay) for g, x in zip(grads, self, strict=True)]
    for x, s, step, (bar, off, pull, _) in zip(self, state_sums, state_steps, gradients, strict=True):
        whole = s + bar**2
        off_whole = 3 * whole + 2 * np.abs(bar) * off
        root = np.sqrt(whole)
        off_root = np.divide(off_whole, 2 * root, out=np.zeros_like(root), where=root > 0) + root
        rate = float(lr) / (1 + (float(step) - 1) * lr_decay)
        taken = rate * bar / (root + eps)
        off_taken = rate * off / (root + eps) + np.abs(taken) * (off_root / (root + eps) + 6)
        given = np.abs(taken) + 2 * rate * pull / (root + eps)
        found["self"].append(Exact(x - taken, np.abs(x) + off_taken, np.abs(x - taken) + given))
        found["state_sums"].append(Exact(whole, off_whole, whole + 2 * np.abs(bar) * pull))
    return _with_gradients(found, grad_scale, gradients)


@arithmetic("_amp_foreach_non_finite_check_and_unscale")
def unscaled(self: list[Array], found_inf: Array, inv_scale: Array) -> Written:
    """Gradients by one over the scale, and whether one of them is not finite."""
    is_infinite = any(not np.isfinite(one).all() for one in self)
    made = [one * inv_scale.reshape(()) for one in self]
    return {"self": [Exact(one, 2 * np.abs(one)) for one in made],
            "found_inf": [Exact(np.ones_like(found_inf) if is_infinite else found_inf)]}  # fmt: skip


@arithmetic("_amp_update_scale")
def scale_updated(
    self: Array, growth_tracker: Array, found_inf: Array, scale_growth_factor: float, scale_backoff_factor: float,
    growth_interval: int,
) -> Written:  # fmt: skip
    """Less after an infinity, more after so many steps without one (Micikevicius and others 2018)."""
    steps = growth_tracker + 1
    if np.any(found_inf):
        made, steps = self * scale_backoff_factor, np.zeros_like(steps)
    elif np.all(steps == growth_interval):
        made, steps = self * scale_growth_factor, np.zeros_like(steps)
        made = made if np.all(made <= np.finfo(np.float32).max) else self
    else:
        made = self
    return {"self": [Exact(made, np.abs(made))], "growth_tracker": [Exact(steps)]}
