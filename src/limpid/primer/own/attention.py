"""Exercises about attention and positions, with numbers of a recorded step."""

from __future__ import annotations

import math

import numpy as np

from limpid.errors import ConfigError
from limpid.maths.embedding import Rotary
from limpid.maths.transformer import rotary
from limpid.primer.own.draw import Own, head_size, mixing, number, own, place, rounded, scores_of, values_of
from limpid.tracing.trace import Trace

MOST_TOKENS = 16
"""Of a row that is looked through for a score."""


def softmax(trace: Trace, rng: np.random.Generator) -> Own:
    """The scores of the third token with the three that it sees."""
    at = place(trace, rng)
    where = f"{at.attention}.weights[{at.row}, {at.head}, 2, :3]"
    return own({"z": rounded(scores_of(trace, at))}, f"Scores of token 2 with tokens 0 to 2, {at}.", where,
               scores_of(trace, at, kind="weights"))  # fmt: skip


def temperature(trace: Trace, rng: np.random.Generator) -> Own:
    """The same, divided by a temperature; powers of the weights are in the same proportions."""
    at, by = place(trace, rng), float(rng.choice([0.25, 0.5, 2, 4]))
    powers = scores_of(trace, at, kind="weights") ** (1 / by)
    where = f"{at.attention}.weights[{at.row}, {at.head}, 2, :3] to the power {1 / by:g}, divided by their sum"
    return own({"z": rounded(scores_of(trace, at)), "temperature": by}, f"Scores of token 2 with tokens 0 to 2, {at}.",
               where, powers / powers.sum())  # fmt: skip


def exponentials(trace: Trace, rng: np.random.Generator) -> Own:
    """Scores less their largest, of which softmax takes the exponentials."""
    at = place(trace, rng)
    scores, weights = scores_of(trace, at), scores_of(trace, at, kind="weights")
    where = f"{at.attention}.weights[{at.row}, {at.head}, 2, :3], divided by the largest of them"
    of = f"Scores of token 2 with tokens 0 to 2, less their largest, {at}."
    return own({"x": rounded(scores - scores.max())}, of, where, weights / weights.max())


def gap(trace: Trace, rng: np.random.Generator) -> Own:
    """Two scores of the third token, the larger one first."""
    at = place(trace, rng)
    scores, shares = scores_of(trace, at), scores_of(trace, at, kind="weights")
    first, second = int(np.argmax(scores)), int(np.argmin(scores))
    weights = f"{at.attention}.weights[{at.row}, {at.head}, 2"
    of = f"Scores of token 2 with tokens {first} and {second}, {at}."
    return own({"a": number(scores[first]), "b": number(scores[second])}, of,
               f"{weights}, {first}] / {weights}, {second}]", shares[first] / shares[second])  # fmt: skip


def what_is_left(trace: Trace, rng: np.random.Generator) -> Own:
    """Three of the four shares of the fourth token."""
    at = place(trace, rng, sees=4)
    shares = scores_of(trace, at, 3, "weights")
    of = f"The weights with which token 3 looks at tokens 0 to 2, of the four that it sees, {at}."
    return own({"p": rounded(shares[:3])}, of, f"{at.attention}.weights[{at.row}, {at.head}, 3, 3]", shares[3])


def attend(trace: Trace, rng: np.random.Generator) -> Own:
    """One entry of what the third token mixes from the three that it sees."""
    if mixing(trace) != "weights":
        raise ConfigError("of the weights of this step some were dropped by chance: take a run with model.dropout = 0")
    at, size = place(trace, rng), head_size(trace)
    entry = int(rng.integers(size))
    values = values_of(trace, at, 3, slice(entry, entry + 1))[:, 0]
    numbers = {"d_k": size, "products": rounded(scores_of(trace, at) * math.sqrt(size)), "values": rounded(values)}
    of = f"The query of token 2, the keys of tokens 0 to 2, and entry {entry} of their values, {at}."
    return own(numbers, of, f"{at.attention}.mixed[{at.row}, 2, {at.head}, {entry}]",
               trace.array(f"{at.attention}.mixed", (at.row, 2, at.head, entry)))  # fmt: skip


def online_sum(trace: Trace, rng: np.random.Generator) -> Own:
    """A token whose own score is the largest: the sum is one over its weight."""
    model, tokens = trace.record.config.model, min(MOST_TOKENS, trace.array("tokens").shape[1])
    for block in map(int, rng.permutation(model.num_layers)):
        name = f"blocks.{block}.attention"
        scores = trace.array(f"{name}.scores", (slice(None), slice(None), slice(0, tokens), slice(0, tokens)))
        seen = range(1, min(tokens, model.window(block) or tokens))
        found = [(*at, t) for t in seen for at in np.argwhere(scores[..., t, t] > scores[..., t, :t].max(-1))]
        if found:
            row, head, t = (int(one) for one in found[int(rng.integers(len(found)))])
            before = rounded(scores[row, head, t, :t])
            total = number(np.exp(before - before.max()).sum())
            numbers = {"m": float(before.max()), "total": total, "s": number(scores[row, head, t, t])}
            of = f"Scores of token {t}: those with the tokens before it, then its own. Head {head} of block {block}."
            weight = trace.array(f"{name}.weights", (row, head, t, t))
            return own(numbers, of, f"1 / {name}.weights[{row}, {head}, {t}, {t}]", 1 / weight)
    raise ConfigError("in this step no token's own score is the largest of its row: take another step")


def rotate(trace: Trace, rng: np.random.Generator) -> Own:
    """A pair of a query before and after its position turns it."""
    model, size = trace.record.config.model, head_size(trace)
    turning = _turning(trace)
    if turning.scale() != 1:
        raise ConfigError(f"{model.rotary_scaling} lengthens the queries of this step as it turns them, and a rotation "
                          "alone is asked for: take a run with another rotary_scaling")  # fmt: skip
    at = place(trace, rng)
    position = int(rng.integers(2, trace.array("tokens").shape[1]))
    pair = int(rng.integers(min(2, size // 2)))
    first, second = (pair, pair + size // 2) if turning.layout == "half" else (2 * pair, 2 * pair + 1)
    before = "_norm" if model.qk_norm else ""
    query = trace.array(f"{at.attention}.query{before}", (at.row, position, at.head))
    turned = trace.array(f"{at.attention}.query_rotated", (at.row, position, at.head))
    degrees = number(math.degrees(turning.frequencies(size)[pair]))
    of = f"The entries {first} and {second} of the query at position {position}, {at}."
    where = f"{at.attention}.query_rotated[{at.row}, {position}, {at.head}, {first}] and [… {second}]"
    return own({"q": rounded(query[[first, second]]), "t": position, "degrees": degrees}, of, where,
               turned[[first, second]])  # fmt: skip


def _turning(trace: Trace) -> Rotary:
    """How positions turn queries and keys; raises ConfigError where they do not."""
    model = trace.record.config.model
    if model.positions != "rotary":
        raise ConfigError(f"positions of this step are {model.positions}, and a rotation is asked for: "
                          "take a run with rotary positions, the default")  # fmt: skip
    turning = rotary(model)
    assert isinstance(turning, Rotary)
    return turning


def same_distance(trace: Trace, rng: np.random.Generator) -> Own:
    """A token, the one before it at which it looks most, and another place to stand at."""
    _turning(trace)
    at, tokens = place(trace, rng, sees=4), trace.array("tokens").shape[1]
    t = int(rng.integers(2, tokens - 1))
    s = int(np.argmax(scores_of(trace, at, t, "weights")[:-1]))
    other = int(rng.integers(t + 1, tokens))
    of = f"Of all tokens before it, token {t} looks most at token {s}, {at}."
    return own({"t": t, "s": s, "other": other}, of, f"{at.attention}.weights[{at.row}, {at.head}, {t}, {s}]",
               other - t + s)  # fmt: skip


def scores(trace: Trace, _: np.random.Generator) -> Own:
    heads, queries, keys = trace.array("blocks.0.attention.scores", (0,)).shape
    return own({"tokens": queries, "heads": heads}, "A row of the batch, in one block.",
               "blocks.0.attention.scores, in one row of the batch", heads * queries * keys)  # fmt: skip


def causal_scores(trace: Trace, _: np.random.Generator) -> Own:
    heads, queries, keys = trace.array("blocks.0.attention.scores", (0,)).shape
    return own({"tokens": queries, "heads": heads}, "A row of the batch, in one block.",
               "blocks.0.attention.scores, in one row of the batch, without those ahead",
               heads * np.tri(queries, keys).sum())  # fmt: skip


def window_scores(trace: Trace, _: np.random.Generator) -> Own:
    model, tokens = trace.record.config.model, int(trace.array("tokens").shape[1])
    windowed = [block for block in range(model.num_layers) if (model.window(block) or tokens) < tokens]
    if not windowed:
        raise ConfigError("no block of this step has a window: take a run with model.attention_window")
    weights = f"blocks.{windowed[0]}.attention.weights"
    return own({"tokens": tokens, "window": model.window(windowed[0])}, f"Block {windowed[0]}.",
               f"{weights} above 0, of one head", int(np.count_nonzero(trace.array(weights, (0, 0)))))  # fmt: skip


def why_divide(trace: Trace, _: np.random.Generator) -> Own:
    size = trace.array("blocks.0.attention.query", (0, 0, 0)).size
    return own({"d_k": head_size(trace)}, "As many as a head of this step has.",
               "blocks.0.attention.scores, which are divided by it", math.sqrt(size))  # fmt: skip


def query_weights(trace: Trace, _: np.random.Generator) -> Own:
    model, name = trace.record.config.model, "blocks.0.attention.query.weight"
    numbers = {"d_model": model.d_model, "heads": model.num_heads, "d_head": head_size(trace)}
    return own(numbers, "The sizes of this step's model.", name,
               float(np.prod(trace.record.shape(trace.tensor(name)[1]))))  # fmt: skip


DRAWN = {
    "exponentials": exponentials, "softmax-of-scores": softmax, "temperature": temperature, "gap": gap,
    "what-is-left": what_is_left, "attend": attend, "why-divide": why_divide, "query-weights": query_weights,
    "scores": scores, "causal-scores": causal_scores, "window-scores": window_scores, "online-sum": online_sum,
    "rotate": rotate, "same-distance": same_distance,
}  # fmt: skip
