"""Which tokens lie near which in the embedding: neighbours of a word, analogies of three."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from limpid.data.tokenizer import Tokenizer
from limpid.errors import ConfigError
from limpid.inspect.subject import the_token
from limpid.maths.foundations import analogy, neighbours
from limpid.model import Transformer

COUNT = 8
"""How many are named."""


@dataclass(frozen=True)
class Near:
    """The tokens that answer a question about words."""

    question: str
    answers: tuple[tuple[int, str, float], ...]  # token, its text, cosine


def near(model: Transformer, tokenizer: Tokenizer, words: tuple[str, ...]) -> Near | None:
    """One word: its neighbours. Three, a b c: what is to c as b is to a. None: nothing.

    Raises  ConfigError for another number of words, or a word that is several tokens
    """
    if not words:
        return None
    if len(words) not in (1, 3):
        raise ConfigError(
            f"--word is given {len(words)} times ({', '.join(map(repr, words))}), expected 1 (its neighbours) "
            "or 3 (a b c: what is to c as b is to a)"
        )
    tokens = [the_token(word, tokenizer, "--word") for word in words]
    for word, token in zip(words, tokens, strict=True):
        if token >= model.config.vocab_size:
            raise ConfigError(
                f"--word {word!r} is token {token}, outside the model's vocabulary of {model.config.vocab_size}: "
                "give another"
            )
    table = model.embed.tokens.weight.detach().to(torch.float64).numpy()
    if len(tokens) == 1:
        found = neighbours(np.asarray(table[tokens[0]]), table, COUNT, without=(tokens[0],))
        question = f"nearest to {words[0]!r}"
    else:
        found = analogy(table, *tokens, count=COUNT)
        question = f"what is to {words[2]!r} as {words[1]!r} is to {words[0]!r}"
    return Near(question, tuple((row, tokenizer.token_text(row), cosine) for row, cosine in found))
