"""Published numbers of parameters, of whole models and of adapters."""

from __future__ import annotations

from typing import Any

from limpid.equations.answers.kinds import Inputs, each, kind
from limpid.errors import ConfigError
from limpid.planning.architecture import Architecture, Norm, architecture
from limpid.planning.figure import evaluate
from limpid.planning.flops import active_parameters
from limpid.planning.huggingface import read_config
from limpid.planning.parameters import count, pieces

NORMS: dict[str, Norm] = {"layernorm": "layer", "layernorm_no_bias": "layer_no_bias", "rmsnorm": "rms"}
THEIRS = {
    "vocab_size", "d_model", "n_layers", "d_ff", "n_heads", "n_kv_heads", "head_dim", "mlp", "norm", "norms_per_layer",
    "tied_embeddings", "learned_positions", "qkv_bias", "out_bias", "mlp_bias", "qk_norm", "embedding_norm",
    "final_norm",
}  # fmt: skip


def decoder(x: Inputs) -> Architecture:
    """A decoder as the rows describe it."""
    if set(x) - THEIRS:
        raise ConfigError(
            f"a decoder has no {', '.join(sorted(set(x) - THEIRS))}: known are {', '.join(sorted(THEIRS))}"
        )
    return architecture(
        vocab_size=x["vocab_size"], d_model=x["d_model"], num_layers=x["n_layers"], num_heads=x["n_heads"],
        num_kv_heads=x.get("n_kv_heads") or x["n_heads"], d_head=x.get("head_dim") or 0, d_ff=x["d_ff"],
        gated=x.get("mlp", "plain") == "gated", norm=NORMS[x.get("norm", "layernorm")],
        norms_per_layer=x.get("norms_per_layer", 2), tied=x.get("tied_embeddings", True),
        learned_positions=x.get("learned_positions") or 0, qkv_bias=x.get("qkv_bias", False),
        out_bias=x.get("out_bias", False), mlp_bias=x.get("mlp_bias", False),
        qk_norm="head" if x.get("qk_norm") else "none", embedding_norm=x.get("embedding_norm", False),
        final_norm=x.get("final_norm", True),
    )  # fmt: skip


def chinchilla(x: Inputs) -> Architecture:
    """Their transformer: heads of kv_size, biases, Transformer-XL's relative positions; norm gains are not counted."""
    return architecture(
        vocab_size=x["vocab_size"], d_model=x["d_model"], num_layers=x["n_layers"], num_heads=x["n_heads"],
        d_head=x["kv_size"], d_ff=x["d_ff"], norm="none", relative_positions=True, qkv_bias=True, out_bias=True,
        mlp_bias=True,
    )  # fmt: skip


def entries(model: Architecture, *names: str) -> int:
    """Learned numbers of some pieces, all copies."""
    return sum(int(evaluate(p.equation, model.sizes)) for p in pieces(model) if p.name in names)


@kind("params.decoder_total")
def _total(x: Inputs) -> Any:
    return each(lambda one: count(decoder(one)), x, "d_model")


@kind("params.decoder_total_millions")
def _millions(x: Inputs) -> Any:
    return each(lambda one: count(decoder(one)) / 1e6, x, "d_model")


@kind("params.decoder_total_billions")
def _billions(x: Inputs) -> Any:
    return each(lambda one: count(decoder(one)) / 1e9, x, "d_model")


@kind("params.decoder_total_and_non_embedding")
def _non_embedding(x: Inputs) -> Any:
    def answer(one: Inputs) -> dict[str, int]:
        model = decoder(one)
        outside = entries(model, "embedding.tokens", "embedding.positions", "logits.weight")
        return {"total": count(model), "non_embedding": count(model) - outside}

    return each(answer, x, "d_model")


@kind("params.breakdown")
def _breakdown(x: Inputs) -> Any:
    model = decoder(x)
    norm = entries(model, "norms.blocks") // model.norms.norms_per_layer // model.num_layers
    attention, mlp = (count(model, component) // model.num_layers + norm for component in ("attention", "mlp"))
    return {
        "token_embedding": entries(model, "embedding.tokens"),
        "position_embedding": entries(model, "embedding.positions"),
        "attention_layer_incl_norm": attention,
        "mlp_layer_incl_norm": mlp,
        "block": attention + mlp,
        "blocks_total": model.num_layers * (attention + mlp),
        "total": count(model),
    }


@kind("params.breakdown_billions")
def _breakdown_billions(x: Inputs) -> Any:
    model = decoder({**x, "mlp": "gated", "norm": "rmsnorm", "tied_embeddings": False})
    found = {"mlp": count(model, "mlp"), "attention": count(model, "attention"), "total": count(model),
             "embedding_and_head": count(model, "embedding", "logits")}  # fmt: skip
    return {name: number / 1e9 for name, number in found.items()}


@kind("params.bert_encoder_total")
def _bert(x: Inputs) -> Any:
    def answer(one: Inputs) -> int:
        heads = one.get("n_heads") or max(1, one["d_model"] // 64)  # the count does not depend on them
        return count(
            architecture(
                vocab_size=one["vocab_size"], d_model=one["d_model"], num_layers=one["n_layers"], num_heads=heads,
                d_ff=one["d_ff"], learned_positions=one["max_positions"], token_types=one["token_types"],
                pooler=one["pooler"], qkv_bias=True, out_bias=True, mlp_bias=True, head=False, final_norm=False,
                embedding_norm=True,
            )
        )  # fmt: skip

    return each(answer, x, "d_model")


@kind("params.encoder_decoder_millions")
def _encoder_decoder(x: Inputs) -> Any:
    def answer(one: Inputs) -> float:
        model = architecture(
            vocab_size=one["vocab_size"], d_model=one["d_model"], num_layers=one["n_layers"],
            encoder_layers=one["n_layers"], num_heads=one.get("n_heads") or one["d_model"] // 64, d_ff=one["d_ff"],
            mlp_bias=True, final_norm=False,
        )  # fmt: skip
        return count(model) / 1e6

    return each(answer, x, "d_model")


@kind("params.gpt3_weight_matrices")
def _matrices(x: Inputs) -> Any:
    model = decoder({key: value for key, value in x.items() if key in THEIRS} | {
        "tied_embeddings": not x["untied"], "norm": "layernorm", "norms_per_layer": 2 * x["norms"],
        "final_norm": x["norms"], **dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), x["biases"]),
    })  # fmt: skip
    return {
        "embedding": entries(model, "embedding.tokens"),
        "each_of_q_k_v_o": entries(model, "attention.query"),
        "mlp_up": entries(model, "mlp.up"),
        "mlp_down": entries(model, "mlp.output"),
        "total": count(model),
    }


@kind("params.megatron_formula_billions")
def _megatron(x: Inputs) -> Any:
    """GPT with a vocabulary of 51,200 and 2,048 learned positions, as in the paper's table."""

    def answer(one: Inputs) -> float:
        model = decoder({"vocab_size": one.get("vocab_size", 51200), "d_model": one["hidden"],
                         "n_layers": one["n_layers"], "n_heads": one["heads"], "d_ff": 4 * one["hidden"],
                         "learned_positions": one.get("seq", 2048), "qkv_bias": True, "out_bias": True,
                         "final_norm": False, "mlp_bias": True})  # fmt: skip
        return count(model) / 1e9

    return each(answer, x, "hidden")


@kind("params.chinchilla_table_a9_millions")
def _table_a9(x: Inputs) -> Any:
    return each(lambda one: count(chinchilla(one)) / 1e6, x, "d_model")


@kind("params.config_json_billions")
def _config(x: Inputs) -> Any:
    model = read_config(x)
    return {"total": count(model) / 1e9, "active": active_parameters(model) / 1e9}
