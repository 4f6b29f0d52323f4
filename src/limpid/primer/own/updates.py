"""Exercises about gradients, updates and stored weights, with numbers of a recorded step."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from limpid.errors import ConfigError
from limpid.maths.operation import Array
from limpid.primer.own.draw import Own, matrix, moved_matrix, number, own, rounded
from limpid.quantities import parameters
from limpid.tracing.trace import Trace

LEAST = 1e-4
"""Share of all squares that a parameter has whose gradient is set beside the rest."""
MORE = 4
"""Times as many examples as the step had."""


def _large(array: Array, rng: np.random.Generator) -> tuple[int, int]:
    """Of a matrix, one of the eight entries that are farthest from 0."""
    flat = np.argsort(np.abs(array), axis=None)[-8:]
    row, column = np.unravel_index(int(rng.choice(flat)), array.shape)
    return int(row), int(column)


def gap_of_a_weight(trace: Trace, rng: np.random.Generator) -> Own:
    """A weight, without its sign."""
    name, rows, columns = matrix(trace, rng)
    at = int(rng.integers(rows)), int(rng.integers(columns))
    weight = abs(trace.array(name, at).item())
    held = float(np.spacing(np.asarray(weight, ml_dtypes.bfloat16)))
    where = f"{name}[{at[0]}, {at[1]}], without its sign"
    return own({"x": number(weight)}, f"x is {where}.", where, held)


def first_update(trace: Trace, rng: np.random.Generator) -> Own:
    """A weight, its gradient, and what AdamW makes of them, in the first update of a run."""
    update, meta = trace.record.config.update, trace.record.meta
    if update.optimizer != "adamw" or meta["update_number"] != 1:
        raise ConfigError(f"this step is update {meta['update_number']} by {update.optimizer}, and the first one by "
                          "AdamW is asked for: record it with run.record_steps = [1], or take of worked")  # fmt: skip
    name, slope = moved_matrix(trace, rng)
    at = _large(slope, rng)
    numbers = {"theta": number(trace.array(name, at)), "g": number(slope[at]), "rate": float(meta["learning_rate"]),
               "decay": float(update.weight_decay)}  # fmt: skip
    return own(numbers, f"θ is {name}[{at[0]}, {at[1]}].", f"update({name})[{at[0]}, {at[1]}]",
               trace.array(f"update({name})", at))  # fmt: skip


def gradient_step(trace: Trace, rng: np.random.Generator) -> Own:
    """A weight and its gradient, with a rate that makes the step a visible one."""
    name, slope = moved_matrix(trace, rng)
    at = _large(slope, rng)
    weight, g = trace.array(name, at).item(), slope[at].item()
    rate = 10.0 ** -math.floor(math.log10(abs(g)) + 1)
    of = f"The weight is {name}[{at[0]}, {at[1]}]; the rate is a larger one than the step's {_rate(trace)}."
    return own({"w": number(weight), "rate": rate, "g": number(g)}, of,
               f"{name}[{at[0]}, {at[1]}] and grad({name})[{at[0]}, {at[1]}]", weight - rate * g)  # fmt: skip


def _rate(trace: Trace) -> str:
    return f"{trace.record.meta['learning_rate']:.3g}"


def clip_factor(trace: Trace, rng: np.random.Generator) -> Own:
    """The length of one parameter's gradient and that of all others, whose length together is the global norm."""
    every = [one.name for one in parameters(trace.record.config.model)]
    squares = {
        name: float(np.square(trace.array(f"grad({name})")).sum())
        for name in every
        if trace.tensor(f"grad({name})")[1] in trace.record.names
    }
    total = sum(squares.values())
    fit = [name for name, one in squares.items() if LEAST * total < one < (1 - LEAST) * total]
    if not fit:
        raise ConfigError("a single parameter of this step has nearly all of the gradient: take another step")
    name = str(rng.choice(fit))
    limit, held = trace.record.config.update.max_grad_norm, math.sqrt(total)
    limit = float(limit) if isinstance(limit, float) and limit < held else float(f"{held / 2:.1g}")
    of = f"Lengths stand here for whole gradients: that of {name}, and that of all others together."
    a, b = (rounded(np.array([math.sqrt(one)])) for one in (squares[name], total - squares[name]))
    numbers = {"a": a, "b": b, "limit": limit}
    return own(numbers, of, "grad of every parameter, in one list", limit / held)


def kernel_change(trace: Trace, rng: np.random.Generator) -> Own:
    """Two weights between a vector and one logit: the logit's gradient at them is the vector."""
    model = trace.record.config.model
    if model.head != "vocabulary" or "log_probabilities" not in trace.names():
        raise ConfigError("this step has no logits of its own: take one that learns the next token")
    last = "final_norm" if "final_norm" in trace.names() else f"blocks.{model.num_layers - 1}.norm2"
    row = int(rng.integers(trace.array("tokens").shape[0]))
    a, b = (int(one) for one in rng.choice(trace.array("tokens").shape[1], 2, replace=False))
    start = int(rng.integers(model.d_model - 1))
    features = slice(start, start + 2)
    first, second = (trace.array(last, (row, at, features)) for at in (a, b))
    likely = trace.array("log_probabilities", (row, b))
    target = int(trace.array("targets", (row, b)))
    token = int(np.argmax(np.where(np.arange(len(likely)) == target, -np.inf, likely)))
    r, rate = math.exp(likely[token]), float(rng.choice([0.1, 0.5, 1.0]))
    of = (
        f"The output is the logit of token {token}, A and B are positions {a} and {b} of row {row}, the two weights "
        f"those of features {start} and {start + 1}; as a wrong token, it is too high by its probability."
    )
    numbers = {"first": rounded(first), "second": rounded(second), "r": number(r), "rate": rate}
    where = f"{last}[{row}, {a}, {start}:{start + 2}] and [… {b} …], and log_probabilities[{row}, {b}, {token}]"
    return own(numbers, of, where, -rate * float(first @ second) * r)


def window(trace: Trace, _: np.random.Generator) -> Own:
    beta = trace.record.config.update.beta2
    return own({"beta": beta}, "β is the optimizer's beta2.", "the optimizer's beta2", 1 / (1 - beta))


def batch_noise(trace: Trace, rng: np.random.Generator) -> Own:
    """A weight's gradient: the mean of its squares less the square of its mean, as AdamW has them."""
    update, done = trace.record.config.update, int(trace.record.meta["update_number"])
    if update.optimizer not in ("adam", "adamw") or done < 2:
        raise ConfigError(f"this step is update {done} by {update.optimizer}, and means of several gradients are asked "
                          "for: take a later step of adam or adamw")  # fmt: skip
    name, _ = moved_matrix(trace, rng)
    mean = trace.array(f"m({name})") / (1 - update.beta1**done)
    square = trace.array(f"v({name})") / (1 - update.beta2**done)
    at = _large(np.maximum(square - mean**2, 0.0), rng)
    v = (square - mean**2)[at].item()
    b = trace.array("tokens").shape[0]
    of = f"The variance is that of {name}[{at[0]}, {at[1]}] over the last steps, as AdamW's two means have it."
    where = f"v({name})[{at[0]}, {at[1]}], corrected, less the square of m({name})[{at[0]}, {at[1]}], corrected"
    return own({"v": number(v), "b": b, "c": MORE * b}, of, where, v / MORE)


DRAWN = {
    "bfloat16-gap": gap_of_a_weight, "adamw-first-step": first_update, "gradient-step": gradient_step,
    "clip-factor": clip_factor, "kernel-change": kernel_change, "momentum-window": window, "batch-noise": batch_noise,
}  # fmt: skip
