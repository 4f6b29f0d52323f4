"""Small models of several families in folders, compared."""

import dataclasses
from pathlib import Path

from recorded import SMALL, VARIANTS
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from limpid.comparison.run import run
from limpid.comparison.variant import batch_for, parse_variant
from limpid.comparison.verdict import judge
from limpid.config import ModelConfig
from limpid.model import Transformer, initialise
from limpid.model.export import save_folder

LLAMA = {
    "vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "initializer_range": 0.2,
}  # fmt: skip


PUBLISHED = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**LLAMA, head_dim=8)),
    "gpt-2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=61, n_positions=32, n_embd=24, n_layer=2, n_head=6, initializer_range=0.2)
    ),
}


def compared(first: str, second: str, *, backward: bool = True):
    variants = parse_variant(first), parse_variant(second)
    tokens, targets = batch_for(variants, None)
    observed = [run(one, tokens, targets, backward=backward) for one in variants]
    return judge(variants[0].config, observed[0], observed[1], variants[1].config)


def a_folder(path: Path, variant: str, **changes: object) -> Path:
    config = dataclasses.replace(ModelConfig(**(SMALL | VARIANTS[variant])), dropout=0.0, **changes)
    model = initialise(Transformer(config), 3)
    save_folder(path, config, model.state_dict(), tokenizer_json=None, end_of_text=None)
    return path
