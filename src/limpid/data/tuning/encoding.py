"""Texts with what is learned of them, as tokens: a token is learned when it holds any character that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int32
from tokenizers import Encoding

from limpid.data.tokenizer import Tokenizer
from limpid.data.tuning.written import Written

Array = np.ndarray


@dataclass(frozen=True)
class Answer:
    """One answer as tokens, with the prompt before it."""

    tokens: Int32[Array, " token"]
    learned: Bool[Array, " token"]


def encoded(texts: Sequence[Written], tokenizer: Tokenizer, counts: Counter[str]) -> list[Answer]:
    """Tokens of each text, those before it and behind it included.

    Raises  DataError for a text that the tokenizer cannot encode
    """
    found: list[Answer | None] = [None] * len(texts)
    for spelled in (True, False):
        places = [place for place, one in enumerate(texts) if one.spelled is spelled]
        encodings = tokenizer.encode_with_places([texts[place].text for place in places], spelled)
        for place, encoding in zip(places, encodings, strict=True):
            found[place] = _answer(texts[place], encoding, tokenizer, counts)
    return [one for one in found if one is not None]


def _answer(written: Written, encoding: Encoding, tokenizer: Tokenizer, counts: Counter[str]) -> Answer:
    ids = encoding.ids
    learned = np.zeros(len(ids), bool)
    for begin, end in written.spans:
        first, last = _tokens(encoding, begin, end, len(written.text), counts)
        learned[first:last] = True
    before = [] if written.spelled else list(tokenizer.before_text)
    if not written.spelled and not before and tokenizer.start is not None and (not ids or learned[0]):
        before = [tokenizer.start]  # nothing comes before: a document begins, as for an empty prompt
    after = [] if written.end is None else [written.end]
    tokens = np.array([*before, *ids, *after], np.int32)
    learned = np.concatenate([np.zeros(len(before), bool), learned, np.ones(len(after), bool)])
    learned[:1] = False  # nothing predicts the first token
    return Answer(tokens, learned)


def _tokens(encoding: Encoding, begin: int, end: int, length: int, counts: Counter[str]) -> tuple[int, int]:
    """The tokens that hold any of the characters begin … end - 1, as a range; characters may be in no token."""
    first = next((token for place in range(begin, end) if (token := encoding.char_to_token(place)) is not None), None)
    if first is None:
        return 0, 0
    counts["straddling"] += _start(encoding, first) < begin
    after = next((token for place in range(end, length) if (token := encoding.char_to_token(place)) is not None), None)
    if after is None:
        return first, len(encoding.ids)
    straddles = _start(encoding, after) < end
    counts["straddling"] += straddles
    return first, after + straddles


def _start(encoding: Encoding, token: int) -> int:
    place = encoding.token_to_chars(token)
    assert place is not None, "every token has characters where no special token is added"
    return place[0]
