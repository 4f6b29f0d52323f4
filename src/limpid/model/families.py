"""Families of published models: how each spells its configuration and names its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from limpid.config import ModelConfig
from limpid.config.domain import Count, NotNegative, Positive, Whole
from limpid.config.options import converted
from limpid.errors import ConfigError
from limpid.published_names import GPT2, LLAMA, Naming

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


@dataclass(frozen=True)
class Family:
    """One family: its configuration read and written, and what it cannot say."""

    name: str
    architecture: str
    defaults: Plain
    """Keys that a config.json may leave out."""
    read: Callable[[Plain], Plain]
    write: Callable[[ModelConfig], Plain]
    misfits: Callable[[ModelConfig], Iterator[str]]
    """Options of a configuration that this family has no word for."""

    @property
    def layers(self) -> str:
        """Its word for the number of blocks."""
        return "n_layer" if self.fused else "num_hidden_layers"

    @property
    def fused(self) -> bool:
        """GPT-2 keeps query, key and value in one matrix, and all matrices transposed."""
        return self.name == "gpt2"

    @property
    def naming(self) -> Naming:
        """Names of its modules."""
        return GPT2 if self.fused else LLAMA

    @property
    def scoring(self) -> str:
        """Its architecture with a score in the place of the vocabulary."""
        return self.architecture.replace("ForCausalLM", SCORING).replace("LMHeadModel", SCORING)

    def their_name(self, ours: str) -> str:
        """Hugging Face's name of one of our parameters (of GPT-2's queries, keys and values: none)."""
        module, kind = ours.rsplit(".", 1)
        return f"{self.naming.module(module)}.{kind}"


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


def _read_llama(their: Plain) -> Plain:
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


def _read_gpt2(their: Plain) -> Plain:
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


def _write_llama(config: ModelConfig) -> Plain:
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.sizes.d_ff,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.sizes.num_kv_heads,
        "head_dim": config.sizes.d_head,
        "hidden_act": _their_activation(config),
        "max_position_embeddings": config.context_length,
        "initializer_range": config.init_std,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied,
        "attention_dropout": config.dropout,
        "rope_parameters": _their_rotary(config),
        "rope_theta": config.rotary_base,  # for transformers before 5
    }


def _their_rotary(config: ModelConfig) -> Plain:
    rope: Plain = {"rope_theta": config.rotary_base}
    if config.rotary_scaling == "none":
        return rope | {"rope_type": "default"}
    rope |= {"rope_type": config.rotary_scaling, "factor": config.rotary_factor}
    if config.rotary_scaling == "linear":
        return rope
    rope["original_max_position_embeddings"] = config.sizes.rotary_original_context
    if config.rotary_scaling == "llama3":
        return rope | {"low_freq_factor": config.rotary_low, "high_freq_factor": config.rotary_high}
    rope |= {"beta_slow": config.rotary_low, "beta_fast": config.rotary_high}
    return rope | ({"attention_factor": config.rotary_attention_factor} if config.rotary_attention_factor else {})


def _their_activation(config: ModelConfig) -> str:
    return "gelu_pytorch_tanh" if config.activation == "gelu_tanh" else config.activation


def _write_llama_proper(config: ModelConfig) -> Plain:
    return _write_llama(config) | {"attention_bias": config.attention_bias, "mlp_bias": config.mlp_bias}


def _write_mistral(config: ModelConfig) -> Plain:
    return _write_llama(config) | {"sliding_window": config.attention_window}


def _write_qwen(config: ModelConfig) -> Plain:
    windows = [config.window(block) for block in range(config.num_layers)]
    their = _write_llama(config) | {
        "use_sliding_window": any(windows),
        "sliding_window": config.attention_window,
        "max_window_layers": next((block for block, window in enumerate(windows) if window), config.num_layers),
        "layer_types": ["sliding_attention" if window else "full_attention" for window in windows],
    }
    return their | ({"attention_bias": config.attention_bias} if config.qk_norm else {})


def _write_gpt2(config: ModelConfig) -> Plain:
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.dropout)
    return {
        "vocab_size": config.vocab_size,
        "n_positions": config.context_length,
        "n_embd": config.d_model,
        "n_layer": config.num_layers,
        "n_head": config.num_heads,
        "n_inner": config.sizes.d_ff,
        "activation_function": "gelu_new" if config.activation == "gelu_tanh" else config.activation,
        "layer_norm_epsilon": config.norm_eps,
        "initializer_range": config.init_std,
        "tie_word_embeddings": config.tied,
        **dropout,
    }


def _differs(config: ModelConfig, **expected: Any) -> Iterator[str]:
    for name, value in expected.items():
        if getattr(config, name) != value:
            yield f"{name} {getattr(config, name)}"


def _misfits_llama(config: ModelConfig) -> Iterator[str]:
    yield from _differs(config, norm="rms", norm_placement="pre", positions="rotary", mlp="gated")
    yield from _differs(config, attention_residual=True)


def _misfits_llama_proper(config: ModelConfig) -> Iterator[str]:
    yield from _misfits_llama(config)
    yield from _differs(config, qk_norm=False, attention_window=None, attention_output_bias=config.attention_bias)


def _misfits_mistral(config: ModelConfig) -> Iterator[str]:
    yield from _misfits_llama(config)
    yield from _differs(
        config, qk_norm=False, attention_bias=False, attention_output_bias=False, mlp_bias=False, windowed_blocks=None
    )


def _misfits_qwen2(config: ModelConfig) -> Iterator[str]:
    yield from _misfits_llama(config)
    yield from _differs(config, qk_norm=False, attention_bias=True, attention_output_bias=False, mlp_bias=False)


def _misfits_qwen3(config: ModelConfig) -> Iterator[str]:
    yield from _misfits_llama(config)
    yield from _differs(config, qk_norm=True, attention_output_bias=config.attention_bias, mlp_bias=False)


def _misfits_gpt2(config: ModelConfig) -> Iterator[str]:
    yield from _differs(config, norm="layer", norm_placement="pre", positions="learned", mlp="plain", qk_norm=False)
    yield from _differs(config, attention_residual=True)
    yield from _differs(config, attention_bias=True, attention_output_bias=True, mlp_bias=True, attention_window=None)
    yield from _differs(config.resolved(), num_kv_heads=config.num_heads, d_head=config.d_model // config.num_heads)


_LLAMA = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": None, "head_dim": None, "hidden_act": "silu",
    "max_position_embeddings": 2048, "initializer_range": 0.02, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    "attention_bias": False, "mlp_bias": False, "sliding_window": None, "use_sliding_window": None,
    "max_window_layers": 28, "layer_types": None,
}  # fmt: skip
_QWEN = _LLAMA | {
    "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32, "max_position_embeddings": 32768,
    "use_sliding_window": False, "sliding_window": 4096,
}  # fmt: skip
_MISTRAL = _LLAMA | {
    "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096,
}  # fmt: skip
_GPT2 = {
    "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None,
    "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "initializer_range": 0.02,
    "tie_word_embeddings": True, "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}  # fmt: skip

FAMILIES = {
    family.name: family
    for family in (
        Family("llama", "LlamaForCausalLM", _LLAMA, _read_llama, _write_llama_proper, _misfits_llama_proper),
        Family("mistral", "MistralForCausalLM", _MISTRAL, _read_llama, _write_mistral, _misfits_mistral),
        Family("qwen2", "Qwen2ForCausalLM", _QWEN | {"attention_bias": True}, _read_llama, _write_qwen, _misfits_qwen2),
        Family("qwen3", "Qwen3ForCausalLM", _QWEN | {"head_dim": 128}, _read_llama, _write_qwen, _misfits_qwen3),
        Family("gpt2", "GPT2LMHeadModel", _GPT2, _read_gpt2, _write_gpt2, _misfits_gpt2),
    )
}


def family_of(config: ModelConfig) -> Family:
    """The family that can express a configuration.

    Raises  ConfigError naming the options for which the nearest family has no equivalent
    """
    misfits = {name: list(family.misfits(config)) for name, family in FAMILIES.items()}
    name = min(misfits, key=lambda name: len(misfits[name]))
    if misfits[name]:
        raise ConfigError(
            f"no Hugging Face family expresses this model: {name}, the nearest, has no {', no '.join(misfits[name])}"
        )
    return FAMILIES[name]
