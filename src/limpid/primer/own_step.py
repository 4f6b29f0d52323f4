"""The same exercises with numbers of a step that the reader recorded, graded against its trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from limpid.errors import ConfigError
from limpid.maths.operation import Array
from limpid.primer.exercise import Numbers
from limpid.tracing.trace import Trace

DIGITS = 5
"""Significant digits of a recorded number in a question."""
BY_HAND = 8
"""Most entries of a vector that one multiplies by hand."""


class Own(NamedTuple):
    """Numbers of a step, and the entry that holds what was asked for."""

    numbers: Numbers
    where: str


def own_numbers(name: str, trace: Trace, seed: int) -> Own:
    """An exercise's numbers from a recorded step; another place of it for another seed.

    Raises  ConfigError where a step has no such numbers, or none that one can reckon with by hand
    """
    if name not in DRAWN:
        raise ConfigError(
            f"{name} has no numbers in a recorded step: choose one of {', '.join(DRAWN)}, or leave out of"
        )
    return DRAWN[name](trace, np.random.Generator(np.random.PCG64(seed)))


def rounded(value: Array | float) -> Array:
    """To as many digits as a question prints."""
    array = np.asarray(value, dtype=np.float64)
    return np.array([float(f"{one:.{DIGITS}g}") for one in array.ravel()]).reshape(array.shape)


def _place(trace: Trace, rng: np.random.Generator) -> tuple[int, int, int]:
    """A block, a row of the batch, and a head."""
    model = trace.record.config.model
    rows = trace.array("tokens").shape[0]
    return int(rng.integers(model.num_layers)), int(rng.integers(rows)), int(rng.integers(model.num_heads))


def _softmax(trace: Trace, rng: np.random.Generator) -> Own:
    """The scores of the third token with the three that it sees."""
    block, row, head = _place(trace, rng)
    scores = trace.array(f"blocks.{block}.attention.scores", (row, head, 2, slice(0, 3)))
    return Own({"z": rounded(scores)}, f"blocks.{block}.attention.weights[{row}, {head}, 2, :3]")


def _surprise(trace: Trace, rng: np.random.Generator) -> Own:
    """What the model gave to a token that came."""
    targets = trace.array("targets")
    row, position = (int(place) for place in rng.choice(np.argwhere(targets >= 0)))
    token = int(targets[row, position])
    logarithm = float(trace.array("log_probabilities", (row, position, token)))
    return Own({"p": float(rounded(np.exp(logarithm)))}, f"log_probabilities[{row}, {position}, {token}], times −1")


def _perplexity(trace: Trace, _: np.random.Generator) -> Own:
    return Own({"h": float(rounded(trace.array("loss").item()))}, "loss, whose exponential the perplexity is")


def _dot(trace: Trace, rng: np.random.Generator) -> Own:
    """A query with a key before it: the score before it is divided."""
    model = trace.record.config.model
    size = model.d_model // model.num_heads
    if size > BY_HAND:
        raise ConfigError(f"heads of this step have {size} entries, more than {BY_HAND} to multiply by hand: "
                          "those of the worked model have 8 (of is worked)")  # fmt: skip
    block, row, head = _place(trace, rng)
    attention = f"blocks.{block}.attention"
    rotated = "_rotated" if f"{attention}.query_rotated" in trace.names() else ""
    group = model.num_heads // (model.num_kv_heads or model.num_heads)
    a = trace.array(f"{attention}.query{rotated}", (row, 2, head))
    b = trace.array(f"{attention}.key{rotated}", (row, 1, head // group))
    return Own({"a": rounded(a), "b": rounded(b)}, f"{attention}.scores[{row}, {head}, 2, 1] · √{size}")


def _scores(trace: Trace, _: np.random.Generator) -> Own:
    numbers = {"tokens": int(trace.array("tokens").shape[1]), "heads": trace.record.config.model.num_heads}
    return Own(numbers, "blocks.0.attention.scores, in one row of the batch")


def _query_weights(trace: Trace, _: np.random.Generator) -> Own:
    model = trace.record.config.model
    numbers = {"d_model": model.d_model, "heads": model.num_heads, "d_head": model.d_model // model.num_heads}
    return Own(numbers, "blocks.0.attention.query.weight")


def _layer_sizes(trace: Trace, rng: np.random.Generator) -> Own:
    names = [name for name in trace.names() if name.startswith("blocks.") and name.endswith(".weight")]
    name = str(rng.choice([name for name in names if len(set(trace.record.shape(trace.tensor(name)[1]))) == 2]))
    rows, columns = trace.record.shape(trace.tensor(name)[1])
    return Own({"rows": rows, "columns": columns}, name)


def _matrix(trace: Trace, rng: np.random.Generator) -> tuple[str, int, int]:
    """A weight matrix of a block, its rows and its columns."""
    names = [name for name in trace.names() if name.startswith("blocks.") and name.endswith(".weight")]
    shapes = {name: trace.record.shape(trace.tensor(name)[1]) for name in names}
    name = str(rng.choice([name for name, shape in shapes.items() if len(shape) == 2]))
    rows, columns = shapes[name]
    return name, int(rows), int(columns)


def _low_rank(trace: Trace, rng: np.random.Generator) -> Own:
    name, rows, columns = _matrix(trace, rng)
    return Own({"outputs": rows, "inputs": columns, "rank": int(rng.choice([2, 4]))}, f"{name}, to which B A is added")


def _gap(trace: Trace, rng: np.random.Generator) -> Own:
    """A weight, without its sign."""
    name, rows, columns = _matrix(trace, rng)
    row, column = int(rng.integers(rows)), int(rng.integers(columns))
    return Own(
        {"x": abs(float(rounded(trace.array(name, (row, column)))))}, f"{name}[{row}, {column}], without its sign"
    )


def _window(trace: Trace, _: np.random.Generator) -> Own:
    return Own({"beta": trace.record.config.update.beta2}, "the optimizer's beta2")


DRAWN: dict[str, Callable[[Trace, np.random.Generator], Own]] = {
    "dot": _dot,
    "layer-sizes": _layer_sizes,
    "softmax-of-scores": _softmax,
    "surprise": _surprise,
    "perplexity": _perplexity,
    "query-weights": _query_weights,
    "scores": _scores,
    "causal-scores": _scores,
    "momentum-window": _window,
    "bfloat16-gap": _gap,
    "low-rank-parameters": _low_rank,
}
