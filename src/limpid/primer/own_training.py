"""Exercises about losses, sizes, updates and precision, with numbers of a recorded step."""

from __future__ import annotations

import numpy as np

from limpid.errors import ConfigError
from limpid.maths.operation import Array
from limpid.primer.own_draw import Own, head_size, rounded
from limpid.tracing.trace import Trace

RUN = 3
"""Tokens whose probabilities are multiplied."""


def surprise(trace: Trace, rng: np.random.Generator) -> Own:
    """What the model gave to a token that came."""
    targets = trace.array("targets")
    row, position = (int(at) for at in rng.choice(np.argwhere(targets >= 0)))
    token = int(targets[row, position])
    logarithm = float(trace.array("log_probabilities", (row, position, token)))
    return Own({"p": float(rounded(np.exp(logarithm)))}, f"log_probabilities[{row}, {position}, {token}], times −1")


def chain_of_tokens(trace: Trace, rng: np.random.Generator) -> Own:
    """What the model gave to tokens that came one after the other."""
    targets = trace.array("targets")
    begins = [(row, at) for row, at in np.argwhere(targets >= 0) if _labelled(targets[row, at : at + RUN])]
    if not begins:
        raise ConfigError(f"this step has no {RUN} targets one after the other: take a run on plain text")
    row, at = (int(one) for one in begins[int(rng.integers(len(begins)))])
    tokens = [int(token) for token in targets[row, at : at + RUN]]
    logarithms = [trace.array("log_probabilities", (row, at + one, token)) for one, token in enumerate(tokens)]
    entries = " + ".join(f"log_probabilities[{row}, {at + one}, {token}]" for one, token in enumerate(tokens))
    return Own({"p": rounded(np.exp(logarithms))}, entries)


def _labelled(targets: Array) -> bool:
    return len(targets) == RUN and bool((targets >= 0).all())


def perplexity(trace: Trace, _: np.random.Generator) -> Own:
    return Own({"h": float(rounded(trace.array("loss").item()))}, "loss, whose exponential the perplexity is")


def layer_sizes(trace: Trace, rng: np.random.Generator) -> Own:
    name, rows, columns = _matrix(trace, rng, square=False)
    return Own({"rows": rows, "columns": columns}, name)


def product_shape(trace: Trace, _: np.random.Generator) -> Own:
    """The tokens of a row of the batch times a weight that was turned."""
    name = "blocks.0.mlp.up"
    d_ff, d_model = trace.record.shape(trace.tensor(f"{name}.weight")[1])
    numbers = {"m": int(trace.array("tokens").shape[1]), "n": int(d_model), "p": int(d_ff)}
    return Own(numbers, f"{name}, a row of the batch: tokens times {name}.weight transposed")


def cache_of_a_token(trace: Trace, _: np.random.Generator) -> Own:
    model = trace.record.config.model
    numbers = {"layers": model.num_layers, "heads": model.num_heads,
               "kv_heads": model.num_kv_heads or model.num_heads, "d_head": head_size(trace)}  # fmt: skip
    return Own(numbers, "attention.key and attention.value of all blocks at one position, in bf16")


def low_rank(trace: Trace, rng: np.random.Generator) -> Own:
    name, rows, columns = _matrix(trace, rng)
    return Own({"outputs": rows, "inputs": columns, "rank": int(rng.choice([2, 4]))}, f"{name}, to which B A is added")


def gap_of_a_weight(trace: Trace, rng: np.random.Generator) -> Own:
    """A weight, without its sign."""
    name, rows, columns = _matrix(trace, rng)
    row, column = int(rng.integers(rows)), int(rng.integers(columns))
    weight = abs(float(rounded(trace.array(name, (row, column)))))
    return Own({"x": weight}, f"{name}[{row}, {column}], without its sign")


def first_update(trace: Trace, rng: np.random.Generator) -> Own:
    """A weight, its gradient, and what AdamW makes of them, in the first update of a run."""
    update, meta = trace.record.config.update, trace.record.meta
    if update.optimizer != "adamw" or meta["update_number"] != 1:
        raise ConfigError(f"this step is update {meta['update_number']} by {update.optimizer}, and the first one by "
                          "AdamW is asked for: record it with run.record_steps = [1], or take of worked")  # fmt: skip
    name, rows, columns = _matrix(trace, rng)
    at = int(rng.integers(rows)), int(rng.integers(columns))
    numbers = {
        "theta": float(rounded(trace.array(name, at))),
        "g": float(rounded(trace.array(f"grad({name})", at))),
        "rate": float(meta["learning_rate"]),
        "decay": float(update.weight_decay),
    }
    return Own(numbers, f"update({name})[{at[0]}, {at[1]}]")


def window(trace: Trace, _: np.random.Generator) -> Own:
    return Own({"beta": trace.record.config.update.beta2}, "the optimizer's beta2")


def _matrix(trace: Trace, rng: np.random.Generator, square: bool = True) -> tuple[str, int, int]:
    """A weight matrix of a block, its rows and its columns."""
    names = [name for name in trace.names() if name.startswith("blocks.") and name.endswith(".weight")]
    shapes = {name: trace.record.shape(trace.tensor(name)[1]) for name in names}
    fit = [name for name, shape in shapes.items() if len(shape) == 2 and (square or len(set(shape)) == 2)]
    name = str(rng.choice(fit))
    rows, columns = shapes[name]
    return name, int(rows), int(columns)


DRAWN = {
    "surprise": surprise, "chain-of-tokens": chain_of_tokens, "perplexity": perplexity, "layer-sizes": layer_sizes,
    "product-shape": product_shape, "cache-of-a-token": cache_of_a_token, "low-rank-parameters": low_rank,
    "bfloat16-gap": gap_of_a_weight, "adamw-first-step": first_update, "momentum-window": window,
}  # fmt: skip
