"""What families with recurrent blocks say in keys of their own."""

from __future__ import annotations

from limpid.planning.families.dense import qwen3
from limpid.planning.families.experts import mixtral, qwen_experts
from limpid.planning.families.keys import Fields, size_of
from limpid.planning.recurrent import DeltaNet, LightningAttention, StateSpace


def linear_layers(config: Fields, every: int) -> int:
    """Blocks that carry a state; without a list of kinds, all but each `every`-th one."""
    layers, kinds = int(size_of(config, "num_layers")), config.get("layer_types")
    return layers - layers // every if kinds is None else sum(kind == "linear_attention" for kind in kinds)


def qwen3_next(config: Fields) -> Fields:
    mixer = DeltaNet(
        linear_key_heads=int(config.get("linear_num_key_heads", 16)),
        linear_value_heads=int(config.get("linear_num_value_heads", 32)),
        linear_d_key=int(config.get("linear_key_head_dim", 128)),
        linear_d_value=int(config.get("linear_value_head_dim", 128)),
        d_conv=int(config.get("linear_conv_kernel_dim", 4)),
    )
    layers = linear_layers(config, int(config.get("full_attention_interval", 4)))
    return {**qwen_experts(config), **qwen3(config), "recurrent": mixer, "recurrent_layers": layers}


def minimax(config: Fields) -> Fields:
    return {**mixtral(config), "recurrent": LightningAttention(), "recurrent_layers": linear_layers(config, 2)}


def jamba(config: Fields) -> Fields:
    layers = range(int(size_of(config, "num_layers")))
    attends = [layer % int(config.get("attn_layer_period", 8)) == int(config.get("attn_layer_offset", 4))
               for layer in layers]  # fmt: skip
    sparse = [layer % int(config.get("expert_layer_period", 2)) == int(config.get("expert_layer_offset", 1))
              for layer in layers]  # fmt: skip
    width, experts = int(size_of(config, "d_model")), int(config.get("num_experts", 16))
    rank = config.get("mamba_dt_rank", "auto")
    mixer = StateSpace(
        d_inner=int(config.get("mamba_expand", 2)) * width,
        d_state=int(config.get("mamba_d_state", 16)),
        d_conv=int(config.get("mamba_d_conv", 4)),
        dt_rank=-(-width // 16) if rank == "auto" else int(rank),
        conv_bias=bool(config.get("mamba_conv_bias", True)),
        proj_bias=bool(config.get("mamba_proj_bias", False)),
        inner_norms=True,
    )
    chosen = {
        "num_experts": experts, "experts_per_token": config.get("num_experts_per_tok", 2),
        "d_ff_expert": config["intermediate_size"], "dense_layers": len(layers) - sum(sparse),
    }  # fmt: skip
    return {"recurrent": mixer, "recurrent_layers": len(layers) - sum(attends), **(chosen if experts > 1 else {})}


def mamba(config: Fields) -> Fields:
    width = int(size_of(config, "d_model"))
    rank = config.get("time_step_rank", "auto")
    mixer = StateSpace(
        d_inner=int(config.get("intermediate_size") or int(config.get("expand", 2)) * width),
        d_state=int(config.get("state_size", 16)),
        d_conv=int(config.get("conv_kernel", 4)),
        dt_rank=-(-width // 16) if rank == "auto" else int(rank),
        conv_bias=bool(config.get("use_conv_bias", True)),
        proj_bias=bool(config.get("use_bias", False)),
    )
    return {"recurrent": mixer, "recurrent_layers": size_of(config, "num_layers"), "d_ff": 0}
