"""A published model's config.json in our words: what each key may be, and the options that it stands for."""

from __future__ import annotations

from typing import Any

from limpid.config.domain import Count, NotNegative, Positive, Whole
from limpid.config.options import converted
from limpid.errors import ConfigError

Plain = dict[str, Any]

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
"""Hugging Face's word for an activation, and ours."""


KEYS: dict[str, Any] = {
    **dict.fromkeys(
        ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
         "max_position_embeddings", "n_positions", "n_embd", "n_layer", "n_head"), Count,
    ),
    **dict.fromkeys(("num_key_value_heads", "head_dim", "sliding_window", "n_inner"), Count | None),
    "max_window_layers": Whole,
    **dict.fromkeys(("rms_norm_eps", "layer_norm_epsilon", "initializer_range"), NotNegative),
    "rope_theta": Positive | None,
    **dict.fromkeys(("hidden_act", "activation_function"), str),
    **dict.fromkeys(
        ("attention_bias", "mlp_bias", "tie_word_embeddings", "scale_attn_weights",
         "scale_attn_by_inverse_layer_idx", "add_cross_attention"), bool,
    ),
    "use_sliding_window": bool | None,
    "layer_types": tuple[str, ...] | None,
}  # fmt: skip
"""What each key of a config.json that is read may be."""
ROPE_KEYS: dict[str, Any] = {
    **dict.fromkeys(("rope_type", "type"), str),
    **dict.fromkeys(
        ("rope_theta", "factor", "partial_rotary_factor", "low_freq_factor", "high_freq_factor", "beta_slow",
         "beta_fast"), Positive | None,
    ),
    **dict.fromkeys(("mscale", "mscale_all_dim", "attention_factor"), NotNegative | None),
    "original_max_position_embeddings": Count | None,
    "truncate": bool | None,
}  # fmt: skip


SCORING = "ForSequenceClassification"
"""How the architectures are called that rate a text."""


def checked(their: Plain) -> Plain:
    """The keys of a config.json that limpid reads, each of its type and in its interval; others are left alone.

    Raises  ConfigError naming the key and its value
    """
    return {key: converted(KEYS[key], value, key) if key in KEYS else value for key, value in their.items()}


def head_of(their: Plain) -> Plain:
    """What the last hidden state becomes, as a config.json says it.

    Raises  ConfigError for a classifier of several labels
    """
    architectures = their.get("architectures")
    if not isinstance(architectures, list) or not any(str(one).endswith(SCORING) for one in architectures):
        return {}
    labels = their.get("id2label")
    count = len(labels) if isinstance(labels, dict) else 2  # transformers leaves out its default
    if count != 1:
        raise ConfigError(f"id2label names {count} labels in config.json: limpid reads one score, as of a reward model")
    return {"head": "score"}


def _rope(their: Plain, key: str) -> Plain:
    """The checked values of one of the two tables that may say how positions rotate."""
    table = their.get(key)
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise ConfigError(f"{key} is {table!r:.60}: expected an object")
    return {name: converted(ROPE_KEYS[name], value, name) for name, value in table.items() if name in ROPE_KEYS}


def read_llama(their: Plain) -> Plain:
    heads = their["num_attention_heads"]
    window, windowed = _window(their)
    biased = bool(their["attention_bias"])
    return {
        "vocab_size": their["vocab_size"],
        "context_length": their["max_position_embeddings"],
        "d_model": their["hidden_size"],
        "num_layers": their["num_hidden_layers"],
        "num_heads": heads,
        "num_kv_heads": their["num_key_value_heads"] or heads,
        "d_head": their["head_dim"] or their["hidden_size"] // heads,
        "d_ff": their["intermediate_size"],
        "norm": "rms",
        "norm_eps": their["rms_norm_eps"],
        "qk_norm": their["model_type"] == "qwen3",
        "attention_window": window,
        "windowed_blocks": windowed,
        "attention_bias": biased,
        "attention_output_bias": biased and their["model_type"] != "qwen2",
        "mlp": "gated",
        "activation": _activation(their["hidden_act"]),
        "mlp_bias": bool(their["mlp_bias"]),
        "tied": bool(their["tie_word_embeddings"]),
        "init_std": their["initializer_range"],
        **_rotary(their),
    }


def read_gpt2(their: Plain) -> Plain:
    for key, expected in (
        ("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False), ("add_cross_attention", False),
    ):  # fmt: skip
        if their[key] != expected:
            raise ConfigError(f"{key} is {their[key]} in config.json: limpid has no equivalent, only {expected}")
    return {
        "vocab_size": their["vocab_size"],
        "context_length": their["n_positions"],
        "d_model": their["n_embd"],
        "num_layers": their["n_layer"],
        "num_heads": their["n_head"],
        "d_ff": their["n_inner"] or 4 * their["n_embd"],
        "norm": "layer",
        "norm_eps": their["layer_norm_epsilon"],
        "positions": "learned",
        "attention_bias": True,
        "attention_output_bias": True,
        "mlp": "plain",
        "activation": _activation(their["activation_function"]),
        "mlp_bias": True,
        "tied": bool(their["tie_word_embeddings"]),
        "init_std": their["initializer_range"],
    }


def _activation(word: str) -> str:
    if word not in ACTIVATIONS:
        raise ConfigError(f"activation {word!r} in config.json has no equivalent: limpid has {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[word]


def _window(their: Plain) -> tuple[int | None, tuple[int, ...] | None]:
    """The window, and the blocks that it applies to (None: all)."""
    window, layers = their["sliding_window"], their["num_hidden_layers"]
    if window is None or their["use_sliding_window"] is False:
        return None, None
    kinds = their["layer_types"]
    if kinds is None:
        first = their["max_window_layers"] if their["model_type"] in ("qwen2", "qwen3") else 0
        kinds = ["full_attention" if block < first else "sliding_attention" for block in range(layers)]
    odd = set(kinds) - {"full_attention", "sliding_attention"}
    if odd:
        raise ConfigError(
            f"layer_types names {', '.join(sorted(odd))}: limpid has full_attention and sliding_attention"
        )
    windowed = tuple(block for block, kind in enumerate(kinds) if kind == "sliding_attention")
    if not windowed:
        return None, None
    return window, None if len(windowed) == layers else windowed


def _rotary(their: Plain) -> Plain:
    """Rotation from `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (before)."""
    rope = {**_rope(their, "rope_scaling"), **_rope(their, "rope_parameters")}
    base: float = rope.get("rope_theta") or their.get("rope_theta") or 10000.0
    kind = rope.get("rope_type", rope.get("type", "default"))
    if (rope.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ConfigError(
            f"partial_rotary_factor is {rope['partial_rotary_factor']}: limpid turns every pair of features"
        )
    common: Plain = {"rotary_base": float(base)}
    if kind == "default":
        return common
    context = their["max_position_embeddings"]
    original = rope.get("original_max_position_embeddings") or context
    if kind not in ("linear", "llama3", "yarn"):
        raise ConfigError(f"rope_type {kind!r} has no equivalent: limpid has default, linear, llama3, yarn")
    if rope.get("factor") is None and original == context:
        raise ConfigError(f"rope_type {kind} needs factor")
    common |= {"rotary_scaling": kind, "rotary_original_context": int(original)}
    common["rotary_factor"] = float(rope.get("factor") or context / original)
    if kind == "llama3":
        if missing := [key for key in ("low_freq_factor", "high_freq_factor") if rope.get(key) is None]:
            raise ConfigError(f"rope_type llama3 needs {' and '.join(missing)}")
        return common | {"rotary_low": float(rope["low_freq_factor"]), "rotary_high": float(rope["high_freq_factor"])}
    if kind == "yarn":
        odd = [key for key in ("mscale", "mscale_all_dim") if rope.get(key)] + (
            ["truncate"] * (rope.get("truncate") is False)
        )
        if odd:
            raise ConfigError(f"yarn with {' and '.join(odd)} in config.json has no equivalent in limpid")
        common |= {"rotary_low": float(rope.get("beta_slow") or 1), "rotary_high": float(rope.get("beta_fast") or 32)}
        common["rotary_attention_factor"] = float(rope.get("attention_factor") or 0.0)
    return common
