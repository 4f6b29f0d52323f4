"""Published numbers about update rules and learning-rate schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from limpid import maths
from limpid.equations.answers.kinds import Inputs, a, kind
from limpid.maths import UpdateInput, foundations


@kind("adamw.single_step", "Adam", "AdamW")
def _adamw(x: Inputs) -> Any:
    options = {name: x[name] for name in ("beta1", "beta2", "eps")}
    rules = {"adam": maths.Adam(0.0, **options), "adamw": maths.AdamW(x["adamw_weight_decay"], **options)}
    start = {"m": np.zeros(4), "v": np.zeros(4)}
    return {
        name: rule.apply(UpdateInput(a(x["x"]), a(x["grad"]), start, x["lr"], 1, True))[0]
        for name, rule in rules.items()
    }


@kind("adamw.linear_layer", "AdamW", "Linear")
def _adamw_layer(x: Inputs) -> Any:
    rule = maths.AdamW(x["weight_decay"], x["beta1"], x["beta2"], x["eps"])
    learned = {"weight": a(x["weight_out_by_in"]), "bias": a(x["bias"])}
    moments = {name: {"m": np.zeros_like(p), "v": np.zeros_like(p)} for name, p in learned.items()}
    for number, batch in enumerate(x["batches"], 1):
        y, saved = maths.Linear().forward(a(batch), learned["weight"], learned["bias"])
        bars = dict(zip(("weight", "bias"), maths.Linear().backward(np.ones_like(y), saved)[1:], strict=True))
        for name, bar in bars.items():
            learned[name], moments[name] = rule.apply(
                UpdateInput(learned[name], bar, moments[name], x["lr"], number, True)
            )
    return {name: p.tolist() for name, p in learned.items()}


@kind("adam.moments", "Adam")
def _moments(x: Inputs) -> Any:
    rule = maths.Adam(0.0, x["beta1"], x["beta2"], x["eps"])
    moved, moments = rule.apply(UpdateInput(a(x["x"]), a(x["grad"]), {"m": a(0.0), "v": a(0.0)}, x["lr"], 1, False))
    return {"x": moved, **moments}


@kind("sgd.linear_regression", "SGD", "Linear")
def _regression(x: Inputs) -> Any:
    rule, points, y = maths.SGD(), a(x["x"]), a(x["y"])
    weight, bias = np.zeros((1, points.shape[1])), np.zeros(1)
    for number in range(1, x["steps"] + 1):
        predicted, saved = maths.Linear().forward(points, weight, bias)
        _, weight_bar, bias_bar = maths.Linear().backward(2 * (predicted - y[:, None]), saved)
        weight = rule.apply(UpdateInput(weight, weight_bar, {}, x["lr"], number, False))[0]
        bias = rule.apply(UpdateInput(bias, bias_bar, {}, x["lr"], number, False))[0]
    return {"weight": weight[0].tolist(), "bias": float(bias[0])}


@kind("sgd.quadratic", "SGD")
def _quadratic(x: Inputs) -> Any:
    rule, at = maths.SGD(), a(x["x0"])
    for number in range(1, x["steps"] + 1):
        at = rule.apply(UpdateInput(at, 2 * (at - x["target"]), {}, x["lr"], number, False))[0]
    return float(at)


@kind("schedule.values", "warmup", "linear_schedule", "cosine_schedule")
def _schedules(x: Inputs) -> Any:
    shapes = {"linear": foundations.linear_schedule, "cosine": foundations.cosine_schedule}
    return {name: [_scheduled(x, shapes[name], step) for step in range(x["steps"])] for name in x["kinds"]}


@kind("schedule.cosine_with_warmup", "warmup", "cosine_schedule")
def _cosine(x: Inputs) -> Any:
    def waves(progress: float) -> float:
        return float(foundations.cosine_schedule(progress, x["cycles"]))

    return [_scheduled({**x, "steps": x["total"]}, waves, step) for step in x["steps"]]


def _scheduled(x: Inputs, shape: Callable[[float], float], step: int) -> float:
    """Learning rate after warm-up along a shape."""
    if step < x["warmup"]:
        return float(x["lr"] * foundations.warmup(step, x["warmup"]))
    return float(x["lr"] * shape((step - x["warmup"]) / (x["steps"] - x["warmup"])))
