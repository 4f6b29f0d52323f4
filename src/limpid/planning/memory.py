"""The standard memory model, per device: states under ZeRO, activations, logits; weights and cache for generating."""

from __future__ import annotations

from limpid.config.options import require
from limpid.planning.activations import Half, block_sizes, saved_per_half
from limpid.planning.architecture import Architecture
from limpid.planning.cluster import Layout, require_divides
from limpid.planning.figure import Figure, Number, evaluate, figure, total
from limpid.planning.number_formats import BYTES, TRAINING_BYTES, WEIGHT_BYTES, TrainingBytes
from limpid.planning.parameters import count, pieces
from limpid.quantities import MOMENTS

ZERO = "Rajbhandari et al. 2020, section 5 and figure 1, arXiv:1910.02054"
SHARD = "Shoeybi et al. 2019, section 3, arXiv:1909.08053"
LATENT = "DeepSeek-AI 2024, section 2.1, arXiv:2405.04434"
LOSS = "PyTorch 2.13's cross_entropy, and loss_parallel where matrices are shared, by its profiler"
WIDE = {
    2: "their log-probabilities and gradient",
    3: "a copy or an exponential, log-probabilities and gradient",
    4: "a copy, log-probabilities, exponentials and gradient",
}
"""Arrays as large as the logits that the loss's backward pass holds at its worst moment."""
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
        if piece.component in ("attention", "recurrence", "mlp") and piece.multiply != "0"
    )
    return inside * -(-model.num_layers // layout.pipeline) / model.num_layers / layout.tensor


def _activations(model: Architecture, layout: Layout, bytes_per_number: int) -> list[Figure]:
    sizes = block_sizes(model, layout.batch, layout.positions_here, bytes_per_number)
    kinds = saved_per_half(model, sizes, layout.tensor, layout.recompute, layout.attention)
    numbers: dict[str, Number | Figure] = {"p": layout.pipeline,
                                           "in_flight": in_flight(layout)}  # fmt: skip
    for half, saved in kinds:
        numbers |= {f"{half.kind}_layers": half.layers, half.kind: saved}
    sums = " + ".join(f"ceil({half.kind}_layers / p) * {half.kind}" for half, _ in kinds)
    activations = figure(
        "memory.activations", "bytes", f"in_flight * ({sums})", numbers,
        "Narayanan et al. 2021, section 2.2, arXiv:2104.04473",
        "in_flight: micro-batches that the first stage has begun before their backward pass"
        + ("; of its chunks more are" if layout.interleave > 1 else ""),
    )  # fmt: skip
    figures = [*(saved for _, saved in kinds), activations]
    if layout.recompute == "full":
        figures.append(_recomputed(saved_per_half(model, sizes, layout.tensor, "none", layout.attention)))
    if model.output.head:
        wide = 2 + (bytes_per_number < 4) + (layout.tensor > 1)
        numbers = {"s": layout.positions_here, "b": layout.batch, "V": model.vocab_size, "t": layout.tensor,
                   "c": bytes_per_number, "wide": wide}  # fmt: skip
        figures.append(figure("memory.logits", "bytes", "s * b * V * (c + wide * max(4, c)) / t", numbers, LOSS,
                            f"the logits, and in at least fp32 {WIDE[wide]}"))  # fmt: skip
    return figures


def in_flight(layout: Layout) -> float:
    """Micro-batches whose activations the first stage holds at most; interleaved ones 1 + (p - 1) / (p v) as many.

    Source: Narayanan et al. 2021, section 2.2; Korthikanti et al. 2022, section 4.2.3, arXiv:2205.05198
    """
    p, v, m = layout.pipeline, layout.interleave, layout.micro_batches
    return min(p if v == 1 else p * (1 + (p - 1) / (p * v)), m)


def _recomputed(kinds: list[tuple[Half, Figure]]) -> Figure:
    """The largest block there is, a mixer and an MLP, while it is computed again."""
    names = [[half.kind for half, _ in kinds if half.mixer is mixer] for mixer in (True, False)]
    largest = " + ".join(f"max({', '.join(own)})" if len(own) > 1 else own[0] for own in names if own)
    return figure("memory.recomputed", "bytes", largest, {half.kind: saved for half, saved in kinds},
                  note="one block at a time, while it is recomputed")  # fmt: skip


def cache_bytes_per_token(model: Architecture, bytes_per_number: float) -> float:
    """Keys and values of one token in all layers."""
    return float(_cache_per_token(model, bytes_per_number, 1, 1).value)


def _cache_per_token(model: Architecture, bytes_per_number: float, tensor: int, pipeline: int) -> Figure:
    """Of one token, on the device that holds most: stages divide layers, tensor parallel devices divide heads."""
    numbers: dict[str, Number] = {
        "layers": model.attention_layers + (model.num_layers if model.encoder_layers else 0),
        "kv_heads": model.num_kv_heads, "d_head": model.d_head, "c": bytes_per_number, "t": tensor, "p": pipeline,
    }  # fmt: skip
    equation, source, note = "ceil(layers / p) * 2 * ceil(kv_heads / t) * d_head * c", CACHE, "one key and one value"
    if (latent := model.latent_attention) is not None:
        numbers |= {"latent": latent.kv_latent, "rotary": latent.d_rotary}
        equation, source = "ceil(layers / p) * (latent + rotary) * c", LATENT
        note = "one latent, which every head reads: tensor parallel devices hold it each"
    return figure("decoding.cache_per_token", "bytes", equation, numbers, source, f"{note} per attention layer")


def decoding(model: Architecture, layout: Layout, precision: str, cache_precision: str | None = None) -> list[Figure]:
    """Memory of generating on the fullest device: weights, the cache of keys and values, and recurrent states."""
    require(precision in WEIGHT_BYTES, f"precision is {precision!r}: choose one of {', '.join(WEIGHT_BYTES)}")
    require_divides(model, layout)
    here = stage_parameters(model, layout)
    weights = figure("decoding.weights", "bytes", "P * bytes_each", {"P": here, "bytes_each": WEIGHT_BYTES[precision]})
    c = max(2.0, WEIGHT_BYTES[precision]) if cache_precision is None else BYTES[cache_precision]
    parts, token = [weights], _cache_per_token(model, c, layout.tensor, layout.pipeline)
    batch, context = layout.batch, layout.context
    if model.attention_layers:
        parts.append(_cache(model, token, batch, context))
    if model.recurrent is not None and model.recurrent_layers:
        numbers = {**model.sizes, "b": batch, "c": c, "t": layout.tensor, "p": layout.pipeline}
        equation = f"ceil(recurrent_layers / p) * ({model.recurrent.state}) * b * c / t"
        parts.append(figure("decoding.states", "bytes", equation, numbers, model.recurrent.source,
                            "of fixed size, however long the text"))  # fmt: skip
    return [*parts[:1], *([token] if model.attention_layers else []), *parts[1:], total("decoding.total", parts)]


def _cache(model: Architecture, token: Figure, batch: int, context: int) -> Figure:
    """Keys and values of all tokens; of layers that look back over a window, those inside it."""
    window = model.sliding_window
    if window is None or not window.windowed_layers or context <= window.window:
        return figure("decoding.cache", "bytes", "b * s * cache_per_token",
                      {"b": batch, "s": context, "cache_per_token": token}, CACHE)  # fmt: skip
    numbers = {**token.numbers, "W": window.windowed_layers, "window": window.window, "s": context, "b": batch}
    equation = "2 * ceil(kv_heads / t) * d_head * c * b * (ceil((layers - W) / p) * s + ceil(W / p) * window)"
    return figure("decoding.cache", "bytes", equation, numbers, CACHE, "W layers look back over the window only")


def state_bytes(
    parameters: float, stage: int, devices: int, weights: float, gradients: float, optimizer: float
) -> float:
    """Bytes of model states per device under a ZeRO stage. Source: Rajbhandari et al. 2020, figure 1."""
    divided_by = [1 if stage < needed else devices for needed in (3, 2, 1)]
    return parameters * sum(
        each / among for each, among in zip((weights, gradients, optimizer), divided_by, strict=True)
    )
