"""What families of plain blocks say in keys of their own."""

from __future__ import annotations

from limpid.planning.families.keys import Fields, size_of


def biased(config: Fields) -> Fields:
    biased = bool(config.get("attention_bias"))
    return {"qkv_bias": biased, "out_bias": biased, "mlp_bias": bool(config.get("mlp_bias"))}


def qwen3(config: Fields) -> Fields:
    return {**biased(config), "mlp_bias": False}


def windows(config: Fields) -> Fields:
    """The window, and how many layers have it."""
    window, layers = config.get("sliding_window") or 0, int(size_of(config, "num_layers"))
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


def glm4(config: Fields) -> Fields:
    return {"qkv_bias": bool(config.get("attention_bias"))}


def t5(config: Fields) -> Fields:
    decoder = int(config.get("num_decoder_layers") or size_of(config, "num_layers"))
    return {
        "d_head": config["d_kv"],
        "encoder_layers": int(size_of(config, "num_layers")),
        "num_layers": decoder,
        "relative_buckets": config.get("relative_attention_num_buckets", 32),
        "gated": str(config.get("feed_forward_proj", "relu")).startswith("gated"),
        "context_length": 512,
    }


def falcon(config: Fields) -> Fields:
    new, parallel = bool(config.get("new_decoder_architecture")), bool(config.get("parallel_attn", True))
    norms = config.get("num_ln_in_parallel_attn") or (2 if new else 1)
    biased = bool(config.get("bias"))
    multi = bool(config.get("multi_query", True))
    heads = size_of(config, "num_heads")
    return {
        "num_kv_heads": (config.get("num_kv_heads") or heads) if new else 1 if multi else heads,
        "norms_per_layer": norms if parallel else 2,
        "qkv_bias": biased, "out_bias": biased, "mlp_bias": biased,
    }  # fmt: skip


def opt(config: Fields) -> Fields:
    width, final = config.get("word_embed_proj_dim"), config.get("do_layer_norm_before", True)
    biased = bool(config.get("enable_bias", True))
    return {
        "learned_positions": int(size_of(config, "context_length")) + 2,  # two rows ahead of position 0
        "final_norm": bool(final) and not config.get("_remove_final_layer_norm"),
        "embedding_width": width if width and width != config["hidden_size"] else 0,
        "qkv_bias": biased, "out_bias": biased, "mlp_bias": biased,
    }  # fmt: skip


def gpt2(config: Fields) -> Fields:
    multi = config["model_type"] == "gpt_bigcode" and bool(config.get("multi_query", True))
    return {"learned_positions": size_of(config, "context_length"), **({"num_kv_heads": 1} if multi else {})}


def neox(config: Fields) -> Fields:
    biased = bool(config.get("attention_bias", True))
    return {"qkv_bias": biased, "out_bias": biased}


def phi(config: Fields) -> Fields:
    return {"qk_norm": "head_layer" if config.get("qk_layernorm") else "none"}


def stablelm(config: Fields) -> Fields:
    return {
        "qkv_bias": bool(config.get("use_qkv_bias")),
        "qk_norm": "heads" if config.get("qk_layernorm") else "none",
        "norms_per_layer": 1 if config.get("use_parallel_residual") else 2,
    }


def starcoder2(config: Fields) -> Fields:
    biased = bool(config.get("use_bias", True))
    return {"qkv_bias": biased, "out_bias": biased, "mlp_bias": biased}


def cohere(config: Fields) -> Fields:
    return {**qwen3(config), "qk_norm": "heads" if config.get("use_qk_norm") else "none"}


def bert(config: Fields) -> Fields:
    positions = int(size_of(config, "context_length"))
    return {"learned_positions": positions, "token_types": config.get("type_vocab_size", 2)}


def distilbert(config: Fields) -> Fields:
    return {"learned_positions": int(size_of(config, "context_length"))}
