"""The four architectures that every fault is tried on, and one way to reach inside each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.doctor.settings import Settings
from torch import Tensor, nn

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries, keys, values (row, head, position, feature) to what is mixed, in the same shape."""
ARCHITECTURES = ("limpid", "gpt2", "llama", "plain")
ROTARY = ("limpid", "llama", "plain")
BASE = 10_000.0


def build(architecture: str, settings: Settings, seed: int) -> nn.Module:
    """A fresh model as its library makes it, a function of the seed alone."""
    torch.manual_seed(seed)
    model = {"limpid": limpid, "gpt2": gpt2, "llama": llama, "plain": Plain}[architecture](settings)
    return model.to(settings.storage).train()


def limpid(settings: Settings) -> nn.Module:
    from limpid.config import ModelConfig
    from limpid.model import Transformer, initialise

    config = ModelConfig(
        vocab_size=settings.vocab, d_model=settings.width, num_layers=settings.blocks, num_heads=settings.heads,
        num_kv_heads=settings.key_heads, context_length=settings.positions, tied=settings.tied,
        dropout=settings.dropout,
    )  # fmt: skip
    return initialise(Transformer(config, settings.storage), int(torch.randint(2**31, ())))


def gpt2(settings: Settings) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=settings.vocab, n_embd=settings.width, n_layer=settings.blocks, n_head=settings.heads,
        n_positions=settings.positions, resid_pdrop=settings.dropout, embd_pdrop=settings.dropout,
        attn_pdrop=settings.dropout, tie_word_embeddings=settings.tied, bos_token_id=None, eos_token_id=None,
        use_cache=False,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def llama(settings: Settings) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=settings.vocab, hidden_size=settings.width, intermediate_size=settings.width * 8 // 3,
        num_hidden_layers=settings.blocks, num_attention_heads=settings.heads,
        num_key_value_heads=settings.key_heads, max_position_embeddings=settings.positions,
        attention_dropout=settings.dropout, tie_word_embeddings=settings.tied, bos_token_id=None, eos_token_id=None,
        use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config)


class Attention(nn.Module):
    """Causal self-attention as many write it: one matrix for queries, keys and values."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.heads, self.rotary = settings.heads, settings.rotary
        self.c_attn = nn.Linear(settings.width, 3 * settings.width)
        self.c_proj = nn.Linear(settings.width, settings.width)
        self.dropout = nn.Dropout(settings.dropout)
        self.attend: Attend = causal

    def forward(self, x: Tensor) -> Tensor:
        heads = (*x.shape[:2], self.heads, -1)
        query, key, value = (part.view(heads).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=-1))
        if self.rotary:
            query, key = turn(query), turn(key)
        return self.dropout(self.c_proj(self.attend(query, key, value).transpose(1, 2).flatten(-2)))


class Mlp(nn.Module):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.c_fc = nn.Linear(settings.width, 4 * settings.width)
        self.c_proj = nn.Linear(4 * settings.width, settings.width)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(F.gelu(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(settings.width), Attention(settings)
        self.ln_2, self.mlp = nn.LayerNorm(settings.width), Mlp(settings)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Plain(nn.Module):
    """A decoder in the manner of nanoGPT: learned positions (or rotary ones), GELU, layer norms, N(0, 0.02)."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.wte = nn.Embedding(settings.vocab, settings.width)
        self.wpe = None if settings.rotary else nn.Embedding(settings.positions, settings.width)
        self.drop = nn.Dropout(settings.dropout)
        self.h = nn.ModuleList(Block(settings) for _ in range(settings.blocks))
        self.ln_f = nn.LayerNorm(settings.width)
        self.lm_head = nn.Linear(settings.width, settings.vocab, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2:
                std = 0.02 / math.sqrt(2 * settings.blocks) if name.endswith("c_proj.weight") else 0.02
                nn.init.normal_(parameter, std=std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        if settings.tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens)
        if self.wpe is not None:
            x = x + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        x = self.drop(x)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def turn(x: Tensor, *, back: bool = False, interleaved: bool = False) -> Tensor:
    """Rotary positions (Su et al. 2021, arXiv:2104.09864) of (row, head, position, feature), or undo them."""
    features = torch.arange(0, x.shape[-1], 2, dtype=torch.float32, device=x.device)
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * BASE ** (-features / x.shape[-1])
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype) * (-1 if back else 1)
    if interleaved:
        first, second = x[..., 0::2], x[..., 1::2]
        return torch.stack((first * cos - second * sin, second * cos + first * sin), -1).flatten(-2)
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


@dataclass(frozen=True)
class Anatomy:
    """Where the parts of a transformer are, whatever its author called them."""

    embedding: nn.Module
    blocks: list[nn.Module]
    attentions: list[nn.Module]
    mlps: list[nn.Module]
    final_norm: nn.Module
    head: nn.Module | None
    head_place: tuple[nn.Module, str]
    query_key: list[list[tuple[nn.Parameter, Any]]]  # per block: parameter and the part of it that makes q or k

    def of_blocks(self) -> Iterator[nn.Parameter]:
        return (parameter for block in self.blocks for parameter in block.parameters())


def anatomy(model: nn.Module) -> Anatomy:
    name, part = type(model).__name__, model.get_submodule
    if name == "Transformer":
        blocks = list(part("blocks"))
        return Anatomy(
            part("embed.tokens"), blocks, [b.attention for b in blocks], [b.mlp for b in blocks], part("final_norm"),
            model.logits, (model, "logits"),
            [[(b.attention.query.weight, ...), (b.attention.key.weight, ...)] for b in blocks],
        )  # fmt: skip
    if name == "LlamaForCausalLM":
        blocks = list(part("model.layers"))
        return Anatomy(
            part("model.embed_tokens"), blocks, [b.self_attn for b in blocks], [b.mlp for b in blocks],
            part("model.norm"), part("lm_head"), (model, "lm_head"),
            [[(b.self_attn.q_proj.weight, ...), (b.self_attn.k_proj.weight, ...)] for b in blocks],
        )  # fmt: skip
    inside = "" if name == "Plain" else "transformer."
    blocks = list(part(f"{inside}h"))
    width = part(f"{inside}ln_f").weight.shape[0]
    columns = (slice(None), slice(2 * width)) if inside else (slice(2 * width),)  # Conv1D keeps (in, out)
    return Anatomy(
        part(f"{inside}wte"), blocks, [b.attn for b in blocks], [b.mlp for b in blocks], part(f"{inside}ln_f"),
        part("lm_head"), (model, "lm_head"), [[(b.attn.c_attn.weight, columns)] for b in blocks],
    )  # fmt: skip


def set_attention(model: nn.Module, attend: Attend, blocks: list[int] | None = None) -> None:
    """Let the attention of these blocks (all of them) mix values by `attend`."""
    chosen = anatomy(model).attentions
    for module in chosen if blocks is None else [chosen[i] for i in blocks]:
        if type(model).__name__ == "Transformer":
            module.forward = MethodType(limpid_forward, module)
        module.attend = attend
    if hasattr(model, "generate"):  # transformers: its registry of attention functions is made for this
        from transformers import AttentionInterface

        AttentionInterface.register("benchmark", transformers_attention)
        model.config._attn_implementation = "benchmark"


def limpid_forward(self: Any, x: Tensor, angles: Any, *_: Any) -> Tensor:
    """limpid's attention with an exchangeable middle."""
    from limpid.model.embedding import rotate

    query, key, value = (
        part(x).unflatten(-1, (-1, self.config.sizes.d_head)) for part in (self.query, self.key, self.value)
    )
    query, key = (rotate(part, angles, self.config.rotary_layout).transpose(1, 2) for part in (query, key))
    mixed = self.attend(query, repeat(key, query), repeat(value.transpose(1, 2), query))
    return self.output(mixed.transpose(1, 2).flatten(-2))


def transformers_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **_: Any
) -> tuple[Tensor, None]:
    attend = getattr(module, "attend", causal)
    return attend(query, repeat(key, query), repeat(value, query)).transpose(1, 2), None


def repeat(part: Tensor, query: Tensor) -> Tensor:
    """Shared key heads, once for each query head."""
    return part.repeat_interleave(query.shape[1] // part.shape[1], dim=1)
