"""Each kernel of the decoder redone in float64 from its own inputs: a fault is placed at the one that has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float
from torch import Tensor

from limpid.comparison.observed import Observed
from limpid.config import ModelConfig, WeightFormat
from limpid.generation.cpu.position import PositionDecoder
from limpid.maths.attention import CausalSoftmax, Mix, Scores
from limpid.maths.chain import Link, Outline
from limpid.maths.operation import Array
from limpid.maths.rounding import FORMATS, unit_roundoff
from limpid.maths.transformer import transformer
from limpid.model.cache import Cache
from limpid.tracing.ball import Ball, limit
from limpid.tracing.comparison import Expected, Range, compare
from limpid.tracing.kernels import Formats, Kernel
from limpid.tracing.kernels.attention import ShortAttention
from limpid.tracing.kernels.kernel import OneOperation
from limpid.tracing.verdict import Check


def check_kernels(
    config: ModelConfig, seen: Observed, learned: Mapping[str, Array], decoder: PositionDecoder, cache: Cache
) -> list[Check]:
    """Every kernel over all positions, in the order of the model; first what they read: matrices, keys, values.

    learned   the model's parameters, low-rank factors added in
    """
    read = decoder.matrices()
    with np.errstate(all="ignore"):
        return [
            *_matrices(seen, learned, read, decoder.weights_read), *_cached(config, seen, cache),
            *_kernels(config, seen, {**learned, **read}, cache),
        ]  # fmt: skip


def _kernels(config: ModelConfig, seen: Observed, learned: Mapping[str, Array], cache: Cache) -> Iterator[Check]:
    arrays = {**seen.values, **learned, "tokens": seen.tokens}
    formats = Formats(seen.summed, seen.compute, seen.compute, ())
    chain = Outline({**learned, "tokens": seen.tokens})
    transformer(chain, config)
    for links in _pieces(chain, seen):
        link, inputs = links[-1], [arrays[name] for name in _inputs(links)]
        if link.name == "logits":
            inputs[1] = learned["logits.weight"]
        elif isinstance(link.operation, Mix):
            block = int(link.name.split(".")[1])
            inputs = [inputs[0], _by_position(cache.keys[block]), _by_position(cache.values[block])]
        ball, _ = _kernel(links, formats).forward(inputs)
        yield _compared(link.name, seen, seen.values[link.name], ball)


def _pieces(chain: Outline, seen: Observed) -> Iterator[tuple[Link, ...]]:
    """The operations between one observed quantity and the next."""
    pending: list[Link] = []
    for link in chain.links:
        pending.append(link)
        if link.name in seen.values:
            yield tuple(pending)
            pending = []


def _inputs(links: Sequence[Link]) -> list[str]:
    made = {link.name for link in links}
    return list(dict.fromkeys(name for link in links for name in link.inputs if name not in made))


def _kernel(links: Sequence[Link], formats: Formats) -> Kernel:
    """Sums are float32 throughout, and what is stored is, so that nothing else is rounded on the way."""
    match [link.operation for link in links]:
        case [Scores() as scores, CausalSoftmax() as softmax, Mix()]:
            return ShortAttention(scores, softmax, formats)
    return OneOperation(links[-1].operation, formats, in_parts=False)


def _matrices(
    seen: Observed, learned: Mapping[str, Array], read: Mapping[str, Float[Array, "out in"]], weights_read: WeightFormat
) -> Iterator[Check]:
    """What the decoder reads against the model's own."""
    for name, matrix in read.items():
        own = learned.get(name, learned["embed.tokens.weight"])
        yield _compared(f"read({name})", seen, matrix, Ball(own, _half_steps(own, weights_read)))


def _half_steps(own: Float[Array, "out in"], weights_read: WeightFormat) -> Float[Array, "out in"]:
    """Half the distance between neighbours of a format; that of int8 is a float32 number, and so is the quotient."""
    if weights_read == "int8":
        single = unit_roundoff(FORMATS["fp32"])
        step = np.abs(own).max(-1, keepdims=True) / 127
        return np.broadcast_to(step * (0.5 + 2 * 127 * single), own.shape)
    return unit_roundoff(FORMATS["bf16"]) * np.abs(own) if weights_read == "bf16" else np.zeros_like(own)


def _cached(config: ModelConfig, seen: Observed, cache: Cache) -> Iterator[Check]:
    """Keys and values are copied, not computed."""
    key = "key_rotated" if config.positions == "rotary" else "key_norm" if config.qk_norm else "key"
    for block in range(config.num_layers):
        for kept, name in ((cache.keys, key), (cache.values, "value")):
            quantity = f"blocks.{block}.attention.{name}"
            copied = Ball(seen.values[quantity], np.zeros_like(seen.values[quantity]))
            yield _compared(f"cached({quantity})", seen, _by_position(kept[block]), copied)


def _by_position(heads: Tensor) -> Float[Array, "batch position head d_head"]:
    moved: Array = heads.transpose(1, 2).double().numpy()
    return moved


def _compared(name: str, seen: Observed, engine: Array, ball: Ball) -> Check:
    return compare(name, "forward", engine, Expected(ball.value, limit(ball, seen.compute), Range(seen.compute)))
