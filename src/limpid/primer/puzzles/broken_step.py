"""Find the fault: a small training step whose every quantity is printed, one operation of it gone wrong.

The faults are some that the doctor knows, planted in a step of three tokens that limpid's mathematics computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from limpid.errors import ConfigError
from limpid.maths.foundations import gradient_step, matmul, softmax, surprise
from limpid.maths.operation import Array
from limpid.primer.exercise import DRAWS
from limpid.primer.puzzles.broken_trace import entries
from limpid.primer.puzzles.puzzle import Choice, Puzzle

PLACES = 3
"""After the point, of everything that is printed."""
SHOWS = 0.02
"""How far some entry of a faulty quantity is from the right one, at least: twenty times what rounding hides."""
RATE = 0.5
Values = Mapping[str, Array]


class Stage(NamedTuple):
    """One operation of the step: what it is called, its equation, and what it gives."""

    name: str
    equation: str
    of: Callable[[Values], Array]


class Fault(NamedTuple):
    """A wrong way to do one operation."""

    rule: str
    """The doctor's name for it."""
    stage: str
    way: Callable[[Values], Array]
    says: str


def _causal(scores: Array) -> Array:
    return np.where(np.tri(len(scores), dtype=bool), scores, -np.inf)


def _surprises(values: Values, targets: str) -> Array:
    return np.asarray(surprise(values["probabilities"][np.arange(3), values[targets].astype(int)]))


def _gradient(values: Values) -> Array:
    return values["probabilities"] - np.eye(3)[values["targets"].astype(int)]


STAGES = (
    Stage("scores", "q kᵀ / √2", lambda of: matmul(of["q"], of["k"].T) / math.sqrt(2)),
    Stage("weights", "softmax of each row of scores, causal", lambda of: softmax(_causal(of["scores"]))),
    Stage("mixed", "weights v", lambda of: matmul(of["weights"], of["v"])),
    Stage("stream", "x + mixed", lambda of: of["x"] + of["mixed"]),
    Stage("logits", "stream u + b", lambda of: matmul(of["stream"], of["u"]) + of["b"]),
    Stage("probabilities", "softmax of each row of logits", lambda of: softmax(of["logits"])),
    Stage("loss", "mean of −ln of each row's probability of its target", lambda of: _surprises(of, "targets").mean()),
    Stage("gradient", "of the loss by logits: (probabilities − 1 at the target) / 3", lambda of: _gradient(of) / 3),
    Stage("b after", f"b − {RATE:g} · sum of the gradient's rows",
          lambda of: np.asarray(gradient_step(of["b"], of["gradient"].sum(0), RATE))),
)  # fmt: skip
FAULTS = (
    Fault("scores-not-scaled", "scores", lambda of: matmul(of["q"], of["k"].T), "they are not divided by √2"),
    Fault("not-causal", "weights", lambda of: softmax(of["scores"]), "a token sees those that come after it"),
    Fault("residual-missing", "stream", lambda of: of["mixed"], "x is not added"),
    Fault("softmax-twice", "probabilities", lambda of: softmax(softmax(of["logits"])), "softmax is taken twice"),
    Fault("loss-summed", "loss", lambda of: _surprises(of, "targets").sum(), "it is the sum, and not the mean"),
    Fault("labels-not-shifted", "loss", lambda of: _surprises(of, "tokens").mean(),
          "each token is its own target, instead of the next one"),
    Fault("gradient-is-not-the-gradient", "gradient", _gradient, "the mean's division by 3 is left out"),
    Fault("gradient-ascent", "b after", lambda of: np.asarray(gradient_step(of["b"], of["gradient"].sum(0), -RATE)),
          "the step goes along the gradient, uphill"),
    Fault("stepped-twice", "b after", lambda of: np.asarray(gradient_step(of["b"], of["gradient"].sum(0), 2 * RATE)),
          "the step is taken twice"),
)  # fmt: skip
OPENS = {
    "scores": "blocks.0.attention.scores", "weights": "blocks.0.attention.weights", "mixed": "blocks.0.attention.mixed",
    "stream": "blocks.0.residual2", "logits": "logits", "probabilities": "log_probabilities", "loss": "loss",
    "gradient": "grad(logits)", "b after": "logits.weight",
}  # fmt: skip
"""Where a recorded step has the same operation."""
HINTS = (
    "Go from the top: does each quantity follow from those above it?",
    "Look at an entry: the trace writes it out with its numbers. Do they come to what was recorded?",
    "Compute one entry of a quantity from what is printed above it; do the rows that should add up to 1 do so?",
    "What was computed rightly from wrong numbers is not the fault: look for the first that does not follow.",
)


def puzzle(seed: int) -> Puzzle:
    """The step of a seed; seed 0 is one whose fault many an attention layer had."""
    rng = np.random.Generator(np.random.PCG64(seed))
    fault = FAULTS[0] if seed == 0 else FAULTS[rng.integers(len(FAULTS))]
    for _ in range(DRAWS):
        given = _drawn(rng)
        broken = _computed(given, fault)
        right = next(stage.of(broken) for stage in STAGES if stage.name == fault.stage)
        if np.abs(broken[fault.stage] - right).max() >= SHOWS:
            return _posed(seed, given, broken, fault, right)
    raise ConfigError(f"broken-step has no numbers for the seed {seed} in which its fault shows: try another")


def _drawn(rng: np.random.Generator) -> dict[str, Array]:
    """What the step begins with; every number is printed in full."""
    tokens = rng.integers(3, size=4)
    tokens[1:] = np.where(tokens[1:] == tokens[:-1], (tokens[1:] + 1) % 3, tokens[1:])
    sizes = {"x": (3, 2), "q": (3, 2), "k": (3, 2), "v": (3, 2), "u": (2, 3), "b": (3,)}
    numbers = {name: rng.integers(-15, 16, size) / 10 for name, size in sizes.items()}
    return {**numbers, "tokens": tokens[:-1], "targets": tokens[1:]}


def _computed(given: Values, fault: Fault | None) -> dict[str, Array]:
    values = dict(given)
    for stage in STAGES:
        values[stage.name] = np.asarray((fault.way if fault and fault.stage == stage.name else stage.of)(values))
    return values


def _posed(seed: int, given: Values, broken: Values, fault: Fault, right: Array) -> Puzzle:
    names = [stage.name for stage in STAGES]
    wrong = names.index(fault.stage)
    printed = [f"{name:13} = {_shown(value)}" for name, value in given.items()]
    made = [f"{stage.name:13} {stage.equation}\n{'':13} = {_shown(broken[stage.name])}" for stage in STAGES]
    asked = "\n".join(["Three tokens, one head, one step. One operation is wrong. Which?", *printed, *made])
    choices = []
    for place, stage in enumerate(STAGES):
        fine = f"{stage.name} follows from what is above it."
        later = f"{stage.name} follows from what is above it, which was wrong already."
        choices.append(Choice(stage.name, f"not-{stage.name.replace(' ', '-')}", later if place > wrong else fine))
    solution = (
        f"{fault.stage}: {fault.says}. From what is printed above it, it would be {_shown(right)}. "
        f"The doctor calls this {fault.rule}: limpid doctor --explain {fault.rule}"
    )
    looks = entries(broken, tuple(names))
    return Puzzle("broken-step", seed, asked, tuple(choices), wrong, solution, HINTS, OPENS[fault.stage], looks)


def _shown(value: Array) -> str:
    array = np.asarray(value)
    if array.ndim:
        return f"[{', '.join(map(_shown, array))}]"
    said = str(int(array)) if array.dtype.kind == "i" else f"{float(array):.{PLACES}f}".rstrip("0").rstrip(".")
    return ("0" if said in ("-0", "") else said).replace("-", "−")
