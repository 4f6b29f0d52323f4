"""Optimizers in one operation."""

from __future__ import annotations

import numpy as np

from limpid.maths.operation import Array
from limpid.operations.exact.exact import Exact, arithmetic


@arithmetic("_fused_adamw", "_fused_adam")
def fused_adam(
    self: list[Array], grads: list[Array], exp_avgs: list[Array], exp_avg_sqs: list[Array],
    max_exp_avg_sqs: list[Array], state_steps: list[Array], name: str, lr: float, beta1: float, beta2: float,
    weight_decay: float, eps: float, amsgrad: bool, maximize: bool, grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> dict[str, list[Exact]] | None:  # fmt: skip
    """Decay, moments, their correction and the step (Loshchilov and Hutter 2019, algorithm 2)."""
    if amsgrad or grad_scale is not None or (found_inf is not None and float(found_inf)):
        return None
    weights, firsts, seconds = [], [], []
    for x, g, m, v, step in zip(self, grads, exp_avgs, exp_avg_sqs, state_steps, strict=True):
        bar = -g if maximize else g
        if name == "_fused_adam" and weight_decay:
            bar = bar + weight_decay * x
        decayed = x * (1 - lr * weight_decay) if name == "_fused_adamw" else x
        first, second = m + (1 - beta1) * (bar - m), beta2 * v + (1 - beta2) * bar**2
        one, two = 1 - beta1 ** float(step), 1 - beta2 ** float(step)
        taken = lr / one * first / (np.sqrt(second) / np.sqrt(two) + eps)
        size = np.abs(m) + (1 - beta1) * (np.abs(bar) + np.abs(m))
        unsure = lr / one * size / (np.sqrt(second) / np.sqrt(two) + eps)
        weights.append(Exact(decayed - taken, 4 * np.abs(x) + 4 * np.abs(decayed) + 16 * unsure))
        firsts.append(Exact(first, 4 * size))
        seconds.append(Exact(second, 8 * second))
    return {"self": weights, "exp_avgs": firsts, "exp_avg_sqs": seconds}
