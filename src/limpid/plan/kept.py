"""What limpid's own engine holds at the worst moment of a step: one row per operation of the model.

A row says what an operation keeps from its forward to its backward pass, what its backward pass holds besides, and
which parameters' gradients come out of it. When a kernel changes, its row does; tests/plan measures the sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from limpid.config import ModelConfig, TrainConfig
from limpid.plan.figure import Figure, figure

BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}
SHORT = 512
"""Positions up to which attention forms its weights on a processor (model/mixing.py)."""
ROWS = 128
"""Rows of logits that the loss takes at a time (objectives/language_model.py)."""
MOMENTS = {"adamw": 2, "adam": 2, "momentum": 1, "sgd": 0}


@dataclass(frozen=True)
class Row:
    """Bytes of one operation."""

    name: str
    kept: int  # from its forward to its backward pass
    passing: int  # more, while its backward pass runs: what comes in, what goes out, what is only in between
    learned: int = 0  # parameters whose gradients it makes


@dataclass(frozen=True)
class Sizes:
    """The products that rows are written in."""

    model: ModelConfig
    batch: int
    compute: int  # bytes of a number in matrix products
    stream: int  # bytes of a parameter and of a number of the residual stream
    formed: bool  # attention weights are formed

    @property
    def tokens(self) -> int:
        return self.batch * self.model.context_length

    @property
    def cast(self) -> bool:
        """Whether masters are cast where they are used."""
        return self.compute != self.stream

    def narrow(self, width: int) -> int:
        """One vector of this width per token, in the format of the products."""
        return self.tokens * width * self.compute

    def wide(self, width: int) -> int:
        """The same in the format of the stream."""
        return self.tokens * width * self.stream

    @property
    def pairs(self) -> int:
        """One number per head, query and key."""
        return self.batch * self.model.num_heads * self.model.context_length**2 * self.compute

    def weight(self, entries: int) -> int:
        """The cast copy that a product keeps of its weight."""
        return entries * self.compute * self.cast


def rows(size: Sizes) -> tuple[Row, ...]:
    """Every operation of one micro-batch, in forward order."""
    model = size.model
    positions = model.context_length * model.d_model if model.positions == "learned" else 0
    table = model.vocab_size * model.d_model
    stream = size.wide(model.d_model)
    twice = 0 if not model.tied else 1 if size.cast else 2  # the output matrix's share waits for the embedding's
    found = [Row("embedding", 0, 2 * stream + twice * table * size.stream, positions + table * (not model.tied))]
    if model.dropout:
        found.append(Row("embedding dropout", stream, 2 * stream))
    for _ in range(model.num_layers):
        found += [*_attention(size), *_mlp(size)]
    if model.norm_placement == "pre":
        found.append(_norm(size, "final norm"))
    logits = size.narrow(model.vocab_size)
    kept = logits + size.narrow(model.d_model) + size.weight(table)
    found.append(Row("logits", kept, logits + size.narrow(model.d_model), table))
    room = ROWS * model.vocab_size * max(4, size.stream)
    return (*found, Row("loss", size.tokens * (9 + 2 * max(4, size.stream)), logits + room))


def _norm(size: Sizes, name: str) -> Row:
    """RMS norm keeps x̂, layer norm its input, both one number per vector; the product behind keeps the result."""
    model = size.model
    wide = size.wide(model.d_model)
    learned = model.d_model * (2 if model.norm == "layer" else 1)
    return Row(name, wide + size.tokens * size.stream, 3 * wide, learned)


def _attention(size: Sizes) -> Iterator[Row]:
    model = size.model
    d, query, key = model.d_model, model.num_heads * model.d_head, model.num_kv_heads * model.d_head
    projections = d * (query + 2 * key)
    stream = size.wide(d)
    if model.norm_placement == "pre":
        yield _norm(size, "norm1")
    made = size.narrow(query + 2 * key)
    yield Row("attention.query, key, value", size.narrow(d) + size.weight(projections),
              stream + made + 2 * size.narrow(d),
              projections + (query + 2 * key) * model.attention_bias)  # fmt: skip
    if model.qk_norm:
        kept = size.tokens * (query + key) * max(4, size.stream)
        yield Row("attention.query_norm, key_norm", kept, stream + made + kept + size.narrow(query), 2 * model.d_head)
    if model.positions == "rotary":
        turned = size.tokens * query * (size.compute + 2 * size.stream * size.cast)
        yield Row("attention.rotation", 0, stream + made + turned)
    yield _mixing(size)
    yield Row("attention.output", size.narrow(query) + size.weight(query * d),
              stream + size.narrow(d) * size.cast + size.narrow(query),
              query * d + d * model.attention_output_bias)  # fmt: skip
    if model.dropout:
        yield Row("attention.dropout", size.narrow(d), stream + 2 * size.narrow(d))
    if model.norm_placement == "post":
        yield _norm(size, "norm1")


def _mixing(size: Sizes) -> Row:
    """Scores, softmax, and the weighted sum of the values."""
    model = size.model
    query, key = model.num_heads * model.d_head, model.num_kv_heads * model.d_head
    stream, heads = size.wide(model.d_model), size.narrow(query)
    if model.dropout:  # every quantity is formed: the softmax in wide numbers, the mask, what it left
        wide = size.pairs // size.compute * max(4, size.stream)
        return Row("attention.mixing", size.narrow(query + 2 * key) + wide + 2 * size.pairs,
                   stream + wide + 2 * size.pairs + heads)  # fmt: skip
    if size.formed:
        return Row("attention.mixing", size.narrow(query + 2 * key) + size.pairs, stream + 2 * size.pairs + heads)
    sums = size.batch * model.num_heads * model.context_length * 4
    masked = model.attention_window is not None and model.attention_window < model.context_length
    mask = model.context_length**2 * size.compute * masked
    return Row(
        "attention.mixing", size.narrow(query + 2 * key) + sums + mask, stream + size.narrow(2 * query + 2 * key)
    )


def _mlp(size: Sizes) -> Iterator[Row]:
    model = size.model
    d, f, gated = model.d_model, model.d_ff, model.mlp == "gated"
    stream, hidden = size.wide(d), size.narrow(f)
    if model.norm_placement == "pre":
        yield _norm(size, "norm2")
    projections = d * f * (1 + gated)
    yield Row("mlp.gate, up" if gated else "mlp.up", size.narrow(d) + size.weight(projections),
              stream + (1 + gated) * hidden + 2 * size.narrow(d),
              projections + f * (1 + gated) * model.mlp_bias)  # fmt: skip
    # f keeps its input, relu its output instead, which is what the next product reads; a gate keeps both factors
    bent = 0 if model.activation == "relu" and not gated else hidden
    yield Row("mlp.activation", (3 if gated else 1) * hidden - (hidden if gated and model.activation == "relu" else 0),
              stream + (3 if gated else 4 if model.activation == "relu2" else 2) * hidden)  # fmt: skip
    yield Row("mlp.output", bent + size.weight(d * f), stream + size.narrow(d) * size.cast + hidden,
              d * f + d * model.mlp_bias)  # fmt: skip
    if model.dropout:
        yield Row("mlp.dropout", size.narrow(d), stream + 2 * size.narrow(d))
    if model.norm_placement == "post":
        yield _norm(size, "norm2")


@dataclass(frozen=True)
class Peak:
    """The worst moment: at which operation, and what is there then."""

    operation: str
    kept: int
    passing: int
    gradients: int


def peak(size: Sizes, accumulation: int) -> Peak:
    """Walk the table backwards: what is kept shrinks, gradients grow."""
    table = rows(size)
    logits = size.narrow(size.model.vocab_size)  # the step holds on to them until its backward pass is over
    everything = sum(row.learned for row in table) * size.stream
    kept, gradients = sum(row.kept for row in table), 0
    worst = Peak("update", 0, 0, everything)
    for row in reversed(table):
        fresh = row.learned * size.compute  # as the product makes them, before they are cast or added
        there = everything if accumulation > 1 else gradients
        now = Peak(row.name, kept, row.passing + fresh, there)
        worst = max(worst, now, key=lambda at: at.kept + at.passing + at.gradients)
        gradients += row.learned * size.stream
        kept -= row.kept - (logits if row.name == "logits" else 0)
    return worst
