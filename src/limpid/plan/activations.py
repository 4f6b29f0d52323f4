"""Activations that one block saves for its backward pass, in the standard memory model: a row per tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from limpid.plan.architecture import Architecture, architecture
from limpid.plan.cluster import Attention, Recompute
from limpid.plan.figure import Figure, Number, evaluate, figure

KORTHIKANTI = "Korthikanti et al. 2022, {}, arXiv:2205.05198"
FLASH = "Dao et al. 2022, section 3.1, arXiv:2205.14135"


@dataclass(frozen=True)
class SavedTensor:
    """One tensor of a block: its bytes as an equation, and whether tensor parallelism splits it."""

    name: str
    equation: str
    split: bool
    square: bool = False
    """Whether it grows with the square of the sequence: selective recomputation computes these again."""


def saved_tensors(
    model: Architecture, attention: Attention = "fused", dropout: bool = False
) -> tuple[SavedTensor, ...]:
    """Tensors of one block, after Korthikanti et al. Masks of dropout take one byte.

    s positions, b sequences, h width, a heads, q and k widths of all query and key heads, f hidden width of the MLP,
    c bytes of a number.
    """
    tensors = [
        SavedTensor("norm 1, input", "s * b * h * c", False),
        SavedTensor("query, key and value, input", "s * b * h * c", False),
        SavedTensor("queries and keys", "s * b * (q + k) * c", True),
        SavedTensor("values", "s * b * k * c", True),
        SavedTensor("attention's output product, input", "s * b * q * c", True),
        SavedTensor("norm 2, input", "s * b * h * c", False),
        SavedTensor("mlp, input", "s * b * h * c", False),
        SavedTensor(
            "mlp, before the activation", f"{1 + model.gated} * s * b * f * c" if model.gated else "s * b * f * c", True
        ),
        SavedTensor("mlp, output product, input", "s * b * f * c", True),
    ]
    if model.gated:
        tensors.append(SavedTensor("mlp, activated gate", "s * b * f * c", True))
    if attention == "fused":
        tensors.append(SavedTensor("log-sums of attention", "4 * a * s * b", True))
    else:
        tensors.append(SavedTensor("attention weights", "a * s ** 2 * b * c", True, True))
    if dropout:
        tensors += [SavedTensor("dropout masks of the stream", "2 * s * b * h", False)]
    if dropout and attention == "materialised":
        tensors += [SavedTensor("dropped attention weights and their mask", "a * s ** 2 * b * (c + 1)", True, True)]
    return tuple(tensors)


def block_bytes(
    rows: tuple[SavedTensor, ...],
    numbers: Mapping[str, Number],
    tensor: int = 1,
    sequence_parallel: bool = False,
    recompute: Recompute = "none",
) -> float:
    """Bytes that one block saves on one device."""
    equation = block_equation(rows, sequence_parallel, recompute)
    return float(evaluate(equation, {**numbers, "t": tensor}))


def block_equation(rows: tuple[SavedTensor, ...], sequence_parallel: bool, recompute: Recompute) -> str:
    """The sum of a block's rows, with what tensor parallelism divides by t."""
    if recompute == "full":
        return "s * b * h * c"
    saved = [row for row in rows if not (recompute == "selective" and row.square)]
    split = " + ".join(row.equation for row in saved if row.split or sequence_parallel)
    whole = " + ".join(row.equation for row in saved if not row.split and not sequence_parallel)
    return f"{whole} + ({split}) / t" if whole else f"({split}) / t"


def block_sizes(model: Architecture, batch: int, context: int, bytes_per_number: int) -> dict[str, Number]:
    """Sizes that the rows are evaluated on; of experts, those that a token goes through."""
    width = model.d_ff
    if (experts := model.experts) is not None:
        width = experts.experts_per_token * experts.d_ff_expert + experts.shared_d_ff
    query, key = model.num_heads * model.d_head, model.num_kv_heads * model.d_head
    if model.latent_attention is not None:
        query = key = model.num_heads * (model.d_head + model.latent_attention.d_rotary)
    return {"s": context, "b": batch, "h": model.d_model, "a": model.num_heads, "q": query, "k": key,
            "f": width, "c": bytes_per_number}  # fmt: skip


def saved_per_block(
    model: Architecture, numbers: Mapping[str, Number], tensor: int, recompute: Recompute, attention: Attention
) -> Figure:
    """One block's activations on one device; beyond one device per block, sequences are split where tensors are not."""
    rows, sequence = saved_tensors(model, attention), tensor > 1
    note = {
        "none": "attention is fused and saves no weights" if attention == "fused" else "attention saves its weights",
        "selective": "attention's weights are recomputed",
        "full": "only the block's input is saved",
    }[recompute]
    source = KORTHIKANTI.format("section 4, tensor by tensor for this architecture")
    return figure("memory.activations_per_block", "bytes", block_equation(rows, sequence, recompute),
                  {**numbers, "t": tensor}, f"{source}; {FLASH}" if attention == "fused" else source, note)  # fmt: skip


def korthikanti(seq: int, batch: int, hidden: int, heads: int, tensor: int = 1) -> dict[str, float]:
    """Bytes of one GPT block as in the paper's table 2: our rows, with dropout and attention weights."""
    gpt = architecture(vocab_size=1, d_model=hidden, num_layers=1, num_heads=heads, d_ff=4 * hidden, d_head=1)
    rows = saved_tensors(gpt, "materialised", dropout=True)
    numbers = {"s": seq, "b": batch, "h": hidden, "a": heads, "q": hidden, "k": hidden, "f": 4 * hidden, "c": 2}
    return {
        "no_parallel": block_bytes(rows, numbers),
        "tensor": block_bytes(rows, numbers, tensor),
        "tensor_sequence": block_bytes(rows, numbers, tensor, True),
        "tensor_selective": block_bytes(rows, numbers, tensor, False, "selective"),
        "tensor_sequence_selective": block_bytes(rows, numbers, tensor, True, "selective"),
        "full_recompute": block_bytes(rows, numbers, tensor, False, "full"),
    }
