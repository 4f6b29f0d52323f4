"""What a block keeps for its backward pass in the standard account: one row per tensor, after Korthikanti et al."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from limpid.plan.architecture import Architecture
from limpid.plan.figure import Figure, Number, evaluate, figure

KORTHIKANTI = "Korthikanti et al. 2022, {}, arXiv:2205.05198"
FLASH = "Dao et al. 2022, section 3.1, arXiv:2205.14135"
Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True)
class Kept:
    """One tensor of a block: its bytes as an equation, and whether tensor parallelism splits it."""

    name: str
    equation: str
    split: bool
    square: bool = False
    """Grows with the square of the sequence: what selective recomputation makes again."""


def table(model: Architecture, fused: bool = True, dropout: bool = False) -> tuple[Kept, ...]:
    """Tensors of one block. s positions, b sequences, h width, a heads, q and k widths of all query and key heads,
    f hidden width of the MLP, c bytes of a number. Masks of dropout take one byte.
    """
    found = [
        Kept("norm 1, input", "s * b * h * c", False),
        Kept("query, key and value, input", "s * b * h * c", False),
        Kept("queries and keys", "s * b * (q + k) * c", True),
        Kept("values", "s * b * k * c", True),
        Kept("attention's output product, input", "s * b * q * c", True),
        Kept("norm 2, input", "s * b * h * c", False),
        Kept("mlp, input", "s * b * h * c", False),
        Kept(
            "mlp, before the activation", f"{1 + model.gated} * s * b * f * c" if model.gated else "s * b * f * c", True
        ),
        Kept("mlp, output product, input", "s * b * f * c", True),
    ]
    if model.gated:
        found.append(Kept("mlp, activated gate", "s * b * f * c", True))
    if fused:
        found.append(Kept("log-sums of attention", "4 * a * s * b", True))
    else:
        found.append(Kept("attention weights", "a * s ** 2 * b * c", True, True))
    if dropout:
        found += [Kept("dropout masks of the stream", "2 * s * b * h", False)]
    if dropout and not fused:
        found += [Kept("dropped attention weights and their mask", "a * s ** 2 * b * (c + 1)", True, True)]
    return tuple(found)


def block_bytes(
    rows: tuple[Kept, ...],
    numbers: Mapping[str, Number],
    tensor: int = 1,
    sequence_parallel: bool = False,
    recompute: Recompute = "none",
) -> float:
    """Bytes that one block keeps on one device."""
    equation = block_equation(rows, sequence_parallel, recompute)
    return float(evaluate(equation, {**numbers, "t": tensor}))


def block_equation(rows: tuple[Kept, ...], sequence_parallel: bool, recompute: Recompute) -> str:
    """The sum of a block's rows, with what tensor parallelism divides by t."""
    if recompute == "full":
        return "s * b * h * c"
    kept = [row for row in rows if not (recompute == "selective" and row.square)]
    split = " + ".join(row.equation for row in kept if row.split or sequence_parallel)
    whole = " + ".join(row.equation for row in kept if not row.split and not sequence_parallel)
    return f"{whole} + ({split}) / t" if whole else f"({split}) / t"


def block_numbers(model: Architecture, batch: int, context: int, bytes_per_number: int) -> dict[str, Number]:
    """What the rows are evaluated on; of experts, those that a token goes through."""
    width = model.d_ff
    if model.num_experts:
        width = model.experts_per_token * model.d_ff_expert + model.shared_d_ff
    query = model.num_heads * (model.d_head + model.d_rotary)
    key = query if model.kv_latent else model.num_kv_heads * model.d_head
    return {"s": context, "b": batch, "h": model.d_model, "a": model.num_heads, "q": query, "k": key,
            "f": width, "c": bytes_per_number}  # fmt: skip


def per_block(
    model: Architecture, numbers: Mapping[str, Number], tensor: int, recompute: Recompute, formed: bool
) -> Figure:
    """One block's activations on one device; beyond one device per block, sequences are split where tensors are not."""
    rows, sequence = table(model, fused=not formed), tensor > 1
    note = {
        "none": "attention keeps its weights" if formed else "attention is fused and keeps no weights",
        "selective": "attention's weights are computed again",
        "full": "only the block's input is kept",
    }[recompute]
    source = KORTHIKANTI.format("section 4, tensor by tensor for this architecture")
    return figure("memory.activations_per_block", "bytes", block_equation(rows, sequence, recompute),
                  {**numbers, "t": tensor}, f"{source}; {FLASH}" if not formed else source, note)  # fmt: skip


def korthikanti(seq: int, batch: int, hidden: int, heads: int, tensor: int = 1) -> dict[str, float]:
    """Bytes of one GPT block as in the paper's table 2: our rows, with dropout and attention weights."""
    plain = Architecture(vocab_size=1, d_model=hidden, num_layers=1, num_heads=heads, d_ff=4 * hidden, d_head=1)
    rows = table(plain, fused=False, dropout=True)
    numbers = {"s": seq, "b": batch, "h": hidden, "a": heads, "q": hidden, "k": hidden, "f": 4 * hidden, "c": 2}
    return {
        "no_parallel": block_bytes(rows, numbers),
        "tensor": block_bytes(rows, numbers, tensor),
        "tensor_sequence": block_bytes(rows, numbers, tensor, True),
        "tensor_selective": block_bytes(rows, numbers, tensor, False, "selective"),
        "tensor_sequence_selective": block_bytes(rows, numbers, tensor, True, "selective"),
        "full_recompute": block_bytes(rows, numbers, tensor, False, "full"),
    }
