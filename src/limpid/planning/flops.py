"""FLOPs of the matrix products: exact, and as 6 N D. A multiply-add counts as two."""

from __future__ import annotations

from limpid.config import ModelConfig
from limpid.planning.architecture import Architecture, of_config
from limpid.planning.cluster import Attention, Recompute
from limpid.planning.figure import Figure, evaluate, figure
from limpid.planning.parameters import COMPONENTS, count, pieces

PALM = "Chowdhery et al. 2022, appendix B, arXiv:2204.02311"
KORTHIKANTI = "Korthikanti et al. 2022, section 5 and appendix A, arXiv:2205.05198"
KAPLAN = "Kaplan et al. 2020, section 2.1, arXiv:2001.08361"
BACKWARD = "each product y = x W has two in its backward pass: x̄ = ȳ Wᵀ and W̄ = xᵀ ȳ"


def weights_that_multiply(model: Architecture) -> dict[str, int]:
    """Entries of all matrices that multiply one token, per component."""
    sizes, total = model.sizes, dict.fromkeys(COMPONENTS, 0)
    for piece in pieces(model):
        entries = piece.entries
        if piece.name == "logits.weight":  # multiplies whether it is tied or not
            entries = f"vocab_size * {'embedding_width' if model.embedding.embedding_width else 'd_model'}"
        total[piece.component] += int(evaluate(entries, sizes)) * int(evaluate(piece.multiply, sizes))
    return {component: entries for component, entries in total.items() if entries}


def attention_widths(model: Architecture) -> int:
    """Features per query head that scores and mixing pass over, both together."""
    if (latent := model.latent_attention) is not None:
        return model.d_head + latent.d_rotary + latent.d_value
    return 2 * model.d_head


def forward_flops_per_token(model: Architecture, context: int) -> int:
    """Forward FLOPs per token, `context` positions attending to each other; the masked half counts too."""
    products = 2 * sum(weights_that_multiply(model).values())
    scores = 2 * context * model.num_heads * attention_widths(model) * attending_layers(model)
    return products + scores + state_flops(model)


def attending_layers(model: Architecture) -> int:
    """Times that positions attend to positions: decoder, encoder, and decoder to encoder."""
    return model.attention_layers + (model.encoder_layers and model.encoder_layers + model.num_layers)


def state_flops(model: Architecture) -> int:
    """FLOPs per token of writing to states and reading from them, in all recurrent blocks."""
    if model.recurrent is None:
        return 0
    return model.recurrent_layers * int(evaluate(model.recurrent.state_flops, model.sizes))


def flops_per_token(config: ModelConfig, context: int) -> int:
    """Forward FLOPs of the matrix products per token of a model that limpid trains. Source: PaLM, appendix B."""
    return forward_flops_per_token(of_config(config), context)


def figures(model: Architecture, context: int) -> list[Figure]:
    """Per token: every component forward, both passes, and the short form."""
    parts = [
        figure(f"flops.{component}", "FLOP/token", "2 * weights", {"weights": entries}, PALM,
               "weights of the matrices that multiply each token")
        for component, entries in weights_that_multiply(model).items()
    ]  # fmt: skip
    numbers = {
        "context": context, "num_heads": model.num_heads, "layers": attending_layers(model),
        "features": attention_widths(model),
    }  # fmt: skip
    if attending_layers(model):
        parts.append(
            figure("flops.scores_and_mixing", "FLOP/token", "2 * context * features * num_heads * layers", numbers,
                   PALM, "features: of a query head and of a value head together; masked positions count too")
        )  # fmt: skip
    if model.recurrent is not None:
        parts.append(
            figure("flops.states", "FLOP/token", f"recurrent_layers * ({model.recurrent.state_flops})", model.sizes,
                   model.recurrent.source, "as a recurrence over tokens; kernels over chunks do more")
        )  # fmt: skip
    short = {one.name.removeprefix("flops."): one for one in parts}
    forward = figure("flops.forward", "FLOP/token", " + ".join(short), short)
    backward = figure("flops.backward", "FLOP/token", "2 * forward", {"forward": forward}, note=BACKWARD)
    both = figure("flops.step", "FLOP/token", "forward + backward", {"forward": forward, "backward": backward})
    active = active_parameters(model)
    rough = figure("flops.six_n", "FLOP/token", "6 * N", {"N": active}, KAPLAN, "N: parameters that a token meets")
    ratio = figure("flops.exact_over_six_n", "", "step / six_n", {"step": both, "six_n": rough})
    return [*parts, forward, backward, both, rough, ratio]


def recomputed(model: Architecture, context: int, recompute: Recompute, attention: Attention) -> Figure | None:
    """What the backward pass computes again, per token; None where nothing is.

    Blocks run forward once more whole, or attention's scores and mixing alone. A fused kernel that keeps no weights has
    nothing left for the latter, and what it repeats inside itself is taken to be part of its utilisation.
    """
    parts = {one.name.removeprefix("flops."): one for one in figures(model, context)}
    if recompute == "full":
        inside = ("attention", "recurrence", "mlp", "scores_and_mixing", "states")
        again = {name: parts[name] for name in inside if name in parts}
        return figure(
            "flops.recomputed", "FLOP/token", " + ".join(again), again, KORTHIKANTI, "blocks, forward once more"
        )
    if recompute == "selective" and attention == "materialised" and "scores_and_mixing" in parts:
        again = {"scores_and_mixing": parts["scores_and_mixing"]}
        return figure("flops.recomputed", "FLOP/token", "scores_and_mixing", again, KORTHIKANTI)
    return None


def active_parameters(model: Architecture) -> int:
    """Parameters that one token meets: all but the experts it is not sent to."""
    if (experts := model.experts) is None:
        return count(model)
    sizes = model.sizes
    one = sum(int(evaluate(piece.entries, sizes)) for piece in pieces(model) if piece.name.startswith("mlp.expert_"))
    return count(model) - model.expert_layers * (experts.num_experts - experts.experts_per_token) * one


def palm_flops_per_token(parameters: float, layers: int, heads: int, d_head: int, positions: int) -> float:
    """6 N + 12 L H Q T: training FLOPs per token, attention beside the parameters. Source: PaLM, appendix B."""
    return 6 * parameters + 12 * layers * heads * d_head * positions


def megatron_flops(batch: int, seq: int, layers: int, hidden: int, vocab: int, recompute: bool | str = False) -> float:
    """FLOPs of one step of a GPT with 4h hidden features: 72 b s l h² (1 + s/6h + V/12hl).

    recompute   False: the model's own; True: every block runs forward once more, 4/3 of the blocks;
                "selective": as the hardware's share is published, s/3h instead of s/6h. (Scores and mixing once more
                would be s/4.5h; the paper counts all of attention's squares twice.)
    Source: Korthikanti et al. 2022, appendix A, arXiv:2205.05198; Narayanan et al. 2021, eq. 3, arXiv:2104.04473.
    """
    blocks = 72 * batch * seq * layers * hidden**2
    squares = 12 * batch * seq**2 * layers * hidden * (2 if recompute == "selective" else 1)
    logits = 6 * batch * seq * hidden * vocab
    return (4 / 3 if recompute is True else 1) * (blocks + squares) + logits
