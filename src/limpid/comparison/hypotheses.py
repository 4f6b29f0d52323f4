"""Hypotheses for a disagreement: known faults, planted in the mathematics one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from limpid.comparison.observed import Observed
from limpid.comparison.rounding_spread import length
from limpid.config import ModelConfig
from limpid.maths.activation import ACTIVATIONS, Activation
from limpid.maths.attention import CausalSoftmax, Scores
from limpid.maths.chain import Chain
from limpid.maths.embedding import Embedding, LearnedPositions, Rotary
from limpid.maths.linear import Add, Linear
from limpid.maths.mlp import Gated
from limpid.maths.norm import LayerNorm, RMSNorm
from limpid.maths.operation import Array, Operation

Fault = Callable[[Operation], Operation | None]
"""What an operation becomes by a fault; None where it does not apply."""


class Hypothesis(NamedTuple):
    """A fault that people and libraries make, as a change of one operation."""

    words: str
    fault: Fault


@dataclass(frozen=True)
class Explanation:
    """A fault that explains a disagreement."""

    words: str
    worst: float  # distance of what was observed from what the fault would give, in bounds


class FaultyChain(Chain):
    """A chain in which one kind of operation is another."""

    def __init__(self, values: dict[str, Array], fault: Fault) -> None:
        super().__init__(values)
        self.fault, self.applied = fault, False

    def apply(self, name: str, operation: Operation, *inputs: str) -> str:
        other = self.fault(operation)
        self.applied = self.applied or other is not None
        return super().apply(name, other or operation, *inputs)


class _Decided(Exception):
    """Nothing that comes later changes whether a fault explains what was observed."""


class _HeldAgainst(FaultyChain):
    """A faulty chain that ends where it leaves what was observed, or at the disagreement that it is to explain."""

    def __init__(self, observed: Observed, fault: Fault, name: str, limits: dict[str, Array]) -> None:
        super().__init__({**observed.parameters, **observed.arrays}, fault)
        self.observed, self.name, self.limits, self.worst = observed.values, name, limits, 0.0

    def apply(self, name: str, operation: Operation, *inputs: str) -> str:
        super().apply(name, operation, *inputs)
        if name in self.observed:
            value = self.values[name]
            ratio = length(self.observed[name].reshape(value.shape) - value) / self.limits[name]
            self.worst = max(self.worst, float(np.nan_to_num(ratio, nan=np.inf).max(initial=0.0)))
        if self.worst > 1 or name == self.name:
            raise _Decided
        return name


def explain(config: ModelConfig, observed: Observed, name: str, limits: dict[str, Array]) -> tuple[Explanation, ...]:
    """The faults whose numbers agree with those observed at `name` and before it, best first."""
    explained = []
    for words, fault in hypotheses(config):
        chain = _HeldAgainst(observed, fault, name, limits)
        try:
            with np.errstate(all="ignore"), suppress(_Decided):
                observed.objective.chain(chain, config)
        except ValueError:  # a fault that does not even fit explains nothing
            continue
        if chain.applied and chain.worst <= 1:
            explained.append(Explanation(words, chain.worst))
    return tuple(sorted(explained, key=lambda explanation: explanation.worst))


def hypotheses(config: ModelConfig) -> Iterator[Hypothesis]:
    """Every known fault that this configuration could have."""
    yield from _of_positions(config)
    yield from _of_attention(config)
    yield from _of_norms(config)
    yield from _of_mlp(config)
    yield Hypothesis("the residual is left out", _instead(Add, lambda _: _NoResidual()))
    yield Hypothesis("biases are left out", _instead(Linear, lambda op: _NoBias(op.heads_in, op.heads_out)))
    yield Hypothesis(
        "a square matrix is transposed", _instead(Linear, lambda op: _Transposed(op.heads_in, op.heads_out))
    )
    yield Hypothesis(
        "embeddings are multiplied by √d_model",
        _instead(Embedding, lambda _: _ScaledEmbedding(math.sqrt(config.d_model))),
    )


def _instead(kind: type, make: Callable[[Any], Operation]) -> Fault:
    return lambda operation: make(operation) if isinstance(operation, kind) else None


def _of_positions(config: ModelConfig) -> Iterator[Hypothesis]:
    other = "interleaved" if config.rotary_layout == "half" else "half"
    yield Hypothesis(
        f"the rotary layout differs: pairs are {other}, not {config.rotary_layout}",
        _instead(Rotary, lambda op: replace(op, layout=other)),
    )
    for base in (10_000.0, 500_000.0, 1_000_000.0):
        if base != config.rotary_base:
            yield Hypothesis(f"the rotary base is {base:,.0f}, not {config.rotary_base:,.0f}", _rotary(base=base))
    if config.rotary_scaling != "none":
        yield Hypothesis("the rotary frequencies are not stretched", _rotary(scaling="none"))
    for shift in (1, -1, 2):
        yield Hypothesis(f"positions are counted from {shift}, not 0", _positions_from(shift))
    yield Hypothesis("queries and keys are rotated the other way", _instead(Rotary, lambda op: _reversed(op)))
    yield Hypothesis("queries and keys are not rotated", _rotary(base=math.inf))


def _positions_from(by: int) -> Fault:
    def fault(operation: Operation) -> Operation | None:
        if isinstance(operation, LearnedPositions):
            return _ShiftedPositions(operation.length, by)
        return _shifted_rotary(operation, by) if isinstance(operation, Rotary) else None

    return fault


def _rotary(**changes: Any) -> Fault:
    return _instead(Rotary, lambda op: replace(op, **changes))


def _of_attention(config: ModelConfig) -> Iterator[Hypothesis]:
    d_head = config.sizes.d_head
    for words, scale in (
        ("scores are not divided by √d_head", 1.0),
        ("scores are divided by d_head, not its root", 1 / d_head),
        ("scores are divided by √d_model, not √d_head", 1 / math.sqrt(config.d_model)),
    ):
        yield Hypothesis(words, _scaled(scale))
    yield Hypothesis("later keys are not hidden", _instead(CausalSoftmax, lambda op: replace(op, causal=False)))
    yield Hypothesis("the mask shows one key too many", _instead(CausalSoftmax, lambda op: _OneKeyAhead(op.window)))
    yield Hypothesis("each query's own key is hidden", _instead(CausalSoftmax, lambda op: _OwnKeyHidden(op.window)))
    yield Hypothesis("the window is ignored", _window(lambda _: None))
    yield Hypothesis("the window sees one key more", _window(lambda window: window + 1))
    yield Hypothesis("the window sees one key less", _window(lambda window: max(1, window - 1)))
    if 1 < config.sizes.num_kv_heads < config.num_heads:
        yield Hypothesis(
            "query heads share key heads in turn, not in groups", _instead(Scores, lambda op: _HeadsInTurn(op.scale))
        )


def _scaled(scale: float) -> Fault:
    return _instead(Scores, lambda _: Scores(scale))


def _window(change: Callable[[int], int | None]) -> Fault:
    def fault(operation: Operation) -> Operation | None:
        if not isinstance(operation, CausalSoftmax) or operation.window is None:
            return None
        return replace(operation, window=change(operation.window))

    return fault


def _of_norms(config: ModelConfig) -> Iterator[Hypothesis]:
    for eps in (1e-3, 1e-5, 1e-6, 1e-8, 1e-12, 0.0):
        if eps != config.norm_eps:
            yield Hypothesis(f"the norm's epsilon is {eps:g}, not {config.norm_eps:g}", _epsilon(eps))
    yield Hypothesis("the norm's gain is 1 + weight", _instead(RMSNorm, lambda op: _GainPlusOne(op.eps)))
    yield Hypothesis("the norm does not subtract the mean", _instead(LayerNorm, lambda op: _Uncentred(op.eps)))
    yield Hypothesis("the norm divides the variance by d - 1", _instead(LayerNorm, lambda op: _SampleVariance(op.eps)))


def _epsilon(eps: float) -> Fault:
    def fault(operation: Operation) -> Operation | None:
        return replace(operation, eps=eps) if isinstance(operation, LayerNorm | RMSNorm) else None

    return fault


def _of_mlp(config: ModelConfig) -> Iterator[Hypothesis]:
    for word, activation in ACTIVATIONS.items():
        if word != config.activation:
            yield Hypothesis(f"the activation is {word}, not {config.activation}", _activation(activation))
    yield Hypothesis("gate and up are exchanged", _instead(Gated, lambda op: _GateUpSwapped(op.activation)))


def _activation(other: Activation) -> Fault:
    def fault(operation: Operation) -> Operation | None:
        if isinstance(operation, Gated):
            return Gated(other)
        return other if isinstance(operation, Activation) else None

    return fault


class _NoResidual(Add):
    def forward(self, x: Array, y: Array) -> Any:
        return super().forward(0 * x, y)


class _NoBias(Linear):
    def forward(self, x: Array, weight: Array, bias: Array | None = None) -> Any:
        return super().forward(x, weight)


class _Transposed(Linear):
    def forward(self, x: Array, weight: Array, bias: Array | None = None) -> Any:
        return super().forward(x, weight.T if weight.shape[0] == weight.shape[1] else weight, bias)


@dataclass(frozen=True)
class _ScaledEmbedding(Embedding):
    scale: float

    def forward(self, tokens: Array, table: Array) -> Any:
        y, saved = super().forward(tokens, table)
        return self.scale * y, saved


@dataclass(frozen=True)
class _ShiftedPositions(LearnedPositions):
    by: int

    def forward(self, table: Array) -> Any:
        return super().forward(np.roll(table, -self.by, 0))


def _shifted_rotary(operation: Rotary, by: int) -> Operation:
    class Later(Rotary):
        def forward(self, x: Array) -> Any:
            padded = np.concatenate((np.repeat(x[:, :1], abs(by), 1), x), 1) if by > 0 else x
            y, saved = super().forward(padded)
            if by > 0:
                return y[:, by:], saved
            first, _ = _reversed(operation).forward(x[:, :2])  # position -1 rotates back by one
            return np.concatenate((first[:, 1:], y[:, :-1]), 1) if x.shape[1] > 1 else y, saved

    return Later(**{name: getattr(operation, name) for name in operation.__dataclass_fields__})


def _reversed(operation: Rotary) -> Operation:
    class Backwards(Rotary):
        def forward(self, x: Array) -> Any:
            _, saved = super().forward(x)
            return super().backward(x, saved)[0], saved

    return Backwards(**{name: getattr(operation, name) for name in operation.__dataclass_fields__})


class _OneKeyAhead(CausalSoftmax):
    def visible(self, queries: int, keys: int) -> Array:
        visible = super().visible(queries, keys)
        return visible | np.roll(visible, -1, 0) | np.eye(queries, keys, keys - queries + 1, dtype=bool)


class _OwnKeyHidden(CausalSoftmax):
    def visible(self, queries: int, keys: int) -> Array:
        visible = super().visible(queries, keys) & ~np.eye(queries, keys, keys - queries, dtype=bool)
        visible[~visible.any(-1), 0] = True
        return visible


class _HeadsInTurn(Scores):
    def forward(self, query: Array, key: Array) -> Any:
        return super().forward(query, np.tile(key, (1, 1, query.shape[2] // key.shape[2], 1)))


class _GainPlusOne(RMSNorm):
    def forward(self, x: Array, weight: Array) -> Any:
        return super().forward(x, 1 + weight)


class _Uncentred(LayerNorm):
    def forward(self, x: Array, weight: Array, bias: Array) -> Any:
        y, _ = RMSNorm(self.eps).forward(x, weight)
        return y + bias, super().forward(x, weight, bias)[1]


class _SampleVariance(LayerNorm):
    def forward(self, x: Array, weight: Array, bias: Array) -> Any:
        sigma = np.sqrt(x.var(-1, ddof=1, keepdims=True) + self.eps)
        return weight * (x - x.mean(-1, keepdims=True)) / sigma + bias, super().forward(x, weight, bias)[1]


class _GateUpSwapped(Gated):
    def forward(self, gate: Array, up: Array) -> Any:
        return super().forward(up, gate)
