"""Families of published models: how each spells its configuration and names its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from limpid.config import ModelConfig
from limpid.errors import ConfigError
from limpid.model.family_configs import SCORING, Plain, read_gpt2, read_llama
from limpid.published_names import GPT2, LLAMA, Naming


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
        Family("llama", "LlamaForCausalLM", _LLAMA, read_llama, _write_llama_proper, _misfits_llama_proper),
        Family("mistral", "MistralForCausalLM", _MISTRAL, read_llama, _write_mistral, _misfits_mistral),
        Family("qwen2", "Qwen2ForCausalLM", _QWEN | {"attention_bias": True}, read_llama, _write_qwen, _misfits_qwen2),
        Family("qwen3", "Qwen3ForCausalLM", _QWEN | {"head_dim": 128}, read_llama, _write_qwen, _misfits_qwen3),
        Family("gpt2", "GPT2LMHeadModel", _GPT2, read_gpt2, _write_gpt2, _misfits_gpt2),
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
