"""Small configurations of every family that the planner reads, built by transformers without weights."""

from __future__ import annotations

from typing import Any

SIZES = {
    "vocab_size": 101, "hidden_size": 48, "n_embd": 48, "d_model": 48, "dim": 48, "num_hidden_layers": 3, "n_layer": 3,
    "n_layers": 3, "num_layers": 3, "num_attention_heads": 6, "n_head": 6, "n_heads": 6, "num_heads": 6,
    "intermediate_size": 52, "ffn_dim": 52, "hidden_dim": 52, "ffn_hidden_size": 52, "max_position_embeddings": 37,
    "n_positions": 37, "word_embed_proj_dim": 48, "moe_intermediate_size": 20, "num_experts": 8, "num_local_experts": 8,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 24, "n_shared_experts": 2,
    "first_k_dense_replace": 1, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12,
    "v_head_dim": 10, "moe_num_experts": 8, "moe_k": 2, "moe_num_shared_experts": 2, "moe_layer_start_index": 1,
    "moe_layer_end_index": 2, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 6, "intermediate_size_mlp": 30, "d_kv": 10, "d_ff": 52, "state_size": 5,
    "mamba_d_state": 5, "mamba_d_conv": 3, "attn_layer_period": 2, "attn_layer_offset": 1,
    "n_group": 2, "topk_group": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
CHANGES: tuple[dict[str, Any], ...] = (
    {"tie_word_embeddings": True, "num_key_value_heads": 2, "head_dim": 10, "decoder_sparse_step": 2,
     "q_lora_rank": None},
    {"tie_word_embeddings": False, "attention_bias": True, "qk_layernorm": True, "use_qk_norm": True,
     "use_qkv_bias": True, "bias": True, "use_parallel_residual": True, "new_decoder_architecture": True,
     "num_kv_heads": 2, "feed_forward_proj": "gated-gelu", "num_decoder_layers": 2, "lm_head_bias": True},
    {"use_bias": False, "enable_bias": False, "word_embed_proj_dim": 20, "multi_query": False, "parallel_attn": False},
)  # fmt: skip
ENCODERS = ("bert", "roberta", "xlm-roberta", "distilbert")


def their_config(family: str, changes: dict[str, Any]) -> Any:
    """A configuration of transformers with as many of the sizes and changes as the family knows."""
    from transformers import AutoConfig

    known = AutoConfig.for_model(family)
    names = (
        set(known.to_dict()) | set(known.attribute_map) | {"num_attention_heads"} - set(known.attribute_map.values())
    )
    given = {key: value for key, value in {**SIZES, **changes}.items() if key in names}
    if known.attribute_map:  # a size under one of its two names
        given = {key: value for key, value in given.items() if known.attribute_map.get(key) not in given}
    if family == "gpt_neo":
        given["attention_types"] = [[["global"], 3]]
    if family == "ministral":
        given.setdefault("head_dim", 8)
    if known.to_dict().get("layer_types"):
        recurrent = "linear_attention" in known.layer_types
        given["layer_types"] = ["linear_attention" if recurrent else "full_attention", *["full_attention"] * 2]
    if family == "nemotron":
        given.setdefault("num_key_value_heads", 3)
    if family == "dbrx":
        given["attn_config"] = {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4}
        given["ffn_config"] = {"ffn_hidden_size": 20, "moe_num_experts": 8, "moe_top_k": 2}
        given["tie_word_embeddings"] = False
    if family.startswith("deepseek"):
        for key in ("head_dim", "num_key_value_heads", "attention_bias"):
            given.pop(key, None)
        if family == "deepseek_v3":
            given["q_lora_rank"] = 24
    return AutoConfig.for_model(family, **given)


def their_count(family: str, config: Any) -> int:
    """Parameters of transformers' own model, a tied matrix once."""
    import torch
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    kind = AutoModel if family in ENCODERS else AutoModelForSeq2SeqLM if family == "t5" else AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())
