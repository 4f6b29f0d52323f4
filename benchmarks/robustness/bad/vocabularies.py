"""Small tokenizers of the kinds that models come with, trained on a few sentences."""

import json
import random
from typing import Any

SENTENCE = "the river runs over stone and light falls on water while birds sing far above hills that nobody names"


def tokenizer_of(kind: str, rng: random.Random) -> Any:
    """A tokenizer of a kind, trained on a few sentences."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    texts = [
        " ".join(rng.choices(SENTENCE.split(), k=14)).capitalize() + ". Äpfel, 3 naïve cafés — 42!" for _ in range(60)
    ]
    size = rng.choice([290, 300, 317, 340])
    special = ["<unk>", "<s>", "</s>"]
    if kind == "metaspace":  # as Llama 2 and Mistral have it
        tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
        made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        made.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        made.train_from_iterator(
            texts, trainers.BpeTrainer(vocab_size=size + 60, special_tokens=tokens, show_progress=False)
        )
        document = json.loads(made.to_str())  # bytes are tokens of the model, not added ones
        document["added_tokens"] = [token for token in document["added_tokens"] if token["content"] in special]
        made = Tokenizer.from_str(json.dumps(document))
    elif kind == "words":
        made = Tokenizer(models.WordLevel(unk_token="<unk>"))
        made.pre_tokenizer = pre_tokenizers.Whitespace()
        made.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=special, show_progress=False))
    elif kind == "unigram":
        made = Tokenizer(models.Unigram())
        made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=120, special_tokens=special, unk_token="<unk>", show_progress=False
        )
        made.train_from_iterator(texts, trainer)
    else:
        special = ["<s>", "<|endoftext|>"]
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        if kind == "qwen":
            made.normalizer = normalizers.NFC()
            words = Regex(r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+")
            split = pre_tokenizers.Split(words, behavior="isolated")
            made.pre_tokenizer = pre_tokenizers.Sequence(
                [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
            )
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        made.train_from_iterator(
            texts,
            trainers.BpeTrainer(
                vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
            ),
        )
    if kind in ("bytes-start", "metaspace"):
        start = made.token_to_id("<s>")
        made.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", start)])
    return made
