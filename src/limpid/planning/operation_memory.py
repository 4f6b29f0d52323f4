"""What each operation of limpid's own engine holds in memory: one row per operation of the model.

A row says what an operation saves for its backward pass, the workspace of that backward pass, and how many parameters'
gradients it makes, as equations in the names of `sizes`. When a kernel changes, its row does; tests/planning measures
the sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from limpid.config import BasePrecision, ModelConfig, TrainConfig
from limpid.kernel_limits import (
    CHUNK_LOGITS,
    CHUNK_ROWS,
    LOGITS_BYTES,
    LOGITS_BYTES_ON_GPU,
    TILE_BYTES,
    has_native_attention,
    has_native_loss,
    has_triton,
    is_packed,
    keeps_no_weights,
    materialised_positions,
    matrix_rows,
)
from limpid.planning.figure import Number
from limpid.planning.number_formats import BYTES
from limpid.quantities import parameters


@dataclass(frozen=True)
class Row:
    """Bytes of one operation, as equations."""

    name: str
    saved: str
    """Activations saved from its forward to its backward pass."""
    backward_workspace: str
    """Held besides while its backward pass runs: gradients coming in and going out, and intermediate arrays."""
    parameters: str = "0"
    """Number of parameters whose gradients it makes."""
    recomputed_block: int | None = None
    """The block it belongs to where blocks are recomputed: its activations then exist for one block at a time."""


def sizes(config: TrainConfig) -> dict[str, Number]:
    """Names in the equations: c bytes of a number in matrix products, p of a parameter and of the residual stream;
    of each entry of a block's matrix, the bytes of the copy that a product makes for itself."""
    model, run, follows = config.model, config.run, config.model.sizes
    c = int(BYTES[run.precision])
    p = max(4, c)
    return {
        "batch": run.batch_size, "positions": model.context_length, "tokens": run.batch_size * model.context_length,
        "d": model.d_model, "f": follows.d_ff, "vocab": model.vocab_size, "heads": model.num_heads,
        "query": model.num_heads * follows.d_head, "key": follows.num_kv_heads * follows.d_head,
        "d_head": follows.d_head,
        "c": c, "p": p, "cast": int(c != p), "widened": _widened(model.base_precision, c, p),
    }  # fmt: skip


def _widened(base: BasePrecision, c: int, p: int) -> int:
    """Bytes of an entry's copy in the format of products, made in each pass anew."""
    if base == "fp32":
        return c if c != p else 0
    if base == "bf16":
        return 0 if c == BYTES["bf16"] else c
    return p if c == p else p + c


class Kernels(NamedTuple):
    """What computes the operations that have more than one kernel."""

    mixing: Mixing
    native_loss: bool
    """Whether the loss is limpid's own kernel, which holds no softmax."""
    logits_bytes: int
    """Logits that the loss holds at a time."""
    matrix_rows: int
    """Rows of the output matrix's gradient that it forms at a time."""
    packed: frozenset[tuple[int, ...]]
    """Shapes of blocks' matrices that are packed for their products, in room that is kept: no product makes a copy."""
    adds_rows: bool
    """Whether rows that tokens are looked up in are added to the gradient of a tied output matrix, alone."""


def kernels_of(config: TrainConfig, on_processor: bool) -> Kernels:
    """The kernels on this machine's device."""
    native_loss = has_native_loss(config.run.precision) if on_processor else has_triton()
    held = LOGITS_BYTES if on_processor else LOGITS_BYTES_ON_GPU
    piece = matrix_rows(config.model.vocab_size, "cpu" if on_processor else "cuda")
    adds_rows = on_processor and config.run.batch_size * config.model.context_length < config.model.vocab_size
    packed = _packed(config) if on_processor and native_loss else frozenset()
    return Kernels(_mixing_of(config, on_processor), native_loss, held, piece, packed, adds_rows)


def _packed(config: TrainConfig) -> frozenset[tuple[int, ...]]:
    """Matrices of the blocks, and factors, large enough to be packed."""
    rows = config.run.batch_size * config.model.context_length
    read = [one for one in parameters(config.model) if one.hidden]
    plain = [one.shape for one in read if one.low_rank or config.model.base_precision == "fp32"]
    return frozenset(shape for shape in plain if is_packed(rows, *shape))


def _mixing_of(config: TrainConfig, on_processor: bool) -> Mixing:
    if not on_processor:
        return "fused"
    if config.run.precision == "bf16" and has_native_attention(config.model.sizes.d_head):
        return "native"
    itemsize = int(BYTES[config.run.precision])
    if config.model.context_length > materialised_positions(itemsize):
        return "fused"
    tiled = keeps_no_weights(config.model.context_length, itemsize)
    return "tiled" if tiled else "weights kept"


def rows(config: TrainConfig, kernels: Kernels) -> tuple[Row, ...]:
    """Every operation of one micro-batch, in forward order."""
    table = tuple(_rows(config.model, kernels, config.run.gradient_checkpointing == "on"))
    return tuple(map(_beside_factors, table)) if config.model.lora_rank else table


def _beside_factors(row: Row) -> Row:
    """An operation of a model whose factors and new head alone are trained."""
    if row.name == "embedding":
        return Row(row.name, "0", "0")
    return row if row.name in TRAINED_BESIDE else replace(row, parameters="0")


Mixing = Literal["fused", "native", "tiled", "weights kept"]
"""How attention mixes values: PyTorch's kernel, limpid's own, weights in tiles, or all weights formed and kept."""
FACTORS = "factors of low rank"
TRAINED_BESIDE = (FACTORS, "score, loss", "values")


def _rows(model: ModelConfig, kernels: Kernels, recomputed: bool) -> Iterator[Row]:
    mixing = kernels.mixing
    tables = "positions * d" if model.positions == "learned" else "0"
    if model.tied and model.head != "score":  # the output matrix's share of the gradient waits for the embedding's
        whole = "- vocab * d * c" if kernels.adds_rows else "+ vocab * d * (p - c)"
        yield Row("embedding", "vocab * d * p", f"2 * tokens * d * p {whole}", f"{tables} + vocab * d")
    else:
        yield Row("embedding", "0", "2 * tokens * d * p", f"{tables} + vocab * d")
    if model.dropout:
        yield Row("embedding dropout", "tokens * d", "2 * tokens * d * p")
    if mixing == "tiled":
        windows = len({model.window(i) for i in range(model.num_layers)})
        yield Row("attention's mask", f"{windows} * positions ** 2 * c", "0")
    for block in range(model.num_layers):
        if recomputed:
            yield Row("block's input", "tokens * d * p", "0")
        for row in (*_attention(model, kernels, block), *_mlp(model, kernels), *_low_rank(model)):
            yield replace(row, recomputed_block=block if recomputed else None)
    if model.norm_placement == "pre":
        yield _norm(model, "final norm")
    if model.head == "score":
        yield Row("score, loss", "0", "0", "d")
        return
    if model.head == "vocabulary_and_value":
        yield Row("values", "tokens * d * 4 * cast", "tokens * d * max(4, p)", "d")
    untied = "0" if model.tied else "vocab * d"
    gradient = "" if model.tied or model.lora_rank else " + vocab * d * p"
    piece = "" if model.lora_rank else f" + {kernels.matrix_rows} * d * c * cast"  # of the matrix's gradient
    logits = f"min(tokens * vocab * c, {kernels.logits_bytes})"
    softmax = f"min(tokens, max({CHUNK_ROWS}, {CHUNK_LOGITS} // vocab)) * vocab * max(4, p)"
    logits += "" if kernels.native_loss else f" + {softmax}"
    yield Row("logits, loss", f"tokens * d * c{gradient}",
              f"tokens * d * c + {logits} + vocab * d * c * cast{piece}", untied)  # fmt: skip


READS = {"query": "d", "key": "d", "value": "d", "attention.output": "query", "gate": "d", "up": "d", "mlp.output": "f"}
GIVES = {"query": "query", "key": "key", "value": "key", "attention.output": "d", "gate": "f", "up": "f",
         "mlp.output": "d"}  # fmt: skip
"""How wide the input and the output of each linear map of a block are."""


def _low_rank(model: ModelConfig) -> Iterator[Row]:
    """Each adapted map saves A x; the map's own result and B A x are there at once.

    Where its input is dropped it saves what is left and the mask, and what the rows of the maps have is not saved.
    """
    adapted = [name for name in model.linear_maps if model.adapted(name)]
    if not adapted:
        return
    factors = sum(one.size for one in parameters(model) if one.low_rank) // model.num_layers
    widest = max(model.d_model, model.sizes.d_ff)
    saved = f"{len(adapted) * model.lora_rank} * tokens * c"
    if model.lora_dropout:
        read = "0" if model.norm_placement == "pre" else "2 * d"
        hidden = "f" if model.activation == "relu2" and model.mlp == "plain" else "0"
        saved += f" + (({_widths(adapted, READS)}) * (c + 1) - ({read} + query + {hidden}) * c) * tokens"
    yield Row(FACTORS, saved, f"2 * tokens * {widest} * c", f"{factors}")
    if model.use_dora:
        yield Row("directions", f"tokens * ({_widths(adapted, GIVES)}) * c", f"2 * tokens * {widest} * p")


def _widths(names: list[str], widths: dict[str, str]) -> str:
    return " + ".join(widths.get(name) or widths[name.rpartition(".")[2]] for name in names)


def _norm(model: ModelConfig, name: str) -> Row:
    """RMS norm saves x̂, layer norm its input, both one number per vector; the product that follows saves the result."""
    return Row(name, "tokens * d * p + tokens * p", "3 * tokens * d * p", "2 * d" if model.norm == "layer" else "d")


def _copied(kernels: Kernels, entries: str, d_out: int, d_in: int) -> str:
    """A matrix's copy in the format of products, while its gradient is formed."""
    return "" if (d_out, d_in) in kernels.packed else f" + {entries} * widened"


def _attention(model: ModelConfig, kernels: Kernels, block: int) -> Iterator[Row]:
    stream, projected = "tokens * d * p", "tokens * (query + 2 * key) * c"
    copied = _copied(kernels, "d * query", model.num_heads * model.sizes.d_head, model.d_model)
    if model.norm_placement == "pre":
        yield _norm(model, "norm1")
    bias = " + query + 2 * key" if model.attention_bias else ""
    yield Row("attention.query, key, value", _kept_read(model),
              f"{stream} + {projected} + 2 * tokens * d * c + {_formed_read(model)}{copied}",
              f"d * (query + 2 * key){bias}")  # fmt: skip
    if model.qk_norm:
        saved = "tokens * (query + key) * max(4, p)"
        workspace = f"{stream} + {projected} + {saved} + tokens * query * c"
        yield Row("attention.query_norm, key_norm", saved, workspace, "2 * d_head")
    if model.positions == "rotary":
        yield Row("attention.rotation", "0", f"{stream} + {projected} + tokens * query * (c + 2 * p * cast)")
    yield _mixing(model, kernels.mixing, block)
    yield Row("attention.output", "tokens * query * c",
              f"{stream} + tokens * d * c * cast + tokens * query * c{copied}",
              "d * query + d" if model.attention_output_bias else "d * query")  # fmt: skip
    if model.dropout:
        yield Row("attention.dropout", "tokens * d", f"{stream} + 2 * tokens * d * c")
    if model.norm_placement == "post":
        yield _norm(model, "norm1")


def _kept_read(model: ModelConfig) -> str:
    """What products behind a norm keep of it: nothing where it can be formed again from the stream."""
    return "0" if model.norm_placement == "pre" else "tokens * d * c"


def _formed_read(model: ModelConfig) -> str:
    """The norm's result, formed again while the products' gradients are."""
    return "tokens * d * c" if model.norm_placement == "pre" else "0"


def _mixing(model: ModelConfig, mixing: Mixing, block: int) -> Row:
    """Scores, softmax, and the weighted sum of the values."""
    stream, heads, pairs = "tokens * d * p", "tokens * (query + 2 * key) * c", "tokens * positions * heads"
    if model.dropout:  # everything is materialised: the softmax in wide numbers, the mask, the weights that are left
        saved, workspace = f"{pairs} * (max(4, p) + c + 1)", f"{pairs} * (max(4, p) + 2 * c)"
        return Row("attention.mixing", f"{heads} + {saved}", f"{stream} + {workspace} + tokens * query * c")
    if mixing == "tiled":
        workspace = f"{stream} + tokens * (2 * query + 2 * key) * c + 2 * min({pairs} * c, {TILE_BYTES})"
        return Row("attention.mixing", heads, workspace)
    if mixing == "native":
        return Row("attention.mixing", heads, f"{stream} + tokens * (2 * query + 2 * key) * c")
    if mixing == "weights kept":
        return Row("attention.mixing", f"{heads} + {pairs} * c", f"{stream} + 2 * {pairs} * c + tokens * query * c")
    saved, workspace = f"{heads} + tokens * heads * 4", f"{stream} + 2 * tokens * (query + key) * c"
    window = model.window(block)
    if window is not None and window < model.context_length:
        return Row("attention.mixing, windowed", f"{saved} + positions ** 2 * c", workspace)
    return Row("attention.mixing", saved, workspace)


def _mlp(model: ModelConfig, kernels: Kernels) -> Iterator[Row]:
    gated, stream, hidden = model.mlp == "gated", "tokens * d * p", "tokens * f * c"
    copied = _copied(kernels, "d * f", model.sizes.d_ff, model.d_model)
    if model.norm_placement == "pre":
        yield _norm(model, "norm2")
    count = 1 + gated
    yield Row("mlp.gate, up" if gated else "mlp.up", _kept_read(model),
              f"{stream} + {count} * {hidden} + 2 * tokens * d * c + {_formed_read(model)}{copied}",
              f"{count} * (d * f + f)" if model.mlp_bias else f"{count} * d * f")  # fmt: skip
    # f saves its input, of which the next product's is formed again; relu its output, which the product saves anyway
    saved, workspace = (2, 4) if gated else (1, 4 if model.activation == "relu2" else 2)
    yield Row("mlp.activation", f"{saved} * {hidden}", f"{stream} + {workspace} * {hidden}")
    formed = gated or model.activation not in ("relu", "relu2")
    yield Row("mlp.output", hidden if model.activation == "relu2" and not gated else "0",
              f"{stream} + tokens * d * c * cast + {1 + formed} * {hidden}{copied}",
              "d * f + d" if model.mlp_bias else "d * f")  # fmt: skip
    if model.dropout:
        yield Row("mlp.dropout", "tokens * d", f"{stream} + 2 * tokens * d * c")
    if model.norm_placement != "pre":
        yield _norm(model, "norm2")
