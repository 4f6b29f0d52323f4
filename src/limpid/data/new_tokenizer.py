"""Tokenizers made here: learned from texts, or a token for each byte or character."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from limpid.data.token_spelling import BYTES
from limpid.data.tokenizer import END_OF_TEXT, Tokenizer


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level byte-pair encoding: 256 bytes, then the most frequent pairs of `texts`, then end of text.

    Departs  from Radford et al. 2019 nowhere but in size; pairs that occur once are not merged
    """
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1, min_frequency=2, show_progress=False, initial_alphabet=list(BYTES)
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _with_end_of_text(tokenizer)


def merges(words: Mapping[str, int], count: int) -> list[tuple[str, str, int]]:
    """The first merges of byte-pair encoding on words that occur so often: both halves, and how often they met.

    Source: Sennrich et al. 2016, algorithm 1, arXiv:1508.07909
    """
    alphabet = sorted({character for word in words for character in word})
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(vocab_size=len(alphabet) + count, show_progress=False)
    trained.train_from_iterator((word for word, times in words.items() for _ in range(times)), trainer)
    pairs = [tuple(pair) for pair in json.loads(trained.to_str())["model"]["merges"]][:count]
    found = []
    for number, (first, second) in enumerate(pairs):
        vocabulary = alphabet + [a + b for a, b in pairs[:number]]
        so_far = tokenizers.Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(vocabulary)}, merges=pairs[:number]))
        met = 0
        for word, times in words.items():
            tokens = so_far.encode(word).tokens
            met += times * sum(pair == (first, second) for pair in itertools.pairwise(tokens))
        found.append((first, second, met))
    return found


def byte_tokenizer() -> Tokenizer:
    """One token per byte of UTF-8, its id the byte; 256 ends a text."""
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=BYTES, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _with_end_of_text(tokenizer)


def character_tokenizer(characters: Iterable[str]) -> Tokenizer:
    """One token per character, in the order of their code points; end of text comes last."""
    vocabulary = {character: id for id, character in enumerate(sorted(characters))}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    return _with_end_of_text(tokenizer)


def chosen_vocab_size(corpus_bytes: int) -> int:
    """Vocabulary for a corpus of so many bytes, tokens: the power of two below their square root, 512 to 8192.

    The number of different words grows about as the square root of a text (Heaps' law). On the default corpus,
    9.6 MB, the rule gives 2048 tokens of 3.2 bytes; 4096 would shorten the text by a tenth and double the embedding.
    """
    return min(8192, max(512, 1 << (corpus_bytes.bit_length() - 1) // 2))


def _with_end_of_text(tokenizer: tokenizers.Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([END_OF_TEXT])
    return Tokenizer(tokenizer)
