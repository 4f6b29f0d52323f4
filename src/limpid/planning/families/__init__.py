"""Families of models, by the model_type of their config.json: what differs between them, as a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from limpid.planning.families import dense, experts, recurrent
from limpid.planning.families.keys import Fields


@dataclass(frozen=True)
class Family:
    """What the name of a family says already, and how the rest is read."""

    fixed: Fields
    """Sizes and switches of the architecture that every model of the family has."""
    defaults: Fields
    """Of keys that a config.json may leave out."""
    more: Callable[[Fields], Fields] = lambda config: {}
    """Reads what depends on the family's own keys."""


LLAMA: Fields = {"gated": True, "norm": "rms"}
TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
ALL_BIASES: Fields = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}
ENCODER: Fields = {"head": False, "final_norm": False, "embedding_norm": True, **ALL_BIASES}
GEMMA3: Fields = {
    "tie_word_embeddings": True, "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 256, "max_position_embeddings": 131072, "sliding_window_pattern": 6,
}  # fmt: skip

FAMILIES: dict[str, Family] = {
    "llama": Family(LLAMA, UNTIED, dense.biased),
    "mistral": Family(LLAMA, {"num_key_value_heads": 8, **UNTIED}),
    "ministral": Family(LLAMA, UNTIED),
    "mixtral": Family(LLAMA, UNTIED, experts.mixtral),
    "qwen2": Family({**LLAMA, "qkv_bias": True}, UNTIED),
    "qwen3": Family({**LLAMA, "qk_norm": "head"}, {"head_dim": 128, **UNTIED}, dense.qwen3),
    "qwen2_moe": Family({**LLAMA, "qkv_bias": True}, UNTIED, experts.qwen_experts),
    "qwen3_moe": Family({**LLAMA, "qk_norm": "head"}, UNTIED, experts.qwen_experts),
    "gemma": Family(LLAMA, {"head_dim": 256, **TIED}, dense.qwen3),
    "gemma2": Family(
        {**LLAMA, "norms_per_layer": 4}, {"head_dim": 256, "sliding_window_pattern": 2, **TIED}, dense.qwen3
    ),
    "gemma3_text": Family({**LLAMA, "norms_per_layer": 4, "qk_norm": "head"}, GEMMA3, dense.qwen3),
    "qwen3_next": Family(
        {**LLAMA, "qk_norm": "head", "attention_gate": True}, {"head_dim": 256, **UNTIED}, recurrent.qwen3_next
    ),
    "granite": Family(LLAMA, UNTIED, dense.biased),
    "granitemoe": Family(LLAMA, UNTIED, experts.same_width_experts),
    "glm4": Family({**LLAMA, "norms_per_layer": 4}, {"head_dim": 128, **UNTIED}, dense.glm4),
    "glm4_moe": Family(LLAMA, UNTIED, experts.glm_moe),
    "ernie4_5_moe": Family(LLAMA, TIED, experts.ernie_moe),
    "llama4_text": Family(LLAMA, {"head_dim": 128, "intermediate_size_mlp": 16384, **UNTIED}, experts.llama4),
    "phimoe": Family({"gated": True}, UNTIED, experts.phimoe),
    "dbrx": Family({"gated": True, "norm": "layer_no_bias"}, UNTIED, experts.dbrx),
    "nemotron": Family({}, UNTIED, dense.biased),
    "jamba": Family(LLAMA, UNTIED, recurrent.jamba),
    "minimax": Family(LLAMA, UNTIED, recurrent.minimax),
    "mamba": Family(
        {"norm": "rms", "norms_per_layer": 1}, {"num_attention_heads": 1, "head_dim": 1, **TIED}, recurrent.mamba
    ),
    "t5": Family({"norm": "rms"}, TIED, dense.t5),
    "smollm3": Family(LLAMA, TIED, dense.biased),
    "olmo": Family({**LLAMA, "norm": "none"}, UNTIED, dense.qwen3),
    "olmoe": Family({**LLAMA, "qk_norm": "all"}, UNTIED, experts.same_width_experts),
    "olmo2": Family({**LLAMA, "qk_norm": "all"}, UNTIED, dense.qwen3),
    "olmo3": Family({**LLAMA, "qk_norm": "all"}, UNTIED, dense.qwen3),
    "phi": Family({**ALL_BIASES, "norms_per_layer": 1, "head_bias": True}, UNTIED, dense.phi),
    "phi3": Family(LLAMA, UNTIED),
    "stablelm": Family({"gated": True, "norm": "layer"}, UNTIED, dense.stablelm),
    "starcoder2": Family({"norm": "layer"}, TIED, dense.starcoder2),
    "cohere": Family({"gated": True, "norm": "layer_no_bias", "norms_per_layer": 1}, TIED, dense.cohere),
    "cohere2": Family({"gated": True, "norm": "layer_no_bias", "norms_per_layer": 1}, TIED, dense.cohere),
    "gpt_oss": Family(LLAMA, {"head_dim": 64, **UNTIED}, experts.gpt_oss),
    "deepseek_v2": Family(LLAMA, UNTIED, experts.deepseek),
    "deepseek_v3": Family(LLAMA, UNTIED, experts.deepseek),
    "gpt2": Family(ALL_BIASES, TIED, dense.gpt2),
    "gpt_bigcode": Family(ALL_BIASES, TIED, dense.gpt2),
    "gptj": Family({"mlp_bias": True, "norms_per_layer": 1, "head_bias": True}, UNTIED),
    "gpt_neo": Family({"out_bias": True, "mlp_bias": True}, TIED, dense.gpt2),
    "gpt_neox": Family({"mlp_bias": True}, UNTIED, dense.neox),
    "opt": Family({}, TIED, dense.opt),
    "bloom": Family({**ALL_BIASES, "embedding_norm": True}, TIED),
    "falcon": Family({}, TIED, dense.falcon),
    "mpt": Family({"norm": "layer_no_bias"}, TIED),
    "bert": Family({**ENCODER, "pooler": True}, {}, dense.bert),
    "roberta": Family({**ENCODER, "pooler": True}, {}, dense.bert),
    "xlm-roberta": Family({**ENCODER, "pooler": True}, {}, dense.bert),
    "distilbert": Family(ENCODER, {}, dense.distilbert),
}
"""Families by model_type. tests/planning counts each against transformers' own model."""
