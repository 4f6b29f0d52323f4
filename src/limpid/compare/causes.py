"""Why: known slips tried on the mathematics, until one of them makes the numbers that were seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from limpid.compare.spread import length
from limpid.compare.taken import Taken
from limpid.config import ModelConfig
from limpid.maths.activation import ACTIVATIONS, Activation
from limpid.maths.attention import CausalSoftmax, Scores
from limpid.maths.chain import Chain
from limpid.maths.embedding import Embedding, LearnedPositions, Rotary
from limpid.maths.linear import Add, Linear
from limpid.maths.mlp import Gated
from limpid.maths.norm import LayerNorm, RMSNorm
from limpid.maths.operation import Array, Operation
from limpid.maths.step import forward

Slip = Callable[[Operation], Operation | None]
"""What an operation becomes by a slip; None where it does not apply."""


@dataclass(frozen=True)
class Cause:
    """A slip that explains a disagreement."""

    words: str
    worst: float  # distance of what was seen from what the slip would give, in bounds


class Slipped(Chain):
    """A chain in which one kind of operation is another."""

    def __init__(self, values: dict[str, Array], slip: Slip) -> None:
        super().__init__(values)
        self.slip, self.applied = slip, False

    def apply(self, name: str, operation: Operation, *inputs: str) -> str:
        other = self.slip(operation)
        self.applied = self.applied or other is not None
        return super().apply(name, other or operation, *inputs)


def causes(config: ModelConfig, seen: Taken, name: str, limits: dict[str, Array]) -> tuple[Cause, ...]:
    """The slips whose numbers agree with those seen at `name` and before it, best first."""
    found = []
    for words, slip in slips(config):
        chain = Slipped({**seen.parameters, "tokens": seen.tokens, "targets": seen.targets}, slip)
        try:
            with np.errstate(all="ignore"):
                forward(chain, config)
        except ValueError:  # a slip that does not even fit explains nothing
            continue
        if chain.applied:
            worst = _worst(chain, seen, name, limits)
            if worst <= 1:
                found.append(Cause(words, worst))
    return tuple(sorted(found, key=lambda cause: cause.worst))


def _worst(chain: Chain, seen: Taken, name: str, limits: dict[str, Array]) -> float:
    worst = 0.0
    for link in chain.links:
        if link.name in seen.values:
            value = chain.values[link.name]
            with np.errstate(all="ignore"):
                ratio = length(seen.values[link.name].reshape(value.shape) - value) / limits[link.name]
            worst = max(worst, float(np.nan_to_num(ratio, nan=np.inf).max(initial=0.0)))
        if link.name == name:
            break
    return worst


def slips(config: ModelConfig) -> Iterator[tuple[str, Slip]]:
    """What people and libraries get wrong, each as a change of one operation."""
    yield from _of_positions(config)
    yield from _of_attention(config)
    yield from _of_norms(config)
    yield from _of_mlp(config)
    yield "the residual is left out", _instead(Add, lambda _: _Second())
    yield "biases are left out", _instead(Linear, lambda op: _Unbiased(op.heads_in, op.heads_out))
    yield "a square matrix is transposed", _instead(Linear, lambda op: _Transposed(op.heads_in, op.heads_out))
    yield "embeddings are multiplied by √d_model", _instead(Embedding, lambda _: _Scaled(math.sqrt(config.d_model)))


def _instead(kind: type, make: Callable[[Any], Operation]) -> Slip:
    return lambda operation: make(operation) if isinstance(operation, kind) else None


def _of_positions(config: ModelConfig) -> Iterator[tuple[str, Slip]]:
    other = "interleaved" if config.rotary_layout == "half" else "half"
    yield (
        f"the rotary layout differs: pairs are {other}, not {config.rotary_layout}",
        _instead(Rotary, lambda op: replace(op, layout=other)),
    )
    for base in (10_000.0, 500_000.0, 1_000_000.0):
        if base != config.rotary_base:
            yield f"the rotary base is {base:,.0f}, not {config.rotary_base:,.0f}", _rotary(base=base)
    if config.rotary_scaling != "none":
        yield "the rotary frequencies are not stretched", _rotary(scaling="none")
    for shift in (1, -1, 2):
        yield f"positions are counted from {shift}, not 0", _shifted(shift)
    yield "queries and keys turn the other way", _instead(Rotary, lambda op: _backwards(op))
    yield "queries and keys are not turned", _rotary(base=math.inf)


def _shifted(by: int) -> Slip:
    def slip(operation: Operation) -> Operation | None:
        if isinstance(operation, LearnedPositions):
            return _LaterRows(operation.length, by)
        return _later(operation, by) if isinstance(operation, Rotary) else None

    return slip


def _rotary(**changes: Any) -> Slip:
    return _instead(Rotary, lambda op: replace(op, **changes))


def _of_attention(config: ModelConfig) -> Iterator[tuple[str, Slip]]:
    d_head = config.d_head
    for words, scale in (
        ("scores are not divided by √d_head", 1.0),
        ("scores are divided by d_head, not its root", 1 / d_head),
        ("scores are divided by √d_model, not √d_head", 1 / math.sqrt(config.d_model)),
    ):
        yield words, _scaled(scale)
    yield "later keys are not hidden", _instead(CausalSoftmax, lambda op: replace(op, causal=False))
    yield "the mask shows one key too many", _instead(CausalSoftmax, lambda op: _OneAhead(op.window))
    yield "each query's own key is hidden", _instead(CausalSoftmax, lambda op: _NotItself(op.window))
    yield "the window is ignored", _window(lambda _: None)
    yield "the window sees one key more", _window(lambda window: window + 1)
    yield "the window sees one key less", _window(lambda window: max(1, window - 1))
    if 1 < config.num_kv_heads < config.num_heads:
        yield "query heads share key heads in turn, not in groups", _instead(Scores, lambda op: _InTurn(op.scale))


def _scaled(scale: float) -> Slip:
    return _instead(Scores, lambda _: Scores(scale))


def _window(change: Callable[[int], int | None]) -> Slip:
    def slip(operation: Operation) -> Operation | None:
        if not isinstance(operation, CausalSoftmax) or operation.window is None:
            return None
        return replace(operation, window=change(operation.window))

    return slip


def _of_norms(config: ModelConfig) -> Iterator[tuple[str, Slip]]:
    for eps in (1e-3, 1e-5, 1e-6, 1e-8, 1e-12, 0.0):
        if eps != config.norm_eps:
            yield f"the norm's epsilon is {eps:g}, not {config.norm_eps:g}", _epsilon(eps)
    yield "the norm's gain is 1 + weight", _instead(RMSNorm, lambda op: _OnePlus(op.eps))
    yield "the norm does not subtract the mean", _instead(LayerNorm, lambda op: _Uncentred(op.eps))
    yield "the norm divides the variance by d - 1", _instead(LayerNorm, lambda op: _Unbiased1(op.eps))


def _epsilon(eps: float) -> Slip:
    def slip(operation: Operation) -> Operation | None:
        return replace(operation, eps=eps) if isinstance(operation, LayerNorm | RMSNorm) else None

    return slip


def _of_mlp(config: ModelConfig) -> Iterator[tuple[str, Slip]]:
    for word, activation in ACTIVATIONS.items():
        if word != config.activation:
            yield f"the activation is {word}, not {config.activation}", _activation(activation)
    yield "gate and up are exchanged", _instead(Gated, lambda op: _Exchanged(op.activation))


def _activation(other: Activation) -> Slip:
    def slip(operation: Operation) -> Operation | None:
        if isinstance(operation, Gated):
            return Gated(other)
        return other if isinstance(operation, Activation) else None

    return slip


class _Second(Add):
    def forward(self, x: Array, y: Array) -> Any:
        return super().forward(0 * x, y)


class _Unbiased(Linear):
    def forward(self, x: Array, weight: Array, bias: Array | None = None) -> Any:
        return super().forward(x, weight)


class _Transposed(Linear):
    def forward(self, x: Array, weight: Array, bias: Array | None = None) -> Any:
        return super().forward(x, weight.T if weight.shape[0] == weight.shape[1] else weight, bias)


@dataclass(frozen=True)
class _Scaled(Embedding):
    scale: float

    def forward(self, tokens: Array, table: Array) -> Any:
        y, saved = super().forward(tokens, table)
        return self.scale * y, saved


@dataclass(frozen=True)
class _LaterRows(LearnedPositions):
    by: int

    def forward(self, table: Array) -> Any:
        return super().forward(np.roll(table, -self.by, 0))


def _later(operation: Rotary, by: int) -> Operation:
    class Later(Rotary):
        def forward(self, x: Array) -> Any:
            padded = np.concatenate((np.repeat(x[:, :1], abs(by), 1), x), 1) if by > 0 else x
            y, saved = super().forward(padded)
            if by > 0:
                return y[:, by:], saved
            first, _ = _backwards(operation).forward(x[:, :2])  # position -1 turns back by one
            return np.concatenate((first[:, 1:], y[:, :-1]), 1) if x.shape[1] > 1 else y, saved

    return Later(**{name: getattr(operation, name) for name in operation.__dataclass_fields__})


def _backwards(operation: Rotary) -> Operation:
    class Backwards(Rotary):
        def forward(self, x: Array) -> Any:
            _, saved = super().forward(x)
            return super().backward(x, saved)[0], saved

    return Backwards(**{name: getattr(operation, name) for name in operation.__dataclass_fields__})


class _OneAhead(CausalSoftmax):
    def visible(self, queries: int, keys: int) -> Array:
        seen = super().visible(queries, keys)
        return seen | np.roll(seen, -1, 0) | np.eye(queries, keys, keys - queries + 1, dtype=bool)


class _NotItself(CausalSoftmax):
    def visible(self, queries: int, keys: int) -> Array:
        seen = super().visible(queries, keys) & ~np.eye(queries, keys, keys - queries, dtype=bool)
        seen[~seen.any(-1), 0] = True
        return seen


class _InTurn(Scores):
    def forward(self, query: Array, key: Array) -> Any:
        return super().forward(query, np.tile(key, (1, 1, query.shape[2] // key.shape[2], 1)))


class _OnePlus(RMSNorm):
    def forward(self, x: Array, weight: Array) -> Any:
        return super().forward(x, 1 + weight)


class _Uncentred(LayerNorm):
    def forward(self, x: Array, weight: Array, bias: Array) -> Any:
        y, _ = RMSNorm(self.eps).forward(x, weight)
        return y + bias, super().forward(x, weight, bias)[1]


class _Unbiased1(LayerNorm):
    def forward(self, x: Array, weight: Array, bias: Array) -> Any:
        sigma = np.sqrt(x.var(-1, ddof=1, keepdims=True) + self.eps)
        return weight * (x - x.mean(-1, keepdims=True)) / sigma + bias, super().forward(x, weight, bias)[1]


class _Exchanged(Gated):
    def forward(self, gate: Array, up: Array) -> Any:
        return super().forward(up, gate)
