"""Activations that a block saves for its backward pass, in the standard memory model: a row per tensor.

A block is two halves, a mixer (attention, latent attention, or a recurrence) and an MLP (plain, or of experts). What
each saves is what PyTorch's autograd keeps of transformers' own modules; tests/planning/test_activations.py measures
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from limpid.planning.architecture import Architecture, Experts, LatentAttention, architecture
from limpid.planning.cluster import Attention, Recompute
from limpid.planning.figure import Figure, Number, evaluate, figure
from limpid.planning.flops import attending_layers

KORTHIKANTI = "Korthikanti et al. 2022, {}, arXiv:2205.05198"
FLASH = "Dao et al. 2022, section 3.1, arXiv:2205.14135"
LETTERS = (
    "s positions, b sequences, c bytes of a number (n: where a norm computes, at least fp32), h width, a heads, q k v "
    "widths of all queries, keys, values, o of what attention gives, f hidden width of the MLP; of experts g, e of E "
    "chosen, w the shared one; latents: u of queries, l of keys and values, r their rotary part"
)


@dataclass(frozen=True)
class SavedTensor:
    """One tensor of a block: its bytes as an equation, and whether tensor parallelism splits it."""

    name: str
    equation: str
    split: bool = False
    square: bool = False
    """Whether it grows with the square of the sequence: selective recomputation computes these again."""


@dataclass(frozen=True)
class Half:
    """The mixer or the MLP of a block: in how many blocks there is one of this kind, and what it saves."""

    kind: str
    """attention, recurrence; mlp, experts."""
    layers: int
    rows: tuple[SavedTensor, ...]

    @property
    def mixer(self) -> bool:
        return self.kind in ("attention", "recurrence")


def halves(model: Architecture, attention: Attention = "fused", dropout: bool = False) -> list[Half]:
    """Every kind of half that a model's blocks are made of. Masks of dropout take one byte."""
    experts, plain = model.expert_layers, model.num_layers + model.encoder_layers - model.expert_layers
    found = [
        Half("attention", attending_layers(model), tuple(_attention(model, attention, dropout))),
        Half("recurrence", model.recurrent_layers, tuple(_recurrence(model))),
        Half("mlp", plain if model.d_ff else 0, tuple(_mlp(model, dropout))),
    ]
    if model.experts is not None:
        found.append(Half("experts", experts, tuple(_experts(model, model.experts))))
    return [half for half in found if half.layers]


def _norm(model: Architecture, name: str, width: str = "h") -> Iterator[SavedTensor]:
    """An RMS norm keeps its input, as wide as it computes, and what its gain multiplies; a layer norm its input."""
    if model.norms.norm == "rms":
        yield SavedTensor(f"{name}, input", f"s * b * {width} * n")
        yield SavedTensor(f"{name}, normalised", f"s * b * {width} * c")
    else:
        yield SavedTensor(f"{name}, input", f"s * b * {width} * c")


def _attention(model: Architecture, attention: Attention, dropout: bool) -> Iterator[SavedTensor]:
    yield from _norm(model, "norm 1")
    yield SavedTensor("query, key and value, input", "s * b * h * c")
    if model.latent_attention is not None:
        yield from _latents(model, model.latent_attention)
    if model.norms.qk_norm in ("head", "all"):
        yield SavedTensor("query and key norms, input", "s * b * (q + k) * n", True)
        yield SavedTensor("query and key norms, normalised", "s * b * (q + k) * c", True)
    elif model.norms.qk_norm != "none":
        yield SavedTensor("query and key norms, input", "s * b * (q + k) * c", True)
    yield SavedTensor("queries and keys", "s * b * (q + k) * c", True)
    yield SavedTensor("values", "s * b * v * c", True)
    if model.attention_gate:
        yield SavedTensor("gate, and what it multiplies", "2 * s * b * o * c", True)
    yield SavedTensor("attention's output product, input", "s * b * o * c", True)
    if attention == "fused":
        yield SavedTensor("log-sums of attention", "4 * a * s * b", True)
    else:
        yield SavedTensor("attention weights", "a * s ** 2 * b * c", True, True)
    if model.norms.norms_per_layer == 4:
        yield from _norm(model, "norm after attention")
    if dropout:
        yield SavedTensor("dropout mask of the stream", "s * b * h")
    if dropout and attention == "materialised":
        yield SavedTensor("dropped attention weights and their mask", "a * s ** 2 * b * (c + 1)", True, True)


def _latents(model: Architecture, latent: LatentAttention) -> Iterator[SavedTensor]:
    if latent.query_latent:
        yield from _norm(model, "query latent's norm", "u")
        yield SavedTensor("queries, input", "s * b * u * c")
    yield SavedTensor("key and value latent's norm, and rotary part, input", "s * b * (l * n + r * c)")
    yield SavedTensor("key and value latent's norm, normalised", "s * b * l * c")
    yield SavedTensor("keys and values, input", "s * b * l * c")


def _recurrence(model: Architecture) -> Iterator[SavedTensor]:
    if model.recurrent is not None:
        yield from _norm(model, "norm 1")
        yield SavedTensor("recurrence, input", "s * b * h * c")
        for name, numbers in model.recurrent.saved():
            yield SavedTensor(name, f"s * b * ({numbers}) * c", True)


def _norm_before_mlp(model: Architecture, reader: str) -> Iterator[SavedTensor]:
    if not model.parallel:
        yield from _norm(model, "norm 2")
        yield SavedTensor(f"{reader}, input", "s * b * h * c")


def _hidden(model: Architecture, name: str, width: str) -> Iterator[SavedTensor]:
    """Of an MLP: before the activation; where it is gated both factors too; and the output product's input."""
    if model.gated:
        yield SavedTensor(f"{name}, gate before and after the activation, and up", f"3 * s * b * {width} * c", True)
    else:
        yield SavedTensor(f"{name}, before the activation", f"s * b * {width} * c", True)
    yield SavedTensor(f"{name}, output product, input", f"s * b * {width} * c", True)


def _mlp(model: Architecture, dropout: bool) -> Iterator[SavedTensor]:
    yield from _norm_before_mlp(model, "mlp")
    yield from _hidden(model, "mlp", "f")
    yield from _after_mlp(model)
    if dropout:
        yield SavedTensor("dropout mask of the stream", "s * b * h")


def _experts(model: Architecture, experts: Experts) -> Iterator[SavedTensor]:
    """Each token goes to e experts: its vector is copied to them, and what they give is weighted."""
    yield from _norm_before_mlp(model, "router and experts")
    yield SavedTensor("router's scores", "s * b * E * 4", True)
    yield SavedTensor("experts, copies of the input", "e * s * b * h * c", True)
    yield from _hidden(model, "experts", "e * g")
    yield SavedTensor("experts, outputs to be weighted", "e * s * b * h * c", True)
    if experts.shared_d_ff:
        yield from _hidden(model, "shared expert", "w")
    yield from _after_mlp(model)


def _after_mlp(model: Architecture) -> Iterator[SavedTensor]:
    if model.norms.norms_per_layer == 4:
        yield from _norm(model, "norm after the mlp")


def half_equation(half: Half, sequence_parallel: bool, recompute: Recompute) -> str:
    """The sum of a half's rows, with what tensor parallelism divides by t; recomputed whole, it keeps its input."""
    rows = [row for row in half.rows if not (recompute == "selective" and row.square)]
    if recompute == "full":
        rows = [SavedTensor("block's input", "s * b * h * c")] if half.mixer else []
    split = " + ".join(row.equation for row in rows if row.split or sequence_parallel)
    whole = " + ".join(row.equation for row in rows if not row.split and not sequence_parallel)
    return " + ".join(part for part in (whole, f"({split}) / t" if split else "") if part) or "0"


def block_sizes(model: Architecture, batch: int, context: int, bytes_per_number: int) -> dict[str, Number]:
    """What the rows are evaluated on."""
    heads, kv_heads, d_head = model.num_heads, model.num_kv_heads, model.d_head
    numbers: dict[str, Number] = {
        **model.sizes, "s": context, "b": batch, "c": bytes_per_number, "n": max(4, bytes_per_number),
        "h": model.d_model, "a": heads, "f": model.d_ff,
        "q": heads * d_head, "k": kv_heads * d_head, "v": kv_heads * d_head, "o": heads * d_head,
    }  # fmt: skip
    if (latent := model.latent_attention) is not None:
        rotated = heads * (d_head + latent.d_rotary)
        numbers |= {"q": rotated, "k": rotated, "v": heads * latent.d_value, "o": heads * latent.d_value,
                    "u": latent.query_latent, "l": latent.kv_latent, "r": latent.d_rotary}  # fmt: skip
    if (experts := model.experts) is not None:
        numbers |= {"e": experts.experts_per_token, "E": experts.num_experts, "g": experts.d_ff_expert,
                    "w": experts.shared_d_ff}  # fmt: skip
    return numbers


def saved_per_half(
    model: Architecture, numbers: Mapping[str, Number], tensor: int, recompute: Recompute, attention: Attention
) -> list[tuple[Half, Figure]]:
    """What one half of each kind saves on one device; where tensors are split, sequences are split between."""
    note = {
        "none": "attention is fused and saves no weights" if attention == "fused" else "attention saves its weights",
        "selective": "attention's weights are recomputed",
        "full": "only the block's input is saved",
    }[recompute]
    source = KORTHIKANTI.format("section 4, tensor by tensor for this architecture")
    source = f"{source}; {FLASH}" if attention == "fused" else source
    return [
        (half, figure(f"memory.activations_per_{half.kind}", "bytes", half_equation(half, tensor > 1, recompute),
                      {**numbers, "t": tensor}, source, f"{note}; {LETTERS}"))
        for half in halves(model, attention)
    ]  # fmt: skip


def block_bytes(
    model: Architecture,
    numbers: Mapping[str, Number],
    tensor: int = 1,
    sequence_parallel: bool = False,
    recompute: Recompute = "none",
    attention: Attention = "fused",
    dropout: bool = False,
) -> float:
    """Bytes that a mixer and an MLP, one of each kind, save on one device."""
    equations = [half_equation(half, sequence_parallel, recompute) for half in halves(model, attention, dropout)]
    return float(sum(evaluate(equation, {**numbers, "t": tensor}) for equation in equations))


def korthikanti(seq: int, batch: int, hidden: int, heads: int, tensor: int = 1) -> dict[str, float]:
    """Bytes of one GPT block as in the paper's table 2: our rows, with dropout and attention weights."""
    gpt = architecture(vocab_size=1, d_model=hidden, num_layers=1, num_heads=heads, d_ff=4 * hidden, d_head=1)
    numbers = {**block_sizes(gpt, batch, seq, 2), "q": hidden, "k": hidden, "v": hidden, "o": hidden}

    def block(tensor: int = 1, sequence_parallel: bool = False, recompute: Recompute = "none") -> float:
        return block_bytes(gpt, numbers, tensor, sequence_parallel, recompute, "materialised", dropout=True)

    return {
        "no_parallel": block(),
        "tensor": block(tensor),
        "tensor_sequence": block(tensor, True),
        "tensor_selective": block(tensor, False, "selective"),
        "tensor_sequence_selective": block(tensor, True, "selective"),
        "full_recompute": block(tensor, False, "full"),
    }
