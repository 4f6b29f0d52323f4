"""Parameters by component, each with its formula; the same pieces say which matrices multiply a token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from limpid.config import ModelConfig
from limpid.planning.architecture import Architecture, Experts, LatentAttention
from limpid.planning.figure import Figure, evaluate, figure, total
from limpid.quantities import parameters as parameters_of

COMPONENTS = ("embedding", "attention", "recurrence", "mlp", "norms", "logits")
VASWANI = "Vaswani et al. 2017, section 3, arXiv:1706.03762"
GQA = "Ainslie et al. 2023, arXiv:2305.13245"
GATED = "Qiu et al. 2025, section 2.2, arXiv:2505.06708"
GLU = "Shazeer 2020, eq. 6, arXiv:2002.05202"
LAYER_NORM = "Ba et al. 2016, eq. 4, arXiv:1607.06450"
RMS_NORM = "Zhang & Sennrich 2019, eq. 4, arXiv:1910.07467"
EXPERTS = "Shazeer et al. 2017, eq. 1, arXiv:1701.06538"
LATENT = "DeepSeek-AI 2024, eq. 9-19, arXiv:2405.04434"
RELATIVE = "Dai et al. 2019, section 3.3, arXiv:1901.02860"
BUCKETS = "Raffel et al. 2019, section 2.1, arXiv:1910.10683"
BERT = "Devlin et al. 2018, section 3, arXiv:1810.04805"


@dataclass(frozen=True)
class Piece:
    """Learned arrays of one form: entries of one, how many there are, and how many of them multiply each token."""

    name: str  # component.piece
    entries: str  # equation
    copies: str = "1"
    multiply: str = "0"  # look-ups, gains and biases multiply no matrix
    source: str = VASWANI

    @property
    def component(self) -> str:
        return self.name.split(".")[0]

    @property
    def equation(self) -> str:
        """All entries of all copies."""
        entries = f"({self.entries})" if "+" in self.entries else self.entries
        return entries if self.copies == "1" else f"{self.copies} * {entries}"


def pieces(model: Architecture) -> tuple[Piece, ...]:
    """Every learned array of an architecture."""
    return tuple(_pieces(model))


def _pieces(model: Architecture) -> Iterator[Piece]:
    width = "embedding_width" if model.embedding.embedding_width else "d_model"
    yield Piece("embedding.tokens", f"vocab_size * {width}")
    if model.embedding.learned_positions:
        yield Piece("embedding.positions", "learned_positions * d_model")
    if model.embedding.token_types:
        yield Piece("embedding.token_types", "token_types * d_model", source=BERT)
    if model.embedding.embedding_width:
        yield Piece("embedding.in_and_out", "embedding_width * d_model", "2", "2")
    if model.attention_layers:
        layers = "(num_layers - recurrent_layers)" if model.recurrent_layers else "num_layers"
        yield from _attention(model, "attention", layers)
    if model.encoder_layers:
        yield from _attention(model, "attention.encoder", "encoder_layers")
        yield from _attention(model, "attention.cross", "num_layers")
    if model.relative_buckets:
        stacks = "2" if model.encoder_layers else "1"
        yield Piece("attention.distance_scores", "relative_buckets * num_heads", stacks, source=BUCKETS)
    if (mixer := model.recurrent) is not None and model.recurrent_layers:
        for name, entries in mixer.matrices():
            yield Piece(f"recurrence.{name}", entries, "recurrent_layers", "recurrent_layers", mixer.source)
        for name, entries in mixer.vectors():
            yield Piece(f"recurrence.{name}", entries, "recurrent_layers", source=mixer.source)
    yield from _mlp(model)
    yield from _norms(model)
    if model.output.pooler:
        yield Piece("logits.pooler", "d_model ** 2 + d_model", source=BERT)
    if model.output.labels:
        yield Piece("logits.score", "labels * d_model")
    if model.output.head:
        # a tied output matrix has no entries of its own, but it multiplies every token
        entries = "0" if model.output.tied else f"vocab_size * {width}"
        yield Piece("logits.weight", entries, multiply="1")
        if model.biases.head_bias:
            yield Piece("logits.bias", "vocab_size")


def _attention(model: Architecture, at: str, layers: str) -> Iterator[Piece]:
    if model.latent_attention is not None:
        yield from _latent_attention(model, model.latent_attention, at, layers)
        return
    shared = model.num_kv_heads != model.num_heads
    yield Piece(f"{at}.query", "d_model * num_heads * d_head", layers, layers)
    if model.attention_gate:
        yield Piece(f"{at}.gate", "d_model * num_heads * d_head", layers, layers, GATED)
        if model.biases.qkv_bias:
            yield Piece(f"{at}.gate_bias", "num_heads * d_head", layers, source=GATED)
    for name, head in (("key", "d_head"), ("value", "d_head")):
        yield Piece(f"{at}.{name}", f"d_model * num_kv_heads * {head}", layers, layers, GQA if shared else VASWANI)
    yield Piece(f"{at}.output", "num_heads * d_head * d_model", layers, layers)
    if model.biases.qkv_bias:
        yield Piece(f"{at}.query_key_value_biases", "(num_heads + 2 * num_kv_heads) * d_head", layers)
    if model.biases.out_bias:
        yield Piece(f"{at}.output_bias", "d_model", layers)
    if model.relative_positions:  # distances are projected once per sequence, not per token
        yield Piece(f"{at}.distances", "d_model * num_heads * d_head + 2 * num_heads * d_head", layers, source=RELATIVE)
    if model.sinks:
        yield Piece(f"{at}.sinks", "num_heads", layers, source="Agarwal et al. 2025 (gpt-oss), arXiv:2508.10925")


def _latent_attention(model: Architecture, latent: LatentAttention, at: str, layers: str) -> Iterator[Piece]:
    query = "num_heads * (d_head + d_rotary)"
    if latent.query_latent:
        yield Piece(f"{at}.query_down", "d_model * query_latent", layers, layers, LATENT)
        yield Piece(f"{at}.query_up", f"query_latent * {query}", layers, layers, LATENT)
        yield Piece(f"{at}.query_latent_norm", "query_latent", layers, source=LATENT)
    else:
        yield Piece(f"{at}.query", f"d_model * {query}", layers, layers, LATENT)
    yield Piece(f"{at}.key_value_down", "d_model * (kv_latent + d_rotary)", layers, layers, LATENT)
    yield Piece(f"{at}.key_value_latent_norm", "kv_latent", layers, source=LATENT)
    yield Piece(f"{at}.key_value_up", "kv_latent * num_heads * (d_head + d_value)", layers, layers, LATENT)
    yield Piece(f"{at}.output", "num_heads * d_value * d_model", layers, layers, LATENT)
    if model.biases.qkv_bias:
        query_bias = "query_latent + " if latent.query_latent else ""
        yield Piece(f"{at}.down_biases", f"{query_bias}kv_latent + d_rotary", layers, source=LATENT)
    if model.biases.out_bias:
        yield Piece(f"{at}.output_bias", "d_model", layers, source=LATENT)


def _mlp(model: Architecture) -> Iterator[Piece]:
    layers = "(num_layers + encoder_layers)" if model.encoder_layers else "num_layers"
    if model.experts is not None:
        yield from _experts(model, model.experts)
        layers = "dense_layers"
    if model.d_ff and (model.experts is None or model.experts.dense_layers):
        yield from _one_mlp(model, "mlp", "d_ff", layers)


def _one_mlp(model: Architecture, at: str, width: str, layers: str) -> Iterator[Piece]:
    if model.gated:
        yield Piece(f"{at}.gate", f"d_model * {width}", layers, layers, GLU)
    yield Piece(f"{at}.up", f"d_model * {width}", layers, layers)
    yield Piece(f"{at}.output", f"{width} * d_model", layers, layers)
    if model.biases.mlp_bias:
        yield Piece(f"{at}.biases", f"{'2 * ' * model.gated}{width} + d_model", layers)


def _experts(model: Architecture, experts: Experts) -> Iterator[Piece]:
    layers = "(num_layers - dense_layers)" if experts.dense_layers else "num_layers"
    every, used = f"{layers} * num_experts", f"{layers} * experts_per_token"
    yield Piece("mlp.router", "d_model * num_experts", layers, layers, EXPERTS)
    if experts.router_bias:
        yield Piece("mlp.router_bias", "num_experts", layers, source=EXPERTS)
    for name in ("gate", "up") if model.gated else ("up",):
        yield Piece(f"mlp.expert_{name}", "d_model * d_ff_expert", every, used, EXPERTS)
    yield Piece("mlp.expert_output", "d_ff_expert * d_model", every, used, EXPERTS)
    if model.biases.mlp_bias:
        yield Piece("mlp.expert_biases", f"{'2 * ' * model.gated}d_ff_expert + d_model", every)
    if experts.shared_d_ff:
        yield from _one_mlp(model, "mlp.shared", "shared_d_ff", layers)
        if experts.shared_gate:
            yield Piece("mlp.shared_gate", "d_model", layers, layers, EXPERTS)


def _norms(model: Architecture) -> Iterator[Piece]:
    vectors = {"layer": 2, "layer_no_bias": 1, "rms": 1, "none": 0}[model.norms.norm]
    source = RMS_NORM if model.norms.norm == "rms" else LAYER_NORM
    if vectors:
        of = "d_model" if vectors == 1 else "2 * d_model"
        encoder = " + 2 * encoder_layers + num_layers" if model.encoder_layers else ""  # cross-attention has its own
        blocks = f"(norms_per_layer * num_layers{encoder})" if encoder else "norms_per_layer * num_layers"
        if model.norms.norms_per_layer:
            yield Piece("norms.blocks", of, blocks, source=source)
        if model.norms.final_norm:
            yield Piece("norms.final", of, "2" if model.encoder_layers else "1", source=source)
        if model.norms.embedding_norm:
            yield Piece("norms.embedding", of, source=source)
    if model.norms.qk_norm != "none":
        of = {
            "head": "2 * d_head",
            "head_layer": "4 * d_head",
            "heads": "(num_heads + num_kv_heads) * d_head",
            "all": "(num_heads + num_kv_heads) * d_head",
        }[model.norms.qk_norm]
        layers = "(num_layers - recurrent_layers)" if model.recurrent_layers else "num_layers"
        yield Piece("norms.query_and_key", of, layers, source="Henry et al. 2020, arXiv:2010.04245")


def count(model: Architecture, *components: str) -> int:
    """Learned numbers of some components, or of all; a tied output matrix counts once."""
    sizes = model.sizes
    return sum(
        int(evaluate(piece.equation, sizes))
        for piece in pieces(model)
        if not components or piece.component in components
    )


def figures(model: Architecture) -> list[Figure]:
    """The table of parameters: every piece, the sum of every component, the total, and what each token meets."""
    sizes, table, sums = model.sizes, [], []
    for component in COMPONENTS:
        own = [
            figure(f"parameters.{piece.name}", "parameters", piece.equation, sizes, piece.source)
            for piece in pieces(model)
            if piece.component == component and piece.entries != "0"
        ]
        if own:
            table += own
            sums.append(total(f"parameters.{component}", own))
    table += sums
    everything = total("parameters.total", sums)
    outside = [one for one in table if one.name in ("parameters.embedding.tokens", "parameters.embedding.positions")]
    outside += [one for one in table if one.name == "parameters.logits.weight"]
    short = {"total": everything.value} | {one.name.removeprefix("parameters."): one.value for one in outside}
    table.append(everything)
    table.append(figure("parameters.without_embedding", "parameters", " - ".join(short), short,
                        "Kaplan et al. 2020, section 1.3, arXiv:2001.08361"))  # fmt: skip
    if model.experts is not None:
        table.append(_active(model, model.experts, int(everything.value)))
    return table


def _active(model: Architecture, experts: Experts, everything: int) -> Figure:
    sizes = model.sizes
    resting = {
        piece.name.removeprefix("mlp.expert_"): int(evaluate(f"{piece.entries}", sizes))
        for piece in pieces(model)
        if piece.name.startswith("mlp.expert_")
    }
    numbers = {
        "total": everything, "expert_layers": model.expert_layers, "num_experts": experts.num_experts,
        "experts_per_token": experts.experts_per_token, "one_expert": sum(resting.values()),
    }  # fmt: skip
    equation = "total - expert_layers * (num_experts - experts_per_token) * one_expert"
    return figure("parameters.active", "parameters", equation, numbers, EXPERTS, "what one token goes through")


def parameter_count(config: ModelConfig) -> int:
    """Learned numbers of a model that limpid trains; a tied output matrix counts once."""
    one = parameters_of(replace(config, num_layers=1, windowed_blocks=None))  # every block has as many
    block = sum(parameter.size for parameter in one if parameter.name.startswith("blocks."))
    return sum(parameter.size for parameter in one) + (config.num_layers - 1) * block
