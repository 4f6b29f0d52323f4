"""Exercises about sizes, memory and formats, with those of a recorded step."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from limpid.errors import ConfigError
from limpid.maths.rounding import FORMATS
from limpid.planning.laws.scaling import six_n_d
from limpid.primer.own.draw import Own, head_size, matrix, own
from limpid.primer.sizes import training_bytes
from limpid.quantities import parameters
from limpid.tracing.trace import Trace


def _parameters(trace: Trace) -> int:
    """How many numbers are learned."""
    every = parameters(trace.record.config.model)
    return sum(int(np.prod(trace.record.shape(trace.tensor(one.name)[1]))) for one in every)


def layer_sizes(trace: Trace, rng: np.random.Generator) -> Own:
    name, rows, columns = matrix(trace, rng, square=False)
    held = np.array([columns, rows])
    return own({"rows": rows, "columns": columns}, f"W is {name}.", f"{name}, and what goes through it", held)


def _mlp(trace: Trace) -> dict[str, int]:
    """The tokens of a row of the batch times a weight that was turned."""
    d_ff, d_model = trace.record.shape(trace.tensor("blocks.0.mlp.up.weight")[1])
    return {"m": int(trace.array("tokens").shape[1]), "n": int(d_model), "p": int(d_ff)}


def product_shape(trace: Trace, _: np.random.Generator) -> Own:
    of = "A is what comes into blocks.0.mlp in a row of the batch, B the transpose of blocks.0.mlp.up.weight."
    made = np.array(trace.array("blocks.0.mlp.up", (0,)).shape)
    return own(_mlp(trace), of, "blocks.0.mlp.up, a row of the batch", made)


def product_order(trace: Trace, _: np.random.Generator) -> Own:
    sizes = _mlp(trace)
    if sizes["m"] == sizes["p"]:
        raise ConfigError(f"d_ff and the tokens of a row are both {sizes['m']}, so that both orders have a shape: "
                          "take a run with another d_ff")  # fmt: skip
    of = "A is what comes into blocks.0.mlp in a row of the batch, B the transpose of blocks.0.mlp.up.weight."
    return own(sizes, of, "blocks.0.mlp.up, which is A B", np.array([]))


def cache_of_a_token(trace: Trace, _: np.random.Generator) -> Own:
    model = trace.record.config.model
    numbers = {"layers": model.num_layers, "heads": model.num_heads,
               "kv_heads": model.num_kv_heads or model.num_heads, "d_head": head_size(trace)}  # fmt: skip
    kept = sum(trace.array(f"blocks.{block}.attention.{one}", (0, 0)).size for block in range(model.num_layers)
               for one in ("key", "value"))  # fmt: skip
    return own(numbers, "The sizes of this step's model.",
               "attention.key and attention.value of all blocks at one position, in bf16", 2 * kept)  # fmt: skip


def low_rank(trace: Trace, rng: np.random.Generator) -> Own:
    name, rows, columns = matrix(trace, rng)
    rank = int(rng.choice([2, 4]))
    held = np.zeros((rows, rank)).size + np.zeros((rank, columns)).size
    return own({"outputs": rows, "inputs": columns, "rank": rank}, f"The matrix is {name}.",
               f"{name}, to which B A is added", held)  # fmt: skip


def size_of_a_gradient(trace: Trace, _: np.random.Generator) -> Own:
    count = _parameters(trace)
    numbers = {"billions": count / 1e9, "layers": trace.record.config.model.num_layers}
    return own(numbers, "The model of this step.", "grad of every parameter, entries together", count)


def training_flops(trace: Trace, _: np.random.Generator) -> Own:
    count, meta = _parameters(trace), trace.record.meta
    tokens = int(meta["step"]) * sum(int(part["tokens"]) for part in meta["micro_batches"])
    of = f"The model of this step, and the tokens of its {meta['step']:,} steps so far."
    where = "6 N D, which leaves out attention's scores and counts embeddings: plan tells them apart"
    return own({"parameters": count / 1e9, "tokens": tokens / 1e9}, of, where, six_n_d(count, tokens))


def training_memory(trace: Trace, _: np.random.Generator) -> Own:
    count = _parameters(trace)
    return own({"parameters": count / 1e9}, "The model of this step.", "every parameter, its gradient and its moments",
               training_bytes(count) / 1e9)  # fmt: skip


def _format(trace: Trace) -> tuple[str, ml_dtypes.finfo]:
    """In which the step was reckoned."""
    word = trace.record.meta["precision"]["compute"]
    return word, ml_dtypes.finfo(FORMATS[word])


def exponent_bias(trace: Trace, _: np.random.Generator) -> Own:
    word, info = _format(trace)
    return own({"bits": int(info.nexp)}, f"This step was reckoned in {word}.", f"the exponents of {word}",
               1 - int(info.minexp))  # fmt: skip


def largest_number(trace: Trace, _: np.random.Generator) -> Own:
    word, info = _format(trace)
    if word == "fp64":
        raise ConfigError("this step was reckoned in fp64, and twice its largest number is none that can be graded: "
                          "take a run in fp32, bf16 or fp16")  # fmt: skip
    return own({"exponent": int(info.nexp), "fraction": int(info.nmant)}, f"This step was reckoned in {word}.",
               f"the largest number of {word}", float(info.max))  # fmt: skip


DRAWN = {
    "layer-sizes": layer_sizes, "product-shape": product_shape, "product-order": product_order,
    "cache-of-a-token": cache_of_a_token, "low-rank-parameters": low_rank, "size-of-a-gradient": size_of_a_gradient,
    "training-flops": training_flops, "training-memory": training_memory, "exponent-bias": exponent_bias,
    "largest-number": largest_number,
}  # fmt: skip
