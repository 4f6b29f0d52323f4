"""What families with a mixture of experts say in keys of their own."""

from __future__ import annotations

from limpid.errors import ConfigError
from limpid.planning.families.dense import biased, qwen3
from limpid.planning.families.keys import Fields, size_of


def sparse_layers(config: Fields) -> int:
    """Blocks that keep a plain MLP among blocks of experts (Qwen)."""
    layers, every = int(size_of(config, "num_layers")), int(config.get("decoder_sparse_step") or 1)
    plain = set(config.get("mlp_only_layers") or ())
    return sum(layer in plain or (layer + 1) % every != 0 for layer in range(layers))


def qwen_experts(config: Fields) -> Fields:
    shared = int(config.get("shared_expert_intermediate_size") or 0)
    return {
        **(qwen3(config) if config["model_type"] == "qwen3_moe" else {}),
        "num_experts": config.get("num_experts") or config.get("num_local_experts"),
        "experts_per_token": config["num_experts_per_tok"],
        "d_ff_expert": config["moe_intermediate_size"],
        "dense_layers": sparse_layers(config),
        **({"shared_d_ff": shared, "shared_gate": True} if shared else {}),
    }


def mixtral(config: Fields) -> Fields:
    return {
        "num_experts": config["num_local_experts"],
        "experts_per_token": config["num_experts_per_tok"],
        "d_ff_expert": config["intermediate_size"],
    }


def same_width_experts(config: Fields) -> Fields:
    """Experts as wide as the plain MLP would be (OLMoE, Granite, Phi)."""
    return {
        **biased(config),
        "mlp_bias": False,
        **mixtral({"num_local_experts": config.get("num_experts"), **config}),
    }


def phimoe(config: Fields) -> Fields:
    return {**same_width_experts(config), "head_bias": bool(config.get("lm_head_bias"))}


def glm_moe(config: Fields) -> Fields:
    return {
        "qkv_bias": bool(config.get("attention_bias")),
        "qk_norm": "head" if config.get("use_qk_norm") else "none",
        "num_experts": config["n_routed_experts"],
        "experts_per_token": config["num_experts_per_tok"],
        "d_ff_expert": config["moe_intermediate_size"],
        "dense_layers": int(config.get("first_k_dense_replace", 1)),
        "shared_d_ff": int(config.get("n_shared_experts", 1)) * int(config["moe_intermediate_size"]),
    }


def ernie_moe(config: Fields) -> Fields:
    if config.get("use_bias"):
        raise ConfigError("use_bias is true: biases of experts are not known for ERNIE models, expected false")
    layers, every = int(size_of(config, "num_layers")), int(config.get("moe_layer_interval", 1))
    first, last = int(config.get("moe_layer_start_index", 1)), int(config.get("moe_layer_end_index", -1))
    last = layers - 1 if last == -1 else last
    return {
        "num_experts": config["moe_num_experts"],
        "experts_per_token": config["moe_k"],
        "d_ff_expert": config["moe_intermediate_size"],
        "shared_d_ff": int(config.get("moe_num_shared_experts", 0)) * int(config["moe_intermediate_size"]),
        "router_bias": True,
        "dense_layers": layers - sum((layer + 1) % every == 0 for layer in range(first, min(last, layers - 1) + 1)),
    }


def llama4(config: Fields) -> Fields:
    layers, every = int(size_of(config, "num_layers")), int(config.get("interleave_moe_layer_step", 1))
    sparse = config.get("moe_layers")
    sparse = list(range(every - 1, layers, every)) if sparse is None else sparse
    width = config["intermediate_size"]
    return {
        **qwen3(config),
        "d_ff": config["intermediate_size_mlp"],
        "num_experts": config["num_local_experts"],
        "experts_per_token": config["num_experts_per_tok"],
        "d_ff_expert": width,
        "shared_d_ff": width,
        "dense_layers": layers - len(sparse),
    }


def dbrx(config: Fields) -> Fields:
    attention, experts = config.get("attn_config") or {}, config.get("ffn_config") or {}
    return {
        "num_kv_heads": attention.get("kv_n_heads", 1),
        "num_experts": experts.get("moe_num_experts", 4),
        "experts_per_token": experts.get("moe_top_k", 1),
        "d_ff_expert": experts.get("ffn_hidden_size", 3584),
    }


def gpt_oss(config: Fields) -> Fields:
    return {**mixtral(config), **biased(config), "mlp_bias": True, "router_bias": True, "sinks": True}


def deepseek(config: Fields) -> Fields:
    shared = int(config.get("n_shared_experts") or 0) * int(config["moe_intermediate_size"])
    if config.get("mlp_bias"):
        raise ConfigError("mlp_bias is true: biases of experts are not known for DeepSeek models, expected false")
    return {
        **qwen3(config),
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
