"""Exercises about the residual stream, with numbers of a recorded step."""

from __future__ import annotations

import numpy as np

from limpid.errors import ConfigError
from limpid.primer.own.draw import Own, number, own, rounded
from limpid.tracing.trace import Trace


def _stream(trace: Trace, rng: np.random.Generator, count: int) -> tuple[str, tuple[int, int], slice]:
    """The stream behind a block, a token of the batch, and so many neighbouring entries."""
    model = trace.record.config.model
    rows, tokens = trace.array("tokens").shape
    block, at = int(rng.integers(model.num_layers)), (int(rng.integers(rows)), int(rng.integers(tokens)))
    start = int(rng.integers(model.d_model - count + 1))
    return f"blocks.{block}.residual2", at, slice(start, start + count)


def _before(trace: Trace, block: str) -> str:
    """What the MLP's output is added to."""
    model = trace.record.config.model
    if not model.attention_residual:
        return f"{block}.attention.output"
    return f"{block}.norm1" if model.norm_placement == "post" else f"{block}.residual1"


def add_vectors(trace: Trace, rng: np.random.Generator) -> Own:
    """Three entries of the stream, and what an MLP adds to them."""
    name, at, entries = _stream(trace, rng, 3)
    block, said = name.removesuffix(".residual2"), f"[{at[0]}, {at[1]}, {entries.start}:{entries.stop}]"
    added = next(one for one in (f"{block}.mlp.dropped", f"{block}.mlp.output") if one in trace.names())
    a, b = (trace.array(one, (*at, entries)) for one in (_before(trace, block), added))
    of = f"a is {_before(trace, block)}{said}, b what the MLP adds to it."
    return own({"a": rounded(a), "b": rounded(b)}, of, name + said, trace.array(name, (*at, entries)))


def layer_norm(trace: Trace, rng: np.random.Generator) -> Own:
    """Four entries of the stream, as if a vector had no others."""
    name, at, entries = _stream(trace, rng, 4)
    said = f"{name}[{at[0]}, {at[1]}, {entries.start}:{entries.stop}]"
    x = trace.array(name, (*at, entries))
    of = f"x is {said}; the step's own norm takes all {trace.record.config.model.d_model} entries."
    return own({"x": rounded(x)}, of, said, (x - x.mean()) / x.std())


def power_rule(trace: Trace, rng: np.random.Generator) -> Own:
    """An entry of the stream, which norms square."""
    name, at, entries = _stream(trace, rng, 1)
    said, x = f"{name}[{at[0]}, {at[1]}, {entries.start}]", trace.array(name, (*at, entries))[0]
    return own({"n": 2, "x": number(x)}, f"x is {said}; a norm squares it.", f"twice {said}", 2 * x)


def _ends(trace: Trace, rng: np.random.Generator) -> tuple[float, int, str]:
    """By how much the length of a token's gradient grew on its way back, in how many parts, and how that is said."""
    model = trace.record.config.model
    last, parts = f"blocks.{model.num_layers - 1}.residual2", 2 * model.num_layers
    begins = {"embed.sum": parts, "embed.tokens": parts, "blocks.0.residual1": parts - 1}
    held = [name for name in begins if name in trace.names() and trace.tensor(f"grad({name})")[1] in trace.record.names]
    if not held:
        raise ConfigError("the beginning of the stream has no gradient in this step: take a run that trains all of it")
    first, parts = held[0], begins[held[0]]
    lengths = [np.linalg.norm(trace.array(f"grad({name})"), axis=-1) for name in (first, last)]
    both = np.argwhere((lengths[0] > 0) & (lengths[1] > 0))
    if len(both):
        row, token = map(int, rng.choice(both))
        where = f"‖grad({first})[{row}, {token}]‖ / ‖grad({last})[{row}, {token}]‖"
        return float(lengths[0][row, token] / lengths[1][row, token]), parts, where
    raise ConfigError("no token of this step has a gradient at both ends of the stream: take another step")


def product_of_slopes(trace: Trace, rng: np.random.Generator) -> Own:
    """The factor that each part would have if all had the same."""
    ratio, parts, where = _ends(trace, rng)
    of = f"From the end of the stream to its beginning lie {parts} parts, attention and MLPs; on average"
    return own({"s": number(ratio ** (1 / parts)), "k": parts}, f"{of} each does as follows.", where, ratio)


def identity_path(trace: Trace, rng: np.random.Generator) -> Own:
    """The same factor, less the 1 of the stream itself."""
    ratio, parts, where = _ends(trace, rng)
    of = "Attention and MLPs of all blocks, with the slope that each had if all had the same."
    return own({"n": parts, "g": number(ratio ** (1 / parts) - 1)}, of, where, ratio)


DRAWN = {
    "add-vectors": add_vectors, "layer-norm": layer_norm, "power-rule": power_rule,
    "product-of-slopes": product_of_slopes, "identity-path": identity_path,
}  # fmt: skip
