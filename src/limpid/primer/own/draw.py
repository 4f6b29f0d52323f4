"""What an exercise takes from a recorded step: numbers as a question prints them, and what the step has there."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from limpid.errors import ConfigError
from limpid.maths.operation import Array
from limpid.primer.exercise import Numbers
from limpid.tracing.trace import Trace

DIGITS = 6
"""Significant digits of a recorded number in a question."""
ENTRY = re.compile(
    r"(?:(?:grad|update|m|v)\([\w.]+\)|\b(?:blocks\.\d+|embed)\.[\w.]*\w"
    r"|\b(?:loss|log_probabilities|targets|tokens|final_norm|pair_losses|rewards)\b)(?:\[\d+(?:, \d+)*\])?"
)
BY_HAND = 8
"""Most entries of a vector that one multiplies by hand."""


class Own(NamedTuple):
    """Numbers of a step."""

    numbers: Numbers
    of: str
    """What they are, in a sentence before the question."""
    where: str
    """The entry that holds what was asked for, or what it is computed from."""
    held: tuple[float, ...]
    """What the step has there, in all digits: what the answer is graded against. Nothing where it is undefined."""

    @property
    def entry(self) -> str | None:
        """The first entry that `where` names, or the array where it names a part; None where it names none."""
        found = ENTRY.search(self.where)
        return found[0] if found else None


def own(numbers: Numbers, of: str, where: str, held: Array | float) -> Own:
    return Own(numbers, of, where, tuple(map(float, np.ravel(held))))


def rounded(value: Array | float) -> Array:
    """To as many digits as a question prints."""
    array = np.asarray(value, dtype=np.float64)
    return np.array([float(f"{one:.{DIGITS}g}") for one in array.ravel()]).reshape(array.shape)


def number(value: Array | float) -> float:
    """The same of a single one."""
    return float(rounded(value))


class Head(NamedTuple):
    """A head of attention in a row of the batch."""

    block: int
    row: int
    head: int
    kv_head: int
    """Of the keys and values that it looks at."""

    @property
    def attention(self) -> str:
        return f"blocks.{self.block}.attention"

    def __str__(self) -> str:
        return f"head {self.head} of block {self.block}, row {self.row} of the batch, all counted from 0"


def place(trace: Trace, rng: np.random.Generator, sees: int = 3) -> Head:
    """A head, in a block whose tokens see so many."""
    model = trace.record.config.model
    rows, tokens = trace.array("tokens").shape
    blocks = [block for block in range(model.num_layers) if (model.window(block) or sees) >= sees]
    if not blocks or tokens < sees:
        raise ConfigError(f"of this step no token sees {sees} tokens: take a run with a longer context or window")
    block, row, head = int(rng.choice(blocks)), int(rng.integers(rows)), int(rng.integers(model.num_heads))
    return Head(block, row, head, head * (model.num_kv_heads or model.num_heads) // model.num_heads)


def head_size(trace: Trace) -> int:
    return trace.record.config.model.sizes.d_head


def matrix(trace: Trace, rng: np.random.Generator, square: bool = True) -> tuple[str, int, int]:
    """A weight matrix of a block, its rows and its columns."""
    names = [name for name in trace.names() if name.startswith("blocks.") and name.endswith(".weight")]
    shapes = {name: trace.record.shape(trace.tensor(name)[1]) for name in names}
    fit = [name for name, shape in shapes.items() if len(shape) == 2 and (square or len(set(shape)) == 2)]
    if not fit:
        raise ConfigError("no matrix of this step has other rows than columns: take a run with another d_ff")
    name = str(rng.choice(fit))
    rows, columns = shapes[name]
    return name, int(rows), int(columns)


def moved_matrix(trace: Trace, rng: np.random.Generator) -> tuple[str, Array]:
    """A weight matrix that has a gradient in this step, and that gradient."""
    for _ in range(8):
        name, _, _ = matrix(trace, rng)
        if trace.tensor(f"grad({name})")[1] in trace.record.names and (slope := trace.array(f"grad({name})")).any():
            return name, slope
    raise ConfigError("the blocks of this step have no gradients: take a run that trains whole matrices")


def scores_of(trace: Trace, at: Head, token: int = 2, kind: str = "scores") -> Array:
    """Of a token with all that it sees, itself the last."""
    return trace.array(f"{at.attention}.{kind}", (at.row, at.head, token, slice(0, token + 1)))


def mixing(trace: Trace) -> str:
    """The weights that mix the values: with dropout those of which some were dropped."""
    dropped = "weights_dropped"
    return dropped if f"blocks.0.attention.{dropped}" in trace.names() else "weights"


def values_of(trace: Trace, at: Head, tokens: int, entries: slice) -> Array:
    return trace.array(f"{at.attention}.value", (at.row, slice(0, tokens), at.kv_head, entries))


def neighbours(trace: Trace, rng: np.random.Generator, count: int) -> slice:
    """So many neighbours in the vector of a head."""
    if (size := head_size(trace)) < count:
        raise ConfigError(f"heads of this step have {size} entries, and {count} are asked for: take larger heads")
    start = int(rng.integers(size - count + 1))
    return slice(start, start + count)
