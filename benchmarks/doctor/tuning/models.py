"""Models to tune: a run of limpid that adds, and a chat model of transformers with its tokenizer."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch

import limpid
from limpid.config import DataConfig, ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.run import Run

MARKS = ("<|begin|>", "<|im_start|>", "<|im_end|>", "<|pad|>", "[OTHER]", "[/OTHER]")
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def adder(folder: Path, steps: int = 400) -> Run:
    """A byte-level model that has learned sums of two digits, each a text of its own."""
    numbers = random.Random(0)
    pairs = [(numbers.randrange(1, 50), numbers.randrange(1, 50)) for _ in range(6000)]
    records = [json.dumps({"text": f"{a}+{b}={a + b}"}) for a, b in pairs]
    (folder / "sums.jsonl").write_text("\n".join(records))
    config = TrainConfig(
        ModelConfig(context_length=48, d_model=48, num_layers=2, num_heads=4, d_ff=96),
        DataConfig(paths=(str(folder / "sums.jsonl"),), tokenizer="bytes"),
        UpdateConfig(learning_rate=3e-3, warmup_steps=20),
        RunConfig(
            max_steps=steps, batch_size=24, eval_steps=0, save_steps=0, precision="fp32", threads=1, doctor=False
        ),
    )
    return limpid.train(config, str(folder / "base"))


def sums(count: int, seed: int = 0, most: int = 50) -> list[tuple[int, int]]:
    """Pairs of numbers to add."""
    numbers = random.Random(seed)
    return [(numbers.randrange(1, most), numbers.randrange(1, most)) for _ in range(count)]


def chat_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    plain.add_special_tokens(list(MARKS))
    begin, _, end, pad, *_ = MARKS
    made = PreTrainedTokenizerFast(tokenizer_object=plain, bos_token=begin, eos_token=end, pad_token=pad)
    made.chat_template = TEMPLATE
    return made


def chat_model(tokenizer: Any, seed: int, dropout: float) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, attention_dropout=dropout,
    )  # fmt: skip
    return LlamaForCausalLM(config).train()
