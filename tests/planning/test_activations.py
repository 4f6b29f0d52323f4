"""What the standard memory model says a block saves, against what autograd keeps of transformers' own models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from limpid.planning.activations import block_sizes, halves
from limpid.planning.architecture import Architecture
from limpid.planning.figure import evaluate
from limpid.planning.huggingface import read_config

POSITIONS, ROWS = 48, 2


def random_config(family: str, rng: np.random.Generator) -> dict[str, Any]:
    """A small model of a family; its last block is the one that is looked at."""
    kv_heads, d_head = int(rng.choice([1, 2, 3])), 2 * int(rng.integers(4, 9))
    sizes: dict[str, Any] = {
        "vocab_size": 31, "hidden_size": 24 * int(rng.integers(2, 6)), "num_hidden_layers": 2, "num_attention_heads": 6,
        "num_key_value_heads": kv_heads, "head_dim": d_head, "intermediate_size": int(rng.integers(60, 200)),
        "max_position_embeddings": POSITIONS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    experts = {"moe_intermediate_size": 8 * int(rng.integers(2, 9)), "num_experts_per_tok": int(rng.integers(1, 5))}
    if family == "mixtral":
        sizes |= {"num_local_experts": 8, "num_experts_per_tok": experts["num_experts_per_tok"]}
        sizes["intermediate_size"] = 8 * int(rng.integers(6, 20))  # grouped products want aligned rows
    if family in ("qwen3_moe", "qwen2_moe"):
        sizes |= experts | {"num_experts": 8, "shared_expert_intermediate_size": 24}
    if family == "deepseek_v3":
        sizes |= experts | {
            "n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1, "q_lora_rank": 24,
            "kv_lora_rank": int(rng.integers(12, 40)), "qk_rope_head_dim": 8, "qk_nope_head_dim": d_head,
            "v_head_dim": 2 * int(rng.integers(4, 9)), "n_group": 1, "topk_group": 1, "num_key_value_heads": 6,
        }  # fmt: skip
        del sizes["head_dim"]
    return sizes


def kept_by_autograd(family: str, sizes: dict[str, Any], dtype: torch.dtype) -> tuple[int, dict[str, Any]]:
    """Bytes of all tensors that the last block saves and no earlier one does, without parameters."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **sizes)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").train()
    held = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    blocks: list[dict[int, torch.Tensor]] = []
    inside = [False]

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage().data_ptr()
        if inside[0] and place not in held and not any(place in block for block in blocks[:-1]):
            blocks[-1][place] = tensor
        return tensor

    for layer in model.model.layers:
        layer.register_forward_pre_hook(lambda *_: (blocks.append({}), inside.__setitem__(0, True))[0])
        layer.register_forward_hook(lambda *_: inside.__setitem__(0, False))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(input_ids=torch.randint(3, 31, (ROWS, POSITIONS)), use_cache=False)
    return sum(tensor.untyped_storage().nbytes() for tensor in blocks[-1].values()), config.to_dict()


def planned(model: Architecture, bytes_per_number: int, attention: Any) -> float:
    """Bytes of a block with experts where there are any."""
    numbers = {**block_sizes(model, ROWS, POSITIONS, bytes_per_number), "t": 1}
    kinds = {half.kind: half.rows for half in halves(model, attention)}
    rows = kinds["attention"] + kinds["experts" if "experts" in kinds else "mlp"]
    return float(sum(evaluate(row.equation, numbers) for row in rows))


FAMILIES = ("llama", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe")
CASES = [(family, dtype) for dtype in (torch.float32, torch.bfloat16) for family in FAMILIES]
CASES += [(family, torch.float32) for family in ("gemma3_text", "deepseek_v3")]
"""In bf16, Gemma multiplies by its gains and DeepSeek scores its experts in fp32, which no row says."""


@pytest.mark.parametrize(("family", "dtype"), CASES, ids=str)
def test_a_block_saves_what_autograd_keeps_of_transformers_own_model(family: str, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(len(family))
    for _ in range(2):
        kept, config = kept_by_autograd(family, random_config(family, rng), dtype)
        model = read_config({**config, "model_type": family})
        # PyTorch has no fused kernel on a processor for values narrower than keys
        attention = "materialised" if model.latent_attention is not None else "fused"
        assert planned(model, dtype.itemsize, attention) == pytest.approx(kept, rel=0.1)
