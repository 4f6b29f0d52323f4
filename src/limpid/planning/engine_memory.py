"""The memory model of limpid's own engine: its peak over one step, from one row per operation of the model.

A row says what an operation saves for its backward pass, the workspace of that backward pass, and how many parameters'
gradients it makes, as equations in the names of `sizes`. When a kernel changes, its row does; tests/planning measures
the sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from limpid.config import BasePrecision, ModelConfig, TrainConfig
from limpid.kernel_limits import (
    CHUNK_LOGITS,
    CHUNK_ROWS,
    LOGITS_BYTES,
    MATERIALISED_POSITIONS,
    TILE_BYTES,
    keeps_no_weights,
)
from limpid.planning.figure import Figure, Number, evaluate, figure
from limpid.planning.number_formats import BYTES
from limpid.planning.parameters import parameter_count
from limpid.quantities import MOMENTS, parameters, trained_parameters, update_rule

MEASURED = "what the engine saves; measured by tests/planning/test_engine_memory.py"


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


def rows(config: TrainConfig, materialised: bool) -> tuple[Row, ...]:
    """Every operation of one micro-batch, in forward order, with attention's weights materialised or not."""
    mixing: Mixing = "fused"
    if materialised:
        tiled = keeps_no_weights(config.model.context_length, int(BYTES[config.run.precision]))
        mixing = "tiled" if tiled else "weights kept"
    table = tuple(_rows(config.model, mixing, config.run.gradient_checkpointing == "on"))
    return tuple(map(_beside_factors, table)) if config.model.lora_rank else table


def _beside_factors(row: Row) -> Row:
    """An operation of a model whose factors and new head alone are trained."""
    if row.name == "embedding":
        return Row(row.name, "0", "0")
    return row if row.name in TRAINED_BESIDE else replace(row, parameters="0")


Mixing = Literal["fused", "tiled", "weights kept"]
"""How attention mixes values: PyTorch's kernel, weights in tiles, or all weights formed and kept."""
FACTORS = "factors of low rank"
TRAINED_BESIDE = (FACTORS, "score, loss", "values")


def _rows(model: ModelConfig, mixing: Mixing, recomputed: bool) -> Iterator[Row]:
    tables = "positions * d" if model.positions == "learned" else "0"
    if model.tied and model.head != "score":  # the output matrix's share of the gradient waits for the embedding's
        yield Row("embedding", "vocab * d * p", "2 * tokens * d * p + vocab * d * (p - c)", f"{tables} + vocab * d")
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
        for row in (*_attention(model, mixing, block), *_mlp(model), *_low_rank(model)):
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
    copies = 1 if model.lora_rank else 2  # of the matrix, and its gradient, in the format of products
    logits = f"min(tokens * vocab * c, {LOGITS_BYTES})"
    softmax = f"min(tokens, max({CHUNK_ROWS}, {CHUNK_LOGITS} // vocab)) * vocab * max(4, p)"
    yield Row("logits, loss", f"tokens * d * c{gradient}",
              f"tokens * d * c + {logits} + {softmax} + {copies} * vocab * d * c * cast", untied)  # fmt: skip


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


def _attention(model: ModelConfig, mixing: Mixing, block: int) -> Iterator[Row]:
    stream, projected = "tokens * d * p", "tokens * (query + 2 * key) * c"
    if model.norm_placement == "pre":
        yield _norm(model, "norm1")
    bias = " + query + 2 * key" if model.attention_bias else ""
    yield Row("attention.query, key, value", _kept_read(model),
              f"{stream} + {projected} + 2 * tokens * d * c + {_formed_read(model)} + d * query * widened",
              f"d * (query + 2 * key){bias}")  # fmt: skip
    if model.qk_norm:
        saved = "tokens * (query + key) * max(4, p)"
        workspace = f"{stream} + {projected} + {saved} + tokens * query * c"
        yield Row("attention.query_norm, key_norm", saved, workspace, "2 * d_head")
    if model.positions == "rotary":
        yield Row("attention.rotation", "0", f"{stream} + {projected} + tokens * query * (c + 2 * p * cast)")
    yield _mixing(model, mixing, block)
    yield Row("attention.output", "tokens * query * c",
              f"{stream} + tokens * d * c * cast + tokens * query * c + d * query * widened",
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
    if mixing == "weights kept":
        return Row("attention.mixing", f"{heads} + {pairs} * c", f"{stream} + 2 * {pairs} * c + tokens * query * c")
    saved, workspace = f"{heads} + tokens * heads * 4", f"{stream} + 2 * tokens * (query + key) * c"
    window = model.window(block)
    if window is not None and window < model.context_length:
        return Row("attention.mixing, windowed", f"{saved} + positions ** 2 * c", workspace)
    return Row("attention.mixing", saved, workspace)


def _mlp(model: ModelConfig) -> Iterator[Row]:
    gated, stream, hidden = model.mlp == "gated", "tokens * d * p", "tokens * f * c"
    if model.norm_placement == "pre":
        yield _norm(model, "norm2")
    count = 1 + gated
    yield Row("mlp.gate, up" if gated else "mlp.up", _kept_read(model),
              f"{stream} + {count} * {hidden} + 2 * tokens * d * c + {_formed_read(model)} + d * f * widened",
              f"{count} * (d * f + f)" if model.mlp_bias else f"{count} * d * f")  # fmt: skip
    # f saves its input, of which the next product's is formed again; relu its output, which the product saves anyway
    saved, workspace = (2, 4) if gated else (1, 4 if model.activation == "relu2" else 2)
    yield Row("mlp.activation", f"{saved} * {hidden}", f"{stream} + {workspace} * {hidden}")
    formed = gated or model.activation not in ("relu", "relu2")
    yield Row("mlp.output", hidden if model.activation == "relu2" and not gated else "0",
              f"{stream} + tokens * d * c * cast + {1 + formed} * {hidden} + d * f * widened",
              "d * f + d" if model.mlp_bias else "d * f")  # fmt: skip
    if model.dropout:
        yield Row("mlp.dropout", "tokens * d", f"{stream} + 2 * tokens * d * c")
    if model.norm_placement != "pre":
        yield _norm(model, "norm2")


@dataclass(frozen=True)
class Peak:
    """The moment of a step at which most memory is held: the backward pass of one row, or the update."""

    row: Row
    saved_bytes: dict[str, int]
    """By row, all blocks together."""
    workspace_bytes: int
    gradients: int
    """Parameters whose gradients are held."""

    def bytes(self, per_gradient: int) -> int:
        """Everything that comes and goes within a step: activations, workspace, gradients."""
        return sum(self.saved_bytes.values()) + self.workspace_bytes + self.gradients * per_gradient


def peak(config: TrainConfig, materialised: bool) -> Peak:
    """Walk the rows backwards: activations are freed, gradients added; a block that is recomputed comes back whole."""
    numbers, table = sizes(config), rows(config, materialised)
    p, c = int(numbers["p"]), int(numbers["c"])

    def value(equation: str) -> int:
        return int(evaluate(equation, numbers))

    saved, recomputed = dict.fromkeys((row.name for row in table), 0), None
    for row in table:
        saved[row.name] += 0 if row.recomputed_block is not None else value(row.saved)
    all_gradients = sum(value(row.parameters) for row in table)
    accumulates = config.run.gradient_accumulation_steps > 1  # then all gradients are there from the second micro-batch
    gradients, worst = 0, Peak(Row("update", "0", "0"), {}, 0, all_gradients)
    for row in reversed(table):
        if row.recomputed_block is not None and row.recomputed_block != recomputed:
            recomputed = row.recomputed_block
            for other in table:
                saved[other.name] += value(other.saved) if other.recomputed_block == recomputed else 0
        new_gradients = value(row.parameters) * c  # as the product makes them, before they are cast or added
        here = Peak(row, dict(saved), value(row.backward_workspace) + new_gradients,
                    all_gradients if accumulates else gradients)  # fmt: skip
        worst = max(worst, here, key=lambda at: at.bytes(p))
        gradients += value(row.parameters)
        saved[row.name] -= value(row.saved)
    return worst


def figures(config: TrainConfig, on_processor: bool = True) -> list[Figure]:
    """Training memory of limpid's own engine on one device: bytes of tensors at the peak of a step."""
    materialised = on_processor and config.model.context_length <= MATERIALISED_POSITIONS
    numbers, worst = sizes(config), peak(config, materialised)
    saved = _saved(config, materialised, worst)
    listed = [*_states(config, worst), *saved, _activations(saved), _workspace(worst, numbers)]
    parts = {one.name.rpartition(".")[2]: one for one in listed if one.name.count(".") == 1}
    note = "all tensors at the worst moment of a step; Python and PyTorch themselves come on top"
    return [*listed, figure("memory.total", "bytes", " + ".join(parts), parts, note=note)]


def total_bytes(config: TrainConfig, on_processor: bool = True) -> float:
    """Training memory at the peak of a step."""
    return float(next(one.value for one in figures(config, on_processor) if one.name == "memory.total"))


def _states(config: TrainConfig, worst: Peak) -> list[Figure]:
    """Weights, optimizer and gradients."""
    optimizer, trained = config.update.optimizer, trained_parameters(config)
    p = sizes(config)["p"]
    moments = len(MOMENTS["adamw" if optimizer == "muon" else optimizer])
    fewer = sum(one.size for one in trained if len(MOMENTS[update_rule(optimizer, one)]) < moments)
    return [
        _weights(config.model, p),
        figure("memory.optimizer", "bytes", "(N * moments - single) * p",
               {"N": sum(one.size for one in trained), "p": p, "moments": moments, "single": fewer},
               note=f"moments of {optimizer}; single: parameters with one fewer"),
        *_average(config),
        figure("memory.gradients", "bytes", "at_the_peak * p", {"at_the_peak": worst.gradients, "p": p},
               note=f"those that are there when memory is highest, in the backward pass of {worst.row.name}"),
    ]  # fmt: skip


def _weights(model: ModelConfig, p: Number) -> Figure:
    """All parameters; the frozen matrices of the blocks in their own format, an int8 row with its unit."""
    numbers: dict[str, Number | Figure] = {"N": parameter_count(model), "p": p}
    if model.base_precision == "fp32":
        return figure("memory.weights", "bytes", "N * p", numbers, note="p bytes of a parameter")
    block = parameters(replace(model, num_layers=1, windowed_blocks=None))
    maps = [one.shape for one in block if one.hidden and not one.low_rank]
    numbers |= {
        "narrow": model.num_layers * sum(d_out * d_in for d_out, d_in in maps),
        "bytes_each": BYTES[model.base_precision],
        "units": model.num_layers * sum(d_out for d_out, _ in maps) if model.base_precision == "int8" else 0,
    }
    return figure("memory.weights", "bytes", "(N - narrow) * p + narrow * bytes_each + units * 4", numbers,
                  note=f"p bytes of a parameter; narrow: frozen matrices in {model.base_precision}")  # fmt: skip


def weight_bytes(config: TrainConfig) -> float:
    """Of all parameters, before the first step."""
    return float(_weights(config.model, sizes(config)["p"]).value)


def _average(config: TrainConfig) -> list[Figure]:
    """The moving average of the weights, where one is kept."""
    if not config.update.ema_decay:
        return []
    numbers = {"N": sum(one.size for one in trained_parameters(config)), "p": sizes(config)["p"]}
    return [figure("memory.average", "bytes", "N * p", numbers, note="of the trained weights, for RUN@ema")]


def _saved(config: TrainConfig, materialised: bool, worst: Peak) -> list[Figure]:
    """Activations by operation, as many blocks' as are held at the peak."""
    numbers, saved = sizes(config), []
    for row in {row.name: row for row in rows(config, materialised)}.values():
        if held := worst.saved_bytes.get(row.name):
            blocks = int(held / evaluate(row.saved, numbers))
            name = row.name.replace(", ", "_").replace(" ", "_").replace(".", "_").replace("'", "")
            saved.append(figure(f"memory.saved.{name}", "bytes", f"blocks * ({row.saved})",
                                {**numbers, "blocks": blocks}, MEASURED))  # fmt: skip
    return saved


def _activations(saved: list[Figure]) -> Figure:
    if not saved:
        return figure("memory.activations", "bytes", "0", {}, note="memory is highest at the update")
    by_name = {one.name.rpartition(".")[2]: one for one in saved}
    return figure("memory.activations", "bytes", " + ".join(by_name), by_name)


def _workspace(worst: Peak, numbers: dict[str, Number]) -> Figure:
    row, new_gradients = worst.row, evaluate(worst.row.parameters, numbers) * numbers["c"]
    equation = f"{row.backward_workspace} + fresh" if row.backward_workspace != "0" else "fresh"
    return figure("memory.backward_workspace", "bytes", equation, {**numbers, "fresh": new_gradients}, MEASURED,
                  f"held only while the backward pass of {row.name} runs; fresh: the gradients it makes")  # fmt: skip
