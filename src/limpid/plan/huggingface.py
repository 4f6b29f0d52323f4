"""A config.json of Hugging Face as an Architecture, whether limpid can train the model or not."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from limpid.errors import ConfigError
from limpid.plan.architecture import Architecture, architecture

Fields = dict[str, Any]
"""Of a config.json by its own keys, or of an architecture by size."""

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
class Family:
    """What the name of a family says already, and how the rest is read."""

    fixed: Fields
    """Sizes and switches of the architecture that every model of the family has."""
    defaults: Fields
    """Of keys that a config.json may leave out."""
    more: Callable[[Fields], Fields] = lambda config: {}
    """Reads what depends on the family's own keys."""


def _biased(config: Fields) -> Fields:
    biased = bool(config.get("attention_bias"))
    return {"qkv_bias": biased, "out_bias": biased, "mlp_bias": bool(config.get("mlp_bias"))}


def _qwen3(config: Fields) -> Fields:
    return {**_biased(config), "mlp_bias": False}


def _windows(config: Fields) -> Fields:
    """The window, and how many layers have it."""
    window, layers = config.get("sliding_window") or 0, int(_size(config, "num_layers"))
    if not window or config.get("use_sliding_window") is False:
        return {}
    kinds, pattern = config.get("layer_types"), config.get("sliding_window_pattern")
    if kinds:
        windowed = sum(kind == "sliding_attention" for kind in kinds)
    elif pattern:
        windowed = layers - layers // int(pattern)
    elif config["model_type"] in ("qwen2", "qwen3"):
        windowed = max(0, layers - int(config.get("max_window_layers") or layers))
    else:
        windowed = layers
    return {"window": int(window), "windowed_layers": windowed} if windowed else {}


def _sparse_layers(config: Fields) -> int:
    """Blocks that keep a plain MLP among blocks of experts (Qwen)."""
    layers, every = int(_size(config, "num_layers")), int(config.get("decoder_sparse_step") or 1)
    plain = set(config.get("mlp_only_layers") or ())
    return sum(layer in plain or (layer + 1) % every != 0 for layer in range(layers))


def _qwen_experts(config: Fields) -> Fields:
    shared = int(config.get("shared_expert_intermediate_size") or 0)
    return {
        **(_qwen3(config) if config["model_type"] == "qwen3_moe" else {}),
        "num_experts": config.get("num_experts") or config.get("num_local_experts"),
        "experts_per_token": config["num_experts_per_tok"],
        "d_ff_expert": config["moe_intermediate_size"],
        "dense_layers": _sparse_layers(config),
        **({"shared_d_ff": shared, "shared_gate": True} if shared else {}),
    }


def _mixtral(config: Fields) -> Fields:
    return {
        "num_experts": config["num_local_experts"],
        "experts_per_token": config["num_experts_per_tok"],
        "d_ff_expert": config["intermediate_size"],
    }


def _gpt_oss(config: Fields) -> Fields:
    return {**_mixtral(config), **_biased(config), "mlp_bias": True, "router_bias": True, "sinks": True}


def _deepseek(config: Fields) -> Fields:
    shared = int(config.get("n_shared_experts") or 0) * int(config["moe_intermediate_size"])
    if config.get("mlp_bias"):
        raise ConfigError("mlp_bias is true: biases of experts are not known for DeepSeek models, expected false")
    return {
        **_qwen3(config),
        "kv_latent": config["kv_lora_rank"],
        "query_latent": config.get("q_lora_rank") or 0,
        "d_rotary": config["qk_rope_head_dim"],
        "d_head": config["qk_nope_head_dim"],
        "d_value": config["v_head_dim"],
        "num_experts": config["n_routed_experts"],
        "experts_per_token": config["num_experts_per_tok"],
        "d_ff_expert": config["moe_intermediate_size"],
        "dense_layers": int(config.get("first_k_dense_replace") or 0),
        "shared_d_ff": shared,
    }


def _falcon(config: Fields) -> Fields:
    new, parallel = bool(config.get("new_decoder_architecture")), bool(config.get("parallel_attn", True))
    norms = config.get("num_ln_in_parallel_attn") or (2 if new else 1)
    biased = bool(config.get("bias"))
    multi = bool(config.get("multi_query", True))
    heads = _size(config, "num_heads")
    return {
        "num_kv_heads": (config.get("num_kv_heads") or heads) if new else 1 if multi else heads,
        "norms_per_layer": norms if parallel else 2,
        "qkv_bias": biased, "out_bias": biased, "mlp_bias": biased,
    }  # fmt: skip


def _opt(config: Fields) -> Fields:
    width, final = config.get("word_embed_proj_dim"), config.get("do_layer_norm_before", True)
    biased = bool(config.get("enable_bias", True))
    return {
        "learned_positions": int(_size(config, "context_length")) + 2,  # two rows ahead of position 0
        "final_norm": bool(final) and not config.get("_remove_final_layer_norm"),
        "embedding_width": width if width and width != config["hidden_size"] else 0,
        "qkv_bias": biased, "out_bias": biased, "mlp_bias": biased,
    }  # fmt: skip


def _gpt2(config: Fields) -> Fields:
    multi = config["model_type"] == "gpt_bigcode" and bool(config.get("multi_query", True))
    return {"learned_positions": _size(config, "context_length"), **({"num_kv_heads": 1} if multi else {})}


def _neox(config: Fields) -> Fields:
    biased = bool(config.get("attention_bias", True))
    return {"qkv_bias": biased, "out_bias": biased}


def _phi(config: Fields) -> Fields:
    return {"qk_norm": "head_layer" if config.get("qk_layernorm") else "none"}


def _stablelm(config: Fields) -> Fields:
    return {
        "qkv_bias": bool(config.get("use_qkv_bias")),
        "qk_norm": "heads" if config.get("qk_layernorm") else "none",
        "norms_per_layer": 1 if config.get("use_parallel_residual") else 2,
    }


def _starcoder2(config: Fields) -> Fields:
    biased = bool(config.get("use_bias", True))
    return {"qkv_bias": biased, "out_bias": biased, "mlp_bias": biased}


def _cohere(config: Fields) -> Fields:
    return {**_qwen3(config), "qk_norm": "heads" if config.get("use_qk_norm") else "none"}


def _bert(config: Fields) -> Fields:
    positions = int(_size(config, "context_length"))
    return {"learned_positions": positions, "token_types": config.get("type_vocab_size", 2)}


def _distilbert(config: Fields) -> Fields:
    return {"learned_positions": int(_size(config, "context_length"))}


LLAMA: Fields = {"gated": True, "norm": "rms"}
TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
ALL_BIASES: Fields = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}
ENCODER: Fields = {"head": False, "final_norm": False, "embedding_norm": True, **ALL_BIASES}
GEMMA3: Fields = {
    "tie_word_embeddings": True, "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 256, "max_position_embeddings": 131072, "sliding_window_pattern": 6,
}  # fmt: skip

FAMILIES: dict[str, Family] = {
    "llama": Family(LLAMA, UNTIED, _biased),
    "mistral": Family(LLAMA, {"num_key_value_heads": 8, **UNTIED}),
    "ministral": Family(LLAMA, UNTIED),
    "mixtral": Family(LLAMA, UNTIED, _mixtral),
    "qwen2": Family({**LLAMA, "qkv_bias": True}, UNTIED),
    "qwen3": Family({**LLAMA, "qk_norm": "head"}, {"head_dim": 128, **UNTIED}, _qwen3),
    "qwen2_moe": Family({**LLAMA, "qkv_bias": True}, UNTIED, _qwen_experts),
    "qwen3_moe": Family({**LLAMA, "qk_norm": "head"}, UNTIED, _qwen_experts),
    "gemma": Family(LLAMA, {"head_dim": 256, **TIED}, _qwen3),
    "gemma2": Family({**LLAMA, "norms_per_layer": 4}, {"head_dim": 256, "sliding_window_pattern": 2, **TIED}, _qwen3),
    "gemma3_text": Family({**LLAMA, "norms_per_layer": 4, "qk_norm": "head"}, GEMMA3, _qwen3),
    "granite": Family(LLAMA, UNTIED, _biased),
    "smollm3": Family(LLAMA, TIED, _biased),
    "olmo": Family({**LLAMA, "norm": "none"}, UNTIED, _qwen3),
    "olmo2": Family({**LLAMA, "qk_norm": "all"}, UNTIED, _qwen3),
    "olmo3": Family({**LLAMA, "qk_norm": "all"}, UNTIED, _qwen3),
    "phi": Family({**ALL_BIASES, "norms_per_layer": 1, "head_bias": True}, UNTIED, _phi),
    "phi3": Family(LLAMA, UNTIED),
    "stablelm": Family({"gated": True, "norm": "layer"}, UNTIED, _stablelm),
    "starcoder2": Family({"norm": "layer"}, TIED, _starcoder2),
    "cohere": Family({"gated": True, "norm": "layer_no_bias", "norms_per_layer": 1}, TIED, _cohere),
    "cohere2": Family({"gated": True, "norm": "layer_no_bias", "norms_per_layer": 1}, TIED, _cohere),
    "gpt_oss": Family(LLAMA, {"head_dim": 64, **UNTIED}, _gpt_oss),
    "deepseek_v2": Family(LLAMA, UNTIED, _deepseek),
    "deepseek_v3": Family(LLAMA, UNTIED, _deepseek),
    "gpt2": Family(ALL_BIASES, TIED, _gpt2),
    "gpt_bigcode": Family(ALL_BIASES, TIED, _gpt2),
    "gptj": Family({"mlp_bias": True, "norms_per_layer": 1, "head_bias": True}, UNTIED),
    "gpt_neo": Family({"out_bias": True, "mlp_bias": True}, TIED, _gpt2),
    "gpt_neox": Family({"mlp_bias": True}, UNTIED, _neox),
    "opt": Family({}, TIED, _opt),
    "bloom": Family({**ALL_BIASES, "embedding_norm": True}, TIED),
    "falcon": Family({}, TIED, _falcon),
    "mpt": Family({"norm": "layer_no_bias"}, TIED),
    "bert": Family({**ENCODER, "pooler": True}, {}, _bert),
    "roberta": Family({**ENCODER, "pooler": True}, {}, _bert),
    "xlm-roberta": Family({**ENCODER, "pooler": True}, {}, _bert),
    "distilbert": Family(ENCODER, {}, _distilbert),
}
"""Families by model_type. tests/plan counts each against transformers' own model."""


def read_file(file: Path) -> Architecture:
    """The architecture that a config.json describes.

    Raises  ConfigError for a file that is not one, a family that is not known, a size that is missing
    """
    try:
        config = json.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"cannot read {file} as JSON: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{file} holds {type(config).__name__}, expected an object with model_type and sizes")
    name = file.parent.resolve().name if file.name == "config.json" else file.stem
    return read_config(config, name, str(file))


def read_config(config: Fields, name: str = "model", where: str = "config.json") -> Architecture:
    """The architecture of one config.json, already read; of a model with several parts, its text part."""
    config = {key: value for key, value in config.items() if value is not None}
    for part in ("text_config", "llm_config", "language_config"):
        if isinstance(config.get(part), dict):
            model_type = str(config.get("model_type", "")) + "_text"
            return read_config({"model_type": model_type, **config[part]}, name, f"{where}: {part}")
    kind = str(config.get("model_type", ""))
    if kind not in FAMILIES:
        close = difflib.get_close_matches(kind, FAMILIES, 1)
        hint = f"did you mean {close[0]}? " if close else ""
        said = f"model_type {kind!r}" if kind else "no model_type"
        raise ConfigError(f"{where} says {said}: {hint}known are {', '.join(sorted(FAMILIES))}")
    family = FAMILIES[kind]
    config = {**family.defaults, **config}
    try:
        sizes = {size: int(_size(config, size)) for size in SPELLINGS if size not in ("d_ff", "context_length")}
        sizes["d_ff"] = int(_size(config, "d_ff", 4 * sizes["d_model"]))
        sizes["context_length"] = int(_size(config, "context_length", 0))
        sizes |= {"num_kv_heads": int(config.get("num_key_value_heads", 0)), "d_head": int(config.get("head_dim", 0))}
        fields = {**family.fixed, **sizes, **_windows(config), **family.more(config)}
    except KeyError as error:
        raise ConfigError(f"{where} has no {error.args[0]}, which a model of type {kind} needs") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {' '.join(str(error).split())}: expected whole numbers as sizes") from error
    return architecture(name, **fields, tied=bool(config.get("tie_word_embeddings", True)))


def _size(config: Fields, size: str, otherwise: int | None = None) -> Any:
    """One size under whichever name it goes."""
    for key in SPELLINGS[size]:
        if key in config:
            return config[key]
    if otherwise is None:
        raise KeyError(" or ".join(SPELLINGS[size]))
    return otherwise
