"""Texts to ids word by word, each word encoded once: the ids that the whole text has, sooner."""

from __future__ import annotations

import itertools
import json
import re
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tokenizers
from jaxtyping import Integer

Array = np.ndarray
Encode = Callable[[Sequence[str]], list[list[int]]]

SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""White_Space of Unicode, as the tokenizers library's patterns have it; Python's \\s holds four more."""
WORD = re.compile(f"[{SPACE}]*[^{SPACE}]+|[{SPACE}]+")
"""No piece of GPT-2's pattern has white space after something else: one begins wherever a word of these does."""
REMEMBERED = 1 << 18
"""Words that are kept at most."""
LONGEST = 48
"""Characters of a word that is kept: longer ones seldom come again."""


class Words:
    """What a byte-level vocabulary makes of words, kept from text to text."""

    def __init__(self, encode: Encode, dtype: np.dtype[Any]) -> None:
        self.encode, self.dtype = encode, dtype
        self._known: dict[str, bytes] = {}  # ids as they lie in a file

    def ids(self, texts: Sequence[str]) -> list[Integer[Array, " token"]]:
        """Ids of each text."""
        words = [WORD.findall(text) for text in texts]
        if len(self._known) > REMEMBERED:
            self._known.clear()
        known = self._known
        new = list(set(itertools.chain.from_iterable(words)).difference(known))
        known.update(zip(new, (array(self.dtype.char, ids).tobytes() for ids in self.encode(new)), strict=True))
        joined = (b"".join(map(known.__getitem__, text)) for text in words)
        found = [np.frombuffer(ids, self.dtype) for ids in joined]
        for word in new:
            if len(word) > LONGEST:
                del known[word]
        return found


def splits_at_words(tokenizer: tokenizers.Tokenizer) -> bool:
    """Whether words can be encoded by themselves: byte-level BPE by GPT-2's pattern, and nothing before or beside."""
    form = json.loads(tokenizer.to_str())
    before = form["pre_tokenizer"] or {}
    return (
        form["model"]["type"] == "BPE"
        and not form["model"].get("dropout")
        and form["normalizer"] is None
        and (before.get("type"), before.get("use_regex"), before.get("add_prefix_space")) == ("ByteLevel", True, False)
        and all(token["special"] for token in form["added_tokens"])
    )
