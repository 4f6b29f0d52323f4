"""config.json of published families as an Architecture, whether limpid can train them or not."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limpid.errors import ConfigError
from limpid.plan.architecture import Architecture

Plain = dict[str, Any]

SPELLINGS = {
    "vocab_size": ("vocab_size",),
    "d_model": ("hidden_size", "n_embd", "d_model", "dim"),
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "d_ff": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim"),
    "context_length": ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len"),
}
"""How families spell the sizes that every one of them has."""


@dataclass(frozen=True)
class Form:
    """What the name of a family already says, and how the rest is read."""

    fixed: Plain
    """Fields of Architecture."""
    defaults: Plain
    """Keys that a config.json may leave out."""
    more: Callable[[Plain], Plain] = lambda their: {}
    """Fields that depend on the family's own keys."""


def _biased(their: Plain) -> Plain:
    biased = bool(their.get("attention_bias"))
    return {"qkv_bias": biased, "out_bias": biased, "mlp_bias": bool(their.get("mlp_bias"))}


def _qwen3(their: Plain) -> Plain:
    return {**_biased(their), "mlp_bias": False}


def _windows(their: Plain) -> Plain:
    """The window, and how many layers have it."""
    window, layers = their.get("sliding_window") or 0, int(_size(their, "num_layers"))
    if not window or their.get("use_sliding_window") is False:
        return {}
    kinds, pattern = their.get("layer_types"), their.get("sliding_window_pattern")
    if kinds:
        windowed = sum(kind == "sliding_attention" for kind in kinds)
    elif pattern:
        windowed = layers - layers // int(pattern)
    elif their["model_type"] in ("qwen2", "qwen3"):
        windowed = max(0, layers - int(their.get("max_window_layers") or layers))
    else:
        windowed = layers
    return {"window": int(window), "windowed_layers": windowed} if windowed else {}


def _sparse_layers(their: Plain) -> int:
    """Blocks that keep a plain MLP among blocks of experts (Qwen)."""
    layers, every = int(_size(their, "num_layers")), int(their.get("decoder_sparse_step") or 1)
    plain = set(their.get("mlp_only_layers") or ())
    return sum(layer in plain or (layer + 1) % every != 0 for layer in range(layers))


def _qwen_experts(their: Plain) -> Plain:
    shared = int(their.get("shared_expert_intermediate_size") or 0)
    return {
        **(_qwen3(their) if their["model_type"] == "qwen3_moe" else {}),
        "num_experts": their.get("num_experts") or their.get("num_local_experts"),
        "experts_per_token": their["num_experts_per_tok"],
        "d_ff_expert": their["moe_intermediate_size"],
        "dense_layers": _sparse_layers(their),
        **({"shared_d_ff": shared, "shared_gate": True} if shared else {}),
    }


def _mixtral(their: Plain) -> Plain:
    return {
        "num_experts": their["num_local_experts"],
        "experts_per_token": their["num_experts_per_tok"],
        "d_ff_expert": their["intermediate_size"],
    }


def _gpt_oss(their: Plain) -> Plain:
    return {**_mixtral(their), **_biased(their), "mlp_bias": True, "router_bias": True, "sinks": True}


def _deepseek(their: Plain) -> Plain:
    shared = int(their.get("n_shared_experts") or 0) * int(their["moe_intermediate_size"])
    if their.get("mlp_bias"):
        raise ConfigError("mlp_bias is true: biases of experts are not known for DeepSeek models, expected false")
    return {
        **_qwen3(their),
        "kv_latent": their["kv_lora_rank"],
        "query_latent": their.get("q_lora_rank") or 0,
        "d_rotary": their["qk_rope_head_dim"],
        "d_head": their["qk_nope_head_dim"],
        "d_value": their["v_head_dim"],
        "num_experts": their["n_routed_experts"],
        "experts_per_token": their["num_experts_per_tok"],
        "d_ff_expert": their["moe_intermediate_size"],
        "dense_layers": int(their.get("first_k_dense_replace") or 0),
        "shared_d_ff": shared,
    }


def _falcon(their: Plain) -> Plain:
    new, parallel = bool(their.get("new_decoder_architecture")), bool(their.get("parallel_attn", True))
    norms = their.get("num_ln_in_parallel_attn") or (2 if new else 1)
    biased = bool(their.get("bias"))
    multi = bool(their.get("multi_query", True))
    heads = _size(their, "num_heads")
    return {
        "num_kv_heads": (their.get("num_kv_heads") or heads) if new else 1 if multi else heads,
        "norms_per_layer": norms if parallel else 2,
        "qkv_bias": biased, "out_bias": biased, "mlp_bias": biased,
    }  # fmt: skip


def _opt(their: Plain) -> Plain:
    width, final = their.get("word_embed_proj_dim"), their.get("do_layer_norm_before", True)
    biased = bool(their.get("enable_bias", True))
    return {
        "learned_positions": int(_size(their, "context_length")) + 2,  # two rows ahead of position 0
        "final_norm": bool(final) and not their.get("_remove_final_layer_norm"),
        "embedding_width": width if width and width != their["hidden_size"] else 0,
        "qkv_bias": biased, "out_bias": biased, "mlp_bias": biased,
    }  # fmt: skip


def _gpt2(their: Plain) -> Plain:
    multi = their["model_type"] == "gpt_bigcode" and bool(their.get("multi_query", True))
    return {"learned_positions": _size(their, "context_length"), **({"num_kv_heads": 1} if multi else {})}


def _neox(their: Plain) -> Plain:
    biased = bool(their.get("attention_bias", True))
    return {"qkv_bias": biased, "out_bias": biased}


def _phi(their: Plain) -> Plain:
    return {"qk_norm": "head_layer" if their.get("qk_layernorm") else "none"}


def _stablelm(their: Plain) -> Plain:
    return {
        "qkv_bias": bool(their.get("use_qkv_bias")),
        "qk_norm": "heads" if their.get("qk_layernorm") else "none",
        "norms_per_layer": 1 if their.get("use_parallel_residual") else 2,
    }


def _starcoder2(their: Plain) -> Plain:
    biased = bool(their.get("use_bias", True))
    return {"qkv_bias": biased, "out_bias": biased, "mlp_bias": biased}


def _cohere(their: Plain) -> Plain:
    return {**_qwen3(their), "qk_norm": "heads" if their.get("use_qk_norm") else "none"}


def _bert(their: Plain) -> Plain:
    positions = int(_size(their, "context_length"))
    return {"learned_positions": positions, "token_types": their.get("type_vocab_size", 2)}


def _distilbert(their: Plain) -> Plain:
    return {"learned_positions": int(_size(their, "context_length"))}


LLAMA: Plain = {"gated": True, "norm": "rms"}
TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
ALL_BIASES: Plain = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}
ENCODER: Plain = {"head": False, "final_norm": False, "embedding_norm": True, **ALL_BIASES}
GEMMA3: Plain = {
    "tie_word_embeddings": True, "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 256, "max_position_embeddings": 131072, "sliding_window_pattern": 6,
}  # fmt: skip

FORMS: dict[str, Form] = {
    "llama": Form(LLAMA, UNTIED, _biased),
    "mistral": Form(LLAMA, {"num_key_value_heads": 8, **UNTIED}),
    "ministral": Form(LLAMA, UNTIED),
    "mixtral": Form(LLAMA, UNTIED, _mixtral),
    "qwen2": Form({**LLAMA, "qkv_bias": True}, UNTIED),
    "qwen3": Form({**LLAMA, "qk_norm": "head"}, {"head_dim": 128, **UNTIED}, _qwen3),
    "qwen2_moe": Form({**LLAMA, "qkv_bias": True}, UNTIED, _qwen_experts),
    "qwen3_moe": Form({**LLAMA, "qk_norm": "head"}, UNTIED, _qwen_experts),
    "gemma": Form(LLAMA, {"head_dim": 256, **TIED}, _qwen3),
    "gemma2": Form({**LLAMA, "norms_per_layer": 4}, {"head_dim": 256, "sliding_window_pattern": 2, **TIED}, _qwen3),
    "gemma3_text": Form({**LLAMA, "norms_per_layer": 4, "qk_norm": "head"}, GEMMA3, _qwen3),
    "granite": Form(LLAMA, UNTIED, _biased),
    "smollm3": Form(LLAMA, TIED, _biased),
    "olmo": Form({**LLAMA, "norm": "none"}, UNTIED, _qwen3),
    "olmo2": Form({**LLAMA, "qk_norm": "all"}, UNTIED, _qwen3),
    "olmo3": Form({**LLAMA, "qk_norm": "all"}, UNTIED, _qwen3),
    "phi": Form({**ALL_BIASES, "norms_per_layer": 1, "head_bias": True}, UNTIED, _phi),
    "phi3": Form(LLAMA, UNTIED),
    "stablelm": Form({"gated": True, "norm": "layer"}, UNTIED, _stablelm),
    "starcoder2": Form({"norm": "layer"}, TIED, _starcoder2),
    "cohere": Form({"gated": True, "norm": "layer_no_bias", "norms_per_layer": 1}, TIED, _cohere),
    "cohere2": Form({"gated": True, "norm": "layer_no_bias", "norms_per_layer": 1}, TIED, _cohere),
    "gpt_oss": Form(LLAMA, {"head_dim": 64, **UNTIED}, _gpt_oss),
    "deepseek_v2": Form(LLAMA, UNTIED, _deepseek),
    "deepseek_v3": Form(LLAMA, UNTIED, _deepseek),
    "gpt2": Form(ALL_BIASES, TIED, _gpt2),
    "gpt_bigcode": Form(ALL_BIASES, TIED, _gpt2),
    "gptj": Form({"mlp_bias": True, "norms_per_layer": 1, "head_bias": True}, UNTIED),
    "gpt_neo": Form({"out_bias": True, "mlp_bias": True}, TIED, _gpt2),
    "gpt_neox": Form({"mlp_bias": True}, UNTIED, _neox),
    "opt": Form({}, TIED, _opt),
    "bloom": Form({**ALL_BIASES, "embedding_norm": True}, TIED),
    "falcon": Form({}, TIED, _falcon),
    "mpt": Form({"norm": "layer_no_bias"}, TIED),
    "bert": Form({**ENCODER, "pooler": True}, {}, _bert),
    "roberta": Form({**ENCODER, "pooler": True}, {}, _bert),
    "xlm-roberta": Form({**ENCODER, "pooler": True}, {}, _bert),
    "distilbert": Form(ENCODER, {}, _distilbert),
}
"""Families by their model_type. tests/plan counts each against transformers' own model."""


def of_file(file: Path) -> Architecture:
    """The architecture that a config.json describes.

    Raises  ConfigError for a file that is not one, a family that is not known, a size that is missing
    """
    try:
        their = json.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"cannot read {file} as JSON: {' '.join(str(error).split())}") from error
    if not isinstance(their, dict):
        raise ConfigError(f"{file} holds {type(their).__name__}, expected an object with model_type and sizes")
    name = file.parent.resolve().name if file.name == "config.json" else file.stem
    return of_their_config(their, name, str(file))


def of_their_config(their: Plain, name: str = "model", where: str = "config.json") -> Architecture:
    """The architecture of one config.json, already read; of a model with several parts, its text part."""
    their = {key: value for key, value in their.items() if value is not None}
    for part in ("text_config", "llm_config", "language_config"):
        if isinstance(their.get(part), dict):
            model_type = str(their.get("model_type", "")) + "_text"
            return of_their_config({"model_type": model_type, **their[part]}, name, f"{where}: {part}")
    kind = str(their.get("model_type", ""))
    if kind not in FORMS:
        close = difflib.get_close_matches(kind, FORMS, 1)
        hint = f"did you mean {close[0]}? " if close else ""
        said = f"model_type {kind!r}" if kind else "no model_type"
        raise ConfigError(f"{where} says {said}: {hint}known are {', '.join(sorted(FORMS))}")
    form = FORMS[kind]
    their = {**form.defaults, **their}
    try:
        sizes = {ours: int(_size(their, ours)) for ours in SPELLINGS if ours not in ("d_ff", "context_length")}
        sizes["d_ff"] = int(_size(their, "d_ff", 4 * sizes["d_model"]))
        sizes["context_length"] = int(_size(their, "context_length", 0))
        sizes |= {"num_kv_heads": int(their.get("num_key_value_heads", 0)), "d_head": int(their.get("head_dim", 0))}
        fields = {**form.fixed, **sizes, **_windows(their), **form.more(their)}
    except KeyError as error:
        raise ConfigError(f"{where} has no {error.args[0]}, which a model of type {kind} needs") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {' '.join(str(error).split())}: expected whole numbers as sizes") from error
    tied = bool(their.get("tie_word_embeddings", True))
    return Architecture(name=name, tied=tied, **{key: value for key, value in fields.items() if key != "tied"})


def _size(their: Plain, ours: str, otherwise: int | None = None) -> Any:
    """One size under whichever name it goes."""
    for key in SPELLINGS[ours]:
        if key in their:
            return their[key]
    if otherwise is None:
        raise KeyError(" or ".join(SPELLINGS[ours]))
    return otherwise
