"""Exercises about attention and positions, with numbers of a recorded step."""

from __future__ import annotations

import math

import numpy as np

from limpid.errors import ConfigError
from limpid.maths.embedding import Rotary
from limpid.maths.transformer import rotary
from limpid.primer.own_draw import BY_HAND, Own, head_size, place, rounded
from limpid.tracing.trace import Trace

MOST_TOKENS = 16
"""Of a row that is looked through for a score."""


def softmax(trace: Trace, rng: np.random.Generator) -> Own:
    """The scores of the third token with the three that it sees."""
    block, row, head = place(trace, rng)
    scores = trace.array(f"blocks.{block}.attention.scores", (row, head, 2, slice(0, 3)))
    return Own({"z": rounded(scores)}, f"blocks.{block}.attention.weights[{row}, {head}, 2, :3]")


def gap(trace: Trace, rng: np.random.Generator) -> Own:
    """Two scores of the third token, the larger one first."""
    block, row, head = place(trace, rng)
    scores = trace.array(f"blocks.{block}.attention.scores", (row, head, 2, slice(0, 3)))
    first, second = int(np.argmax(scores)), int(np.argmin(scores))
    weights = f"blocks.{block}.attention.weights[{row}, {head}, 2"
    numbers = {"a": float(rounded(scores[first])), "b": float(rounded(scores[second]))}
    return Own(numbers, f"{weights}, {first}] / {weights}, {second}]")


def what_is_left(trace: Trace, rng: np.random.Generator) -> Own:
    """Three of the four shares of the fourth token."""
    block, row, head = place(trace, rng, sees=4)
    name = f"blocks.{block}.attention.weights"
    return Own({"p": rounded(trace.array(name, (row, head, 3, slice(0, 3))))}, f"{name}[{row}, {head}, 3, 3]")


def attend(trace: Trace, rng: np.random.Generator) -> Own:
    """One entry of what the third token mixes from the three that it sees."""
    block, row, head = place(trace, rng)
    model, size = trace.record.config.model, head_size(trace)
    entry, attention = int(rng.integers(size)), f"blocks.{block}.attention"
    shared = model.num_heads // (model.num_kv_heads or model.num_heads)
    scores = trace.array(f"{attention}.scores", (row, head, 2, slice(0, 3)))
    values = trace.array(f"{attention}.value", (row, slice(0, 3), head // shared, entry))
    numbers = {"d_k": size, "products": rounded(scores * math.sqrt(size)), "values": rounded(values)}
    return Own(numbers, f"{attention}.mixed[{row}, 2, {head}, {entry}]")


def online_sum(trace: Trace, rng: np.random.Generator) -> Own:
    """A token whose own score is the largest: the sum is one over its weight."""
    model, tokens = trace.record.config.model, min(MOST_TOKENS, trace.array("tokens").shape[1])
    for block in map(int, rng.permutation(model.num_layers)):
        name = f"blocks.{block}.attention.scores"
        scores = trace.array(name, (slice(None), slice(None), slice(0, tokens), slice(0, tokens)))
        seen = range(1, min(tokens, model.window(block) or tokens))
        found = [(*at, t) for t in seen for at in np.argwhere(scores[..., t, t] > scores[..., t, :t].max(-1))]
        if found:
            row, head, t = (int(one) for one in found[int(rng.integers(len(found)))])
            before = rounded(scores[row, head, t, :t])
            total = float(rounded(np.exp(before - before.max()).sum()))
            numbers = {"m": float(before.max()), "total": total, "s": float(rounded(scores[row, head, t, t]))}
            return Own(numbers, f"1 / blocks.{block}.attention.weights[{row}, {head}, {t}, {t}]")
    raise ConfigError("in this step no token's own score is the largest of its row: take another step")


def dot(trace: Trace, rng: np.random.Generator) -> Own:
    """A query with a key before it: the score before it is divided."""
    model = trace.record.config.model
    size = head_size(trace)
    if size > BY_HAND:
        raise ConfigError(f"heads of this step have {size} entries, more than {BY_HAND} to multiply by hand: "
                          "those of the worked model have 8 (of is worked)")  # fmt: skip
    block, row, head = place(trace, rng)
    attention = f"blocks.{block}.attention"
    rotated = "_rotated" if f"{attention}.query_rotated" in trace.names() else ""
    group = model.num_heads // (model.num_kv_heads or model.num_heads)
    a = trace.array(f"{attention}.query{rotated}", (row, 2, head))
    b = trace.array(f"{attention}.key{rotated}", (row, 1, head // group))
    return Own({"a": rounded(a), "b": rounded(b)}, f"{attention}.scores[{row}, {head}, 2, 1] · √{size}")


def rotate(trace: Trace, rng: np.random.Generator) -> Own:
    """A pair of a query before and after its position turns it."""
    model, size = trace.record.config.model, head_size(trace)
    turning = rotary(model)
    assert isinstance(turning, Rotary)
    if model.positions != "rotary" or turning.scale() != 1:
        raise ConfigError(f"positions of this step are {model.positions}, and a plain rotation is asked for: "
                          "take a run with rotary positions, the default")  # fmt: skip
    block, row, head = place(trace, rng)
    attention, position = f"blocks.{block}.attention", int(rng.integers(2, trace.array("tokens").shape[1]))
    pair = int(rng.integers(min(2, size // 2)))
    first, second = (pair, pair + size // 2) if turning.layout == "half" else (2 * pair, 2 * pair + 1)
    norm = "_norm" if f"{attention}.query_norm" in trace.names() else ""
    query = trace.array(f"{attention}.query{norm}", (row, position, head))
    degrees = float(rounded(math.degrees(turning.frequencies(size)[pair])))
    numbers = {"q": rounded(query[[first, second]]), "t": position, "degrees": degrees}
    return Own(numbers, f"{attention}.query_rotated[{row}, {position}, {head}, {first}] and [… {second}]")


def scores(trace: Trace, _: np.random.Generator) -> Own:
    numbers = {"tokens": int(trace.array("tokens").shape[1]), "heads": trace.record.config.model.num_heads}
    return Own(numbers, "blocks.0.attention.scores, in one row of the batch")


def window_scores(trace: Trace, _: np.random.Generator) -> Own:
    model, tokens = trace.record.config.model, int(trace.array("tokens").shape[1])
    windowed = [block for block in range(model.num_layers) if (model.window(block) or tokens) < tokens]
    if not windowed:
        raise ConfigError("no block of this step has a window: take a run with model.attention_window")
    numbers = {"tokens": tokens, "window": model.window(windowed[0])}
    return Own(numbers, f"blocks.{windowed[0]}.attention.weights above 0, of one head")


def why_divide(trace: Trace, _: np.random.Generator) -> Own:
    return Own({"d_k": head_size(trace)}, "blocks.0.attention.scores, which are divided by it")


def query_weights(trace: Trace, _: np.random.Generator) -> Own:
    model = trace.record.config.model
    numbers = {"d_model": model.d_model, "heads": model.num_heads, "d_head": head_size(trace)}
    return Own(numbers, "blocks.0.attention.query.weight")


DRAWN = {
    "dot": dot, "softmax-of-scores": softmax, "gap": gap, "what-is-left": what_is_left, "attend": attend,
    "why-divide": why_divide, "query-weights": query_weights, "scores": scores, "causal-scores": scores,
    "window-scores": window_scores, "online-sum": online_sum, "rotate": rotate,
}  # fmt: skip
