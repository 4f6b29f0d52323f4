"""What limpid's own engine holds at the worst moment of a step: one row per operation of the model.

A row says what an operation keeps from its forward to its backward pass, what its backward pass holds besides, and
which parameters' gradients come out of it, as equations in the names of `sizes`. When a kernel changes, its row does;
tests/plan measures the sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from limpid.config import ModelConfig, TrainConfig
from limpid.plan.figure import Figure, Number, evaluate, figure
from limpid.plan.parameters import parameter_count
from limpid.quantities import parameters

BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}
SHORT = 512
"""Positions up to which attention forms its weights on a processor (model/mixing.py)."""
ROOM, CACHED, ROWS = 1 << 26, 1 << 19, 128
"""Bytes of logits that the loss forms at a time; how many of them it takes the softmax of, in at least so many rows."""
MOMENTS = {"adamw": 2, "muon": 2, "adam": 2, "momentum": 1, "sgd": 0}
"""Per parameter; muon keeps one of matrices inside blocks."""
MEASURED = "what the engine keeps; measured by tests/plan/test_engine_memory.py"


@dataclass(frozen=True)
class Row:
    """Bytes of one operation, as equations."""

    name: str
    kept: str  # from its forward to its backward pass
    passing: str  # more, while its backward pass runs: what comes in, what goes out, what is only in between
    learned: str = "0"  # parameters whose gradients it makes
    block: int | None = None
    """The block it belongs to, whose rows are there only one block at a time where they are computed again."""


def sizes(config: TrainConfig) -> dict[str, Number]:
    """What rows are written in: c bytes of a number in matrix products, p of a parameter and of the residual stream."""
    model, run = config.model, config.run
    c = BYTES[run.precision]
    p = max(4, c)
    return {
        "batch": run.batch_size, "positions": model.context_length, "tokens": run.batch_size * model.context_length,
        "d": model.d_model, "f": model.d_ff, "vocab": model.vocab_size, "heads": model.num_heads,
        "query": model.num_heads * model.d_head, "key": model.num_kv_heads * model.d_head, "d_head": model.d_head,
        "c": c, "p": p, "cast": int(c != p),
    }  # fmt: skip


def rows(config: TrainConfig, formed: bool) -> tuple[Row, ...]:
    """Every operation of one micro-batch, in forward order; `formed` says whether attention forms its weights."""
    return tuple(_rows(config.model, formed, config.run.gradient_checkpointing == "on"))


def _rows(model: ModelConfig, formed: bool, again: bool) -> Iterator[Row]:
    tables = "positions * d" if model.positions == "learned" else "0"
    if model.tied:  # the output matrix's share of the gradient waits for the embedding's
        yield Row("embedding", "vocab * d * p", "2 * tokens * d * p + vocab * d * (p - c)", f"{tables} + vocab * d")
    else:
        yield Row("embedding", "0", "2 * tokens * d * p", f"{tables} + vocab * d")
    if model.dropout:
        yield Row("embedding dropout", "tokens * d * p", "2 * tokens * d * p")
    for block in range(model.num_layers):
        if again:
            yield Row("block's input", "tokens * d * p", "0")
        for row in (*_attention(model, formed, block), *_mlp(model)):
            yield replace(row, block=block if again else None)
    if model.norm_placement == "pre":
        yield _norm(model, "final norm")
    untied = "0" if model.tied else "vocab * d"
    room = f"min(tokens * vocab * c, {ROOM}) + min(tokens, max({ROWS}, {CACHED} // vocab)) * vocab * max(4, p)"
    yield Row("logits, loss", "tokens * d * c" + ("" if model.tied else " + vocab * d * p"),
              f"tokens * d * c + {room} + 2 * vocab * d * c * cast", untied)  # fmt: skip


def _norm(model: ModelConfig, name: str) -> Row:
    """RMS norm keeps x̂, layer norm its input, both one number per vector; the product behind keeps the result."""
    return Row(name, "tokens * d * p + tokens * p", "3 * tokens * d * p", "2 * d" if model.norm == "layer" else "d")


def _attention(model: ModelConfig, formed: bool, block: int) -> Iterator[Row]:
    stream, made = "tokens * d * p", "tokens * (query + 2 * key) * c"
    if model.norm_placement == "pre":
        yield _norm(model, "norm1")
    bias = " + query + 2 * key" if model.attention_bias else ""
    yield Row("attention.query, key, value", "tokens * d * c + d * (query + 2 * key) * c * cast",
              f"{stream} + {made} + 2 * tokens * d * c", f"d * (query + 2 * key){bias}")  # fmt: skip
    if model.qk_norm:
        kept = "tokens * (query + key) * max(4, p)"
        yield Row(
            "attention.query_norm, key_norm", kept, f"{stream} + {made} + {kept} + tokens * query * c", "2 * d_head"
        )
    if model.positions == "rotary":
        yield Row("attention.rotation", "0", f"{stream} + {made} + tokens * query * (c + 2 * p * cast)")
    yield _mixing(model, formed, block)
    yield Row("attention.output", "tokens * query * c + d * query * c * cast",
              f"{stream} + tokens * d * c * cast + tokens * query * c",
              "d * query + d" if model.attention_output_bias else "d * query")  # fmt: skip
    if model.dropout:
        yield Row("attention.dropout", "tokens * d * c", f"{stream} + 2 * tokens * d * c")
    if model.norm_placement == "post":
        yield _norm(model, "norm1")


def _mixing(model: ModelConfig, formed: bool, block: int) -> Row:
    """Scores, softmax, and the weighted sum of the values."""
    stream, heads, pairs = "tokens * d * p", "tokens * (query + 2 * key) * c", "tokens * positions * heads"
    if model.dropout:  # every quantity is formed: the softmax in wide numbers, the mask, what it left
        formed_bytes = f"{pairs} * (max(4, p) + 2 * c)"
        return Row("attention.mixing", f"{heads} + {formed_bytes}", f"{stream} + {formed_bytes} + tokens * query * c")
    if formed:
        return Row("attention.mixing", f"{heads} + {pairs} * c", f"{stream} + 2 * {pairs} * c + tokens * query * c")
    kept, passing = f"{heads} + tokens * heads * 4", f"{stream} + 2 * tokens * (query + key) * c"
    window = model.window(block)
    if window is not None and window < model.context_length:
        return Row("attention.mixing, windowed", f"{kept} + positions ** 2 * c", passing)
    return Row("attention.mixing", kept, passing)


def _mlp(model: ModelConfig) -> Iterator[Row]:
    gated, stream, hidden = model.mlp == "gated", "tokens * d * p", "tokens * f * c"
    if model.norm_placement == "pre":
        yield _norm(model, "norm2")
    count = 1 + gated
    yield Row("mlp.gate, up" if gated else "mlp.up", f"tokens * d * c + {count} * d * f * c * cast",
              f"{stream} + {count} * {hidden} + 2 * tokens * d * c",
              f"{count} * (d * f + f)" if model.mlp_bias else f"{count} * d * f")  # fmt: skip
    # f keeps its input, relu its output instead, which is what the next product reads; a gate keeps both factors
    relu = model.activation == "relu"
    kept, passing = (2 if relu else 3, 3) if gated else (1, 4 if model.activation == "relu2" else 2)
    yield Row("mlp.activation", f"{kept} * {hidden}", f"{stream} + {passing} * {hidden}")
    bent = "" if relu and not gated else f"{hidden} + "
    yield Row("mlp.output", f"{bent}d * f * c * cast", f"{stream} + tokens * d * c * cast + {hidden}",
              "d * f + d" if model.mlp_bias else "d * f")  # fmt: skip
    if model.dropout:
        yield Row("mlp.dropout", "tokens * d * c", f"{stream} + 2 * tokens * d * c")
    if model.norm_placement == "post":
        yield _norm(model, "norm2")


@dataclass(frozen=True)
class Peak:
    """The worst moment of a step: at which row, what is kept then and what passes; gradients, in parameters."""

    row: Row
    kept: dict[str, int]  # bytes by row name, all blocks together
    passing: int
    gradients: int

    @property
    def bytes(self) -> int:
        return sum(self.kept.values()) + self.passing


def peak(config: TrainConfig, formed: bool) -> Peak:
    """Walk the table backwards: what is kept shrinks, gradients grow; a block that is computed again comes back."""
    numbers, table = sizes(config), rows(config, formed)
    kept, there = dict.fromkeys((row.name for row in table), 0), None
    for row in table:
        kept[row.name] += 0 if row.block is not None else int(evaluate(row.kept, numbers))
    p, c = int(numbers["p"]), int(numbers["c"])
    every = sum(int(evaluate(row.learned, numbers)) for row in table)
    gradients, worst = 0, Peak(Row("update", "0", "0"), {}, 0, every)
    for row in reversed(table):
        if row.block is not None and row.block != there:
            there = row.block
            for again in (other for other in table if other.block == there):
                kept[again.name] += int(evaluate(again.kept, numbers))
        learned = int(evaluate(row.learned, numbers))
        fresh = learned * c  # as the product makes them, before they are cast or added
        made = every if config.run.gradient_accumulation_steps > 1 else gradients
        now = Peak(row, dict(kept), int(evaluate(row.passing, numbers)) + fresh, made)
        worst = max(worst, now, key=lambda at: at.bytes + at.gradients * p)
        gradients += learned
        kept[row.name] -= int(evaluate(row.kept, numbers))
    return worst


def figures(config: TrainConfig, on_processor: bool = True) -> list[Figure]:
    """Training memory of limpid's own engine on one device, bytes of tensors at the worst moment of a step."""
    formed = on_processor and config.model.context_length <= SHORT
    worst, numbers, count = peak(config, formed), sizes(config), parameter_count(config.model)
    p = numbers["p"]
    moments = MOMENTS[config.update.optimizer]
    single = sum(one.size for one in parameters(config.model) if one.hidden and config.update.optimizer == "muon")
    found = [
        figure("memory.weights", "bytes", "N * p", {"N": count, "p": p}, note="p bytes of a parameter"),
        figure("memory.optimizer", "bytes", "(N * moments - single) * p",
               {"N": count, "p": p, "moments": moments, "single": single},
               note=f"moments of {config.update.optimizer}; single: parameters with one fewer"),
        figure("memory.gradients", "bytes", "made * p", {"made": worst.gradients, "p": p},
               note=f"those that are there when memory is highest, in the backward pass of {worst.row.name}"),
    ]  # fmt: skip
    by_name = {row.name: row for row in rows(config, formed)}
    kept = [
        figure(f"memory.kept.{_short(name)}", "bytes", f"blocks * ({by_name[name].kept})",
               {**numbers, "blocks": _blocks(worst.kept[name], by_name[name], numbers)}, MEASURED)
        for name in by_name if worst.kept.get(name)
    ]  # fmt: skip
    named = {one.name.rpartition(".")[2]: one for one in kept}
    found += kept
    if kept:
        found.append(figure("memory.activations", "bytes", " + ".join(named), named))
    else:
        found.append(figure("memory.activations", "bytes", "0", {}, note="memory is highest at the update"))
    learned = evaluate(worst.row.learned, numbers) * numbers["c"]
    equation = f"{worst.row.passing} + fresh" if worst.row.passing != "0" else "fresh"
    found.append(
        figure("memory.passing", "bytes", equation, {**numbers, "fresh": learned}, MEASURED,
               f"held only while the backward pass of {worst.row.name} runs; fresh: the gradients it makes")
    )  # fmt: skip
    parts = {one.name.rpartition(".")[2]: one for one in found if one.name.count(".") == 1}
    found.append(
        figure("memory.total", "bytes", " + ".join(parts), parts,
               note="all tensors at the worst moment of a step; Python and PyTorch themselves come on top")
    )  # fmt: skip
    return found


def _blocks(kept: int, row: Row, numbers: dict[str, Number]) -> Number:
    """How many of an operation's copies are still kept."""
    return int(kept / evaluate(row.kept, numbers))


def _short(name: str) -> str:
    return name.replace(", ", "_").replace(" ", "_").replace(".", "_").replace("'", "")
