"""Exercises about vectors and matrices, with numbers of the heads of a recorded step."""

from __future__ import annotations

import math

import numpy as np

from limpid.errors import ConfigError
from limpid.maths.foundations import cosine_similarity, norm
from limpid.maths.operation import Array
from limpid.primer.own.draw import (
    BY_HAND,
    Head,
    Own,
    head_size,
    mixing,
    neighbours,
    number,
    own,
    place,
    rounded,
    scores_of,
    values_of,
)
from limpid.tracing.trace import Trace

PLACES = 16
"""That are tried for scores with a gradient."""


def matrix_vector(trace: Trace, rng: np.random.Generator) -> Own:
    """The weights of the first two tokens, and one entry of their values."""
    at, entries = place(trace, rng, sees=2), neighbours(trace, rng, 1)
    entry, weights = entries.start, f"{at.attention}.{mixing(trace)}"
    w = trace.array(weights, (at.row, at.head, slice(0, 2), slice(0, 2)))
    mixed = trace.array(f"{at.attention}.mixed", (at.row, slice(0, 2), at.head, entry))
    of = f"W has the weights of tokens 0 and 1, v the entry {entry} of their values, {at}."
    where = f"{at.attention}.mixed[{at.row}, :2, {at.head}, {entry}]"
    return own({"w": rounded(w), "v": rounded(values_of(trace, at, 2, entries)[:, 0])}, of, where, mixed)


def matrix_matrix(trace: Trace, rng: np.random.Generator) -> Own:
    """The weights of the first two tokens, and two entries of their values."""
    at, entries = place(trace, rng, sees=2), neighbours(trace, rng, 2)
    said = f"{entries.start}:{entries.stop}"
    w = trace.array(f"{at.attention}.{mixing(trace)}", (at.row, at.head, slice(0, 2), slice(0, 2)))
    mixed = trace.array(f"{at.attention}.mixed", (at.row, slice(0, 2), at.head, entries))
    of = f"A has the weights of tokens 0 and 1, B the entries {said} of their values, {at}."
    where = f"{at.attention}.mixed[{at.row}, :2, {at.head}, {said}]"
    return own({"a": rounded(w), "b": rounded(values_of(trace, at, 2, entries))}, of, where, mixed)


def transpose(trace: Trace, rng: np.random.Generator) -> Own:
    """Three entries of two values, and the weights that mix them: Vᵀ w."""
    at, entries = place(trace, rng, sees=2), neighbours(trace, rng, 3)
    said = f"{entries.start}:{entries.stop}"
    mixed = trace.array(f"{at.attention}.mixed", (at.row, 1, at.head, entries))
    of = f"W has the entries {said} of the values of tokens 0 and 1, v the weights of token 1, {at}."
    numbers = {"w": rounded(values_of(trace, at, 2, entries)), "v": rounded(scores_of(trace, at, 1, mixing(trace)))}
    return own(numbers, of, f"{at.attention}.mixed[{at.row}, 1, {at.head}, {said}]", mixed)


def scale_vector(trace: Trace, rng: np.random.Generator) -> Own:
    """What one token adds to the mix of another: its value, as often as its weight says."""
    at, entries = place(trace, rng, sees=2), neighbours(trace, rng, 3)
    said = f"{entries.start}:{entries.stop}"
    weight, value = scores_of(trace, at, 1, mixing(trace))[0], values_of(trace, at, 1, entries)[0]
    of = f"v has the entries {said} of the value of token 0, and token 1 takes it with this weight, {at}."
    where = f"the first of the two terms of {at.attention}.mixed[{at.row}, 1, {at.head}, {said}]"
    return own({"k": number(weight), "v": rounded(value)}, of, where, weight * value)


def _query_and_key(trace: Trace, at: Head) -> tuple[Array, Array, str]:
    """Of tokens 2 and 1, as many entries as one multiplies by hand, and which these are."""
    rotated = "_rotated" if f"{at.attention}.query_rotated" in trace.names() else ""
    size, short = head_size(trace), slice(0, BY_HAND)
    query = trace.array(f"{at.attention}.query{rotated}", (at.row, 2, at.head, short))
    key = trace.array(f"{at.attention}.key{rotated}", (at.row, 1, at.kv_head, short))
    return query, key, f"{at}" if size <= BY_HAND else f"the first {BY_HAND} of their {size} entries in {at}"


def dot(trace: Trace, rng: np.random.Generator) -> Own:
    """A query with a key before it, or weights with values where heads are too long for that."""
    at, size = place(trace, rng), head_size(trace)
    if size <= BY_HAND:
        a, b, said = _query_and_key(trace, at)
        score = trace.array(f"{at.attention}.scores", (at.row, at.head, 2, 1)) * math.sqrt(size)
        where = f"{at.attention}.scores[{at.row}, {at.head}, 2, 1] · √{size}"
        of = f"a is the query of token 2, b the key of token 1, {said}."
        return own({"a": rounded(a), "b": rounded(b)}, of, where, score)
    entry = int(rng.integers(size))
    value = values_of(trace, at, 3, slice(entry, entry + 1))[:, 0]
    mixed = trace.array(f"{at.attention}.mixed", (at.row, 2, at.head, entry))
    of = f"a has the weights of token 2 with tokens 0 to 2, b the entry {entry} of their values, {at}."
    where = f"{at.attention}.mixed[{at.row}, 2, {at.head}, {entry}]"
    return own({"a": rounded(scores_of(trace, at, kind=mixing(trace))), "b": rounded(value)}, of, where, mixed)


def cosine(trace: Trace, rng: np.random.Generator) -> Own:
    """A query with a key before it."""
    at = place(trace, rng)
    a, b, said = _query_and_key(trace, at)
    of = f"a is the query of token 2, b the key of token 1, {said}."
    where = f"these entries of {at.attention}.query and {at.attention}.key"
    return own({"a": rounded(a), "b": rounded(b)}, of, where, cosine_similarity(a, b))


def length(trace: Trace, rng: np.random.Generator) -> Own:
    """A query."""
    at = place(trace, rng)
    query, _, said = _query_and_key(trace, at)
    return own({"v": rounded(query)}, f"v is the query of token 2, {said}.", f"these entries of {at.attention}.query",
               norm(query))  # fmt: skip


def right_angle(trace: Trace, rng: np.random.Generator) -> Own:
    """The gradient of three scores adds up to 0, as softmax does not feel what is added to all of them."""
    for _ in range(PLACES):
        at = place(trace, rng)
        slope = trace.array(f"grad({at.attention}.scores)", (at.row, at.head, 2, slice(0, 3)))
        if slope.any():
            a = rounded(slope / np.abs(slope).max())
            of = f"a is the gradient of the scores of token 2 with tokens 0 to 2, over its largest entry, {at}."
            where = f"grad({at.attention}.scores)[{at.row}, {at.head}, 2, :3], whose entries add up to 0"
            return own({"a": a, "b": np.ones(3)}, of, where, cosine_similarity(slope, np.ones(3)))
    raise ConfigError("scores of this step have no gradient: take a step that trains through attention")


DRAWN = {
    "dot": dot, "cosine": cosine, "length": length, "right-angle": right_angle, "scale-vector": scale_vector,
    "matrix-vector": matrix_vector, "matrix-matrix": matrix_matrix, "transpose": transpose,
}  # fmt: skip
