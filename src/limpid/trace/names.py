"""Names of quantities as other tools spell them: TransformerLens hooks, Hugging Face modules and weights."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from limpid.errors import ConfigError

IN_BLOCK = {
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
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.o_proj": "attention.output",
    "self_attn.q_norm": "attention.query_norm",
    "self_attn.k_norm": "attention.key_norm",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.output",
    "input_layernorm": "norm1",
    "post_attention_layernorm": "norm2",
    "attn.c_proj": "attention.output",
    "mlp.c_fc": "mlp.up",
    "mlp.c_proj": "mlp.output",
    "ln_1": "norm1",
    "ln_2": "norm2",
}
OUTSIDE = {
    "hook_embed": "embed.tokens",
    "hook_pos_embed": "embed.positions",
    "ln_final.hook_normalized": "final_norm",
    "ln_final": "final_norm",
    "unembed": "logits",
    "model.embed_tokens": "embed.tokens",
    "transformer.wte": "embed.tokens",
    "transformer.wpe": "embed.positions",
    "model.norm": "final_norm",
    "transformer.ln_f": "final_norm",
    "lm_head": "logits",
}
FUSED = {
    "attn.c_attn": ("attention.query", "attention.key", "attention.value"),
    "self_attn.qkv_proj": ("attention.query", "attention.key", "attention.value"),
    "mlp.gate_up_proj": ("mlp.gate", "mlp.up"),
}
BLOCK = re.compile(r"^(?:blocks|model\.layers|transformer\.h|h|layers)\.(\d+)\.(.+)$")


def our_name(asked: str, known: Iterable[str]) -> str:
    """The quantity, parameter, gradient or moment that `asked` means.

    Raises  ConfigError with the nearest names
    """
    names = set(known)
    around = re.match(r"^(grad|m|v|update)\((.+)\)$", asked)
    inner = around.group(2) if around else asked
    found = next((name for name in _spellings(inner, names) if name in names), None)
    if found is None:
        parts = _parts(inner)
        if parts:
            raise ConfigError(f"{inner} holds {', '.join(parts[:-1])} and {parts[-1]}: ask for one of them")
        close = difflib.get_close_matches(inner, names, 3, 0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else "--json lists every name"
        raise ConfigError(f"the step has no quantity {asked!r}: {hint}")
    return f"{around.group(1)}({found})" if around else found


def _spellings(asked: str, names: set[str]) -> Iterable[str]:
    yield asked
    yield from _in_the_only_block(asked, names)
    stem, kind = asked, ""
    for ending in (".weight", ".bias"):
        if asked.endswith(ending):
            stem, kind = asked.removesuffix(ending), ending
    if stem in OUTSIDE:
        yield OUTSIDE[stem] + kind
    if stem in ("lm_head", "logits") and kind:  # a tied output matrix is the token embedding
        yield f"embed.tokens{kind}"
    inside = BLOCK.match(stem)
    if inside:
        block, place = int(inside.group(1)), inside.group(2)
        if place in IN_BLOCK:
            yield f"blocks.{block}.{IN_BLOCK[place]}{kind}"
        if place == "mlp.hook_pre":  # a plain MLP has one map before its nonlinearity
            yield f"blocks.{block}.mlp.up"
        if place == "hook_resid_pre":
            yield from (f"blocks.{block - 1}.residual2", "embed.sum", "embed.tokens") if block else (
                "embed.sum", "embed.tokens",
            )  # fmt: skip


def _in_the_only_block(asked: str, names: set[str]) -> Iterable[str]:
    """With one block there is no need to say which."""
    if not any(name.startswith("blocks.1.") for name in names):
        yield f"blocks.0.{asked}"


def _parts(asked: str) -> list[str]:
    """Our names of what other models keep in one matrix."""
    inside = BLOCK.match(asked)
    if inside is None:
        return []
    ending = next((ending for ending in (".weight", ".bias") if asked.endswith(ending)), "")
    fused = FUSED.get(inside.group(2).removesuffix(ending), ())
    return [f"blocks.{inside.group(1)}.{name}{ending}" for name in fused]
