"""The standard memory model, per device: states under ZeRO, activations, logits; weights and cache for generating."""

from __future__ import annotations

from limpid.config.options import require
from limpid.plan.activations import block_sizes, saved_per_block
from limpid.plan.architecture import Architecture
from limpid.plan.cluster import Layout, require_divides
from limpid.plan.figure import Figure, Number, evaluate, figure, total
from limpid.plan.number_formats import TRAINING_BYTES, WEIGHT_BYTES, TrainingBytes
from limpid.plan.parameters import count, pieces
from limpid.quantities import MOMENTS

ZERO = "Rajbhandari et al. 2020, section 5 and figure 1, arXiv:1910.02054"
SHARD = "Shoeybi et al. 2019, section 3, arXiv:1909.08053"
CACHE = "Pope et al. 2022, section 3.3, arXiv:2211.05102"


def training(model: Architecture, layout: Layout) -> list[Figure]:
    """Every part of the memory of the fullest device, and the total."""
    require_divides(model, layout)
    stored = TRAINING_BYTES[layout.precision]
    share = stage_parameters(model, layout)
    figures = [
        share,
        _state("weights", layout, 3, "P * bytes_each", {"P": share, "bytes_each": stored.weights}),
        _state("gradients", layout, 2, "P * bytes_each", {"P": share, "bytes_each": stored.gradients}),
        _optimizer(model, layout, share, stored),
        *_activations(model, layout, stored.activation),
    ]
    parts = [one for one in figures if one.name.count(".") == 1 and one.unit == "bytes" and "_per_" not in one.name]
    return [*figures, total("memory.total", parts)]


def _state(
    name: str, layout: Layout, stage: int, equation: str, numbers: dict[str, Number | Figure], note: str = ""
) -> Figure:
    """Bytes that replicas divide among them from a ZeRO stage on."""
    divided = layout.zero >= stage and layout.replicas > 1
    terms = f"({equation})" if "-" in equation else equation
    return figure(f"memory.{name}", "bytes", f"{terms} / replicas" if divided else equation,
                  {**numbers, "replicas": layout.replicas}, ZERO, note)  # fmt: skip


def _optimizer(model: Architecture, layout: Layout, share: Figure, stored: TrainingBytes) -> Figure:
    """Masters and moments. Muon moves the matrices of the blocks with one moment, AdamW the rest with two."""
    moments = len(MOMENTS["adamw" if layout.optimizer == "muon" else layout.optimizer])
    numbers: dict[str, Number | Figure] = {"P": share, "bytes_each": stored.master + moments * stored.moment}
    note = f"{stored.master} of a master and {moments} × {stored.moment} of moments"
    if layout.optimizer != "muon":
        return _state("optimizer", layout, 1, "P * bytes_each", numbers, note)
    numbers |= {"matrices": stage_matrices(model, layout), "moment": stored.moment}
    note += "; matrices inside blocks have one moment fewer"
    return _state("optimizer", layout, 1, "P * bytes_each - matrices * moment", numbers, note)


def stage_parameters(model: Architecture, layout: Layout) -> Figure:
    """Parameters of the fullest pipeline stage, divided among its tensor-parallel devices."""
    ends = count(model, "embedding"), count(model, "logits")
    blocks = count(model) - sum(ends)
    if layout.pipeline == 1 and layout.tensor == 1:
        return figure("memory.parameters_here", "parameters", "N", {"N": count(model)})
    numbers = {"blocks": blocks, "L": model.num_layers, "p": layout.pipeline, "t": layout.tensor,
               "embedding": ends[0], "logits": ends[1]}  # fmt: skip
    end = "embedding + logits" if layout.pipeline == 1 else "max(embedding, logits)"
    if model.output.tied and layout.pipeline > 1:
        end = "embedding"  # the last stage holds a copy of the output matrix
    return figure("memory.parameters_here", "parameters", f"(blocks * ceil(L / p) / L + {end}) / t", numbers, SHARD,
                  "the stage with most: an equal share of blocks, and one end of the model")  # fmt: skip


def stage_matrices(model: Architecture, layout: Layout) -> float:
    """Of the parameters of a stage, those in matrices inside its blocks."""
    inside = sum(
        int(evaluate(f"{piece.copies} * ({piece.entries})", model.sizes))
        for piece in pieces(model)
        if piece.component in ("attention", "mlp") and piece.multiply != "0"
    )
    return inside * -(-model.num_layers // layout.pipeline) / model.num_layers / layout.tensor


def _activations(model: Architecture, layout: Layout, bytes_per_number: int) -> list[Figure]:
    sizes = block_sizes(model, layout.batch, layout.context, bytes_per_number)
    block = saved_per_block(model, sizes, layout.tensor, layout.recompute, layout.attention)
    in_flight = min(layout.pipeline, layout.micro_batches)
    activations = figure(
        "memory.activations", "bytes", "ceil(L / p) * in_flight * per_block",
        {"L": model.num_layers, "p": layout.pipeline, "in_flight": in_flight, "per_block": block},
        "Narayanan et al. 2021, section 2.2, arXiv:2104.04473",
        "in_flight: micro-batches that the first stage has begun before their backward pass",
    )  # fmt: skip
    figures = [block, activations]
    if layout.recompute == "full":
        whole = saved_per_block(model, sizes, layout.tensor, "none", layout.attention)
        figures.append(figure("memory.recomputed", "bytes", "per_block", {"per_block": whole},
                            note="one block at a time, while it is recomputed"))  # fmt: skip
    if model.output.head:
        numbers = {"s": layout.context, "b": layout.batch, "V": model.vocab_size, "t": layout.tensor,
                   "c": bytes_per_number}  # fmt: skip
        figures.append(figure("memory.logits", "bytes", "s * b * V * (c + max(4, c)) / t", numbers,
                            "Korthikanti et al. 2022, section 4.3, arXiv:2205.05198",
                            "the logits, and their log-probabilities in at least fp32"))  # fmt: skip
    return figures


def cache_bytes_per_token(model: Architecture, bytes_per_number: float) -> float:
    """Keys and values of one token in all layers."""
    return float(_cache_per_token(model, bytes_per_number).value)


def _cache_per_token(model: Architecture, bytes_per_number: float) -> Figure:
    numbers: dict[str, Number] = {"L": model.num_layers, "kv_heads": model.num_kv_heads, "d_head": model.d_head,
                                  "c": bytes_per_number}  # fmt: skip
    equation, source = "2 * L * kv_heads * d_head * c", CACHE
    if (latent := model.latent_attention) is not None:
        numbers |= {"latent": latent.kv_latent, "rotary": latent.d_rotary}
        equation, source = "L * (latent + rotary) * c", "DeepSeek-AI 2024, section 2.1, arXiv:2405.04434"
    return figure("decoding.cache_per_token", "bytes", equation, numbers, source, "one key and one value per layer")


def decoding(model: Architecture, batch: int, context: int, precision: str) -> list[Figure]:
    """Memory of generating: weights, and the cache of keys and values."""
    require(precision in WEIGHT_BYTES, f"precision is {precision!r}: choose one of {', '.join(WEIGHT_BYTES)}")
    weights = figure("decoding.weights", "bytes", "N * bytes_each",
                     {"N": count(model), "bytes_each": WEIGHT_BYTES[precision]})  # fmt: skip
    token = _cache_per_token(model, max(2.0, WEIGHT_BYTES[precision]))
    window = model.sliding_window
    if window is not None and window.windowed_layers and context > window.window:
        numbers = {**token.numbers, "W": window.windowed_layers, "window": window.window, "s": context, "b": batch}
        cache = figure("decoding.cache", "bytes", "2 * kv_heads * d_head * c * b * ((L - W) * s + W * window)", numbers,
                       CACHE, "W layers look back over the window only")  # fmt: skip
    else:
        cache = figure("decoding.cache", "bytes", "b * s * cache_per_token",
                       {"b": batch, "s": context, "cache_per_token": token}, CACHE)  # fmt: skip
    return [weights, token, cache, total("decoding.total", [weights, cache])]


def state_bytes(
    parameters: float, stage: int, devices: int, weights: float, gradients: float, optimizer: float
) -> float:
    """Bytes of model states per device under a ZeRO stage. Source: Rajbhandari et al. 2020, figure 1."""
    divided_by = [1 if stage < needed else devices for needed in (3, 2, 1)]
    return parameters * sum(
        each / among for each, among in zip((weights, gradients, optimizer), divided_by, strict=True)
    )
