"""Names of parameters and quantities in published models: Hugging Face's modules, TransformerLens' hooks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

HEADS = {"logits": "lm_head", "score": "score"}
"""Our modules after the last hidden state, and theirs."""
HEADS_JOINED = ("attention.query", "attention.key", "attention.value")


@dataclass(frozen=True)
class Naming:
    """How one kind of Hugging Face model names its modules: ours to theirs."""

    prefix: str
    blocks: str
    inside: dict[str, str]
    """Modules of a block."""
    outside: dict[str, str]
    joined: dict[str, tuple[str, ...]]
    """Modules that compute several of ours with one matrix."""

    def module(self, ours: str) -> str:
        """Their module that computes one of our quantities, as in `model.layers.0.mlp.up_proj`."""
        if ours in HEADS:
            return HEADS[ours]
        if not ours.startswith("blocks."):
            return f"{self.prefix}.{self.outside[ours]}"
        _, block, place = ours.split(".", 2)
        return f"{self.prefix}.{self.blocks}.{block}.{self.inside[place]}"


LLAMA = Naming(
    "model",
    "layers",
    {
        "attention.query": "self_attn.q_proj",
        "attention.key": "self_attn.k_proj",
        "attention.value": "self_attn.v_proj",
        "attention.output": "self_attn.o_proj",
        "attention.query_norm": "self_attn.q_norm",
        "attention.key_norm": "self_attn.k_norm",
        "mlp.gate": "mlp.gate_proj",
        "mlp.up": "mlp.up_proj",
        "mlp.output": "mlp.down_proj",
        "norm1": "input_layernorm",
        "norm2": "post_attention_layernorm",
    },
    {"embed.tokens": "embed_tokens", "final_norm": "norm"},
    {"self_attn.qkv_proj": HEADS_JOINED, "mlp.gate_up_proj": ("mlp.gate", "mlp.up")},
)
GPT2 = Naming(
    "transformer",
    "h",
    {
        "attention.output": "attn.c_proj",
        "mlp.up": "mlp.c_fc",
        "mlp.output": "mlp.c_proj",
        "norm1": "ln_1",
        "norm2": "ln_2",
    },
    {"embed.tokens": "wte", "embed.positions": "wpe", "final_norm": "ln_f"},
    {"attn.c_attn": HEADS_JOINED},
)
NAMINGS = (LLAMA, GPT2)

MODULE_INPUTS = {"attention.output": "attention.mixed", "norm2": "residual1", "mlp.output": "mlp.hidden"}
"""Quantities that no module returns, by the module that they go into."""

HOOKS = {
    "attn.hook_q": "attention.query",
    "attn.hook_k": "attention.key",
    "attn.hook_v": "attention.value",
    "attn.hook_rot_q": "attention.query_rotated",
    "attn.hook_rot_k": "attention.key_rotated",
    "attn.hook_attn_scores": "attention.scores",
    "attn.hook_pattern": "attention.weights",
    "attn.hook_z": "attention.mixed",
    "hook_attn_out": "attention.output",
    "hook_resid_mid": "residual1",
    "hook_resid_post": "residual2",
    "hook_mlp_out": "mlp.output",
    "mlp.hook_pre": "mlp.gate",
    "mlp.hook_pre_linear": "mlp.up",
    "mlp.hook_post": "mlp.hidden",
    "ln1.hook_normalized": "norm1",
    "ln2.hook_normalized": "norm2",
}
"""Hooks of TransformerLens inside a block, and our quantities."""
HOOKS_OUTSIDE = {
    "hook_embed": "embed.tokens",
    "hook_pos_embed": "embed.positions",
    "ln_final.hook_normalized": "final_norm",
    "ln_final": "final_norm",
    "unembed": "logits",
}

INSIDE = HOOKS | {theirs: ours for naming in NAMINGS for ours, theirs in naming.inside.items()}
"""Every published name inside a block, and our quantity."""
OUTSIDE = HOOKS_OUTSIDE | {naming.module(ours): ours for naming in NAMINGS for ours in (*naming.outside, "logits")}
JOINED = {theirs: ours for naming in NAMINGS for theirs, ours in naming.joined.items()}
IN_BLOCK = re.compile(
    rf"^(?:blocks|layers|h|{'|'.join(rf'{n.prefix}.{n.blocks}' for n in NAMINGS)})\.(\d+)(?:\.(.+))?$"
)


def place_in_block(theirs: str) -> tuple[int, str] | None:
    """Block and place within it of a published name ("" for the block itself); None outside blocks."""
    inside = IN_BLOCK.match(theirs)
    return (int(inside.group(1)), inside.group(2) or "") if inside else None


def our_spellings(theirs: str) -> Iterator[str]:
    """What a published name of a quantity or parameter may be called here, likeliest first."""
    ending = next((ending for ending in (".weight", ".bias") if theirs.endswith(ending)), "")
    stem = theirs.removesuffix(ending)
    if stem in OUTSIDE:
        yield OUTSIDE[stem] + ending
    if stem in ("lm_head", "logits") and ending:  # a tied output matrix is the token embedding
        yield f"embed.tokens{ending}"
    inside = place_in_block(stem)
    if inside is None:
        return
    block, place = inside
    if place in INSIDE:
        yield f"blocks.{block}.{INSIDE[place]}{ending}"
    if place == "mlp.hook_pre":  # a plain MLP has one map before its nonlinearity
        yield f"blocks.{block}.mlp.up"
    if place == "hook_resid_pre":
        yield from (f"blocks.{block - 1}.residual2",) if block else ("embed.sum", "embed.tokens")


def joined_parts(theirs: str) -> list[str]:
    """Our names of what a published model computes with one matrix."""
    ending = next((ending for ending in (".weight", ".bias") if theirs.endswith(ending)), "")
    inside = place_in_block(theirs.removesuffix(ending))
    return [f"blocks.{inside[0]}.{name}{ending}" for name in JOINED.get(inside[1], ())] if inside else []
