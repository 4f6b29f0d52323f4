"""Word by word or whole: the same ids, whatever the text."""

import sys

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers, pre_tokenizers

from limpid.data import words as module
from limpid.data.new_tokenizer import byte_tokenizer, character_tokenizer, train_bpe
from limpid.data.words import Words, splits_at_words

PROSE = [
    "It's  a test, isn't it?\n\n  def f(x):\n\treturn x  # naïve ☃ 12 345\r\n",
    "words and words, they'll come again. " * 3,
]
BPE = train_bpe(PROSE * 9, 330)
SPACES = [
    "\t",
    "\n",
    "\x0b",
    "\r",
    "\x1c",
    "\x1f",
    " ",
    "\x85",
    "\xa0",
    "\u180e",
    "\u2007",
    "\u200b",
    "\u2028",
    "\u3000",
]


def by_words(*texts: str) -> list[list[int]]:
    return [ids.tolist() for ids in Words(BPE.encode_batch, np.dtype(np.uint16)).ids(texts)]


@given(st.lists(st.text(st.sampled_from([*SPACES, *"aé1'.s☃t中"]) | st.characters(exclude_categories=("Cs",)))))
def test_any_text_has_the_ids_of_the_whole(texts: list[str]) -> None:
    assert by_words(*texts, *PROSE) == BPE.encode_batch([*texts, *PROSE])


def test_every_character_that_could_be_white_space_is_judged_as_the_library_does() -> None:
    """Those that cannot be seen, in every place that white space can have."""
    characters = (chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000)
    unsure = [c for c in characters if c.isspace() or not (c.isalnum() or c.isprintable())]
    texts = [f"a{c}b a{c} b a {c}b,{c},{c}{c}a,{c}\n{c}" for c in unsure[:3000]]
    assert by_words(*texts) == BPE.encode_batch(texts)


def test_words_are_forgotten_before_they_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 10)
    words = Words(BPE.encode_batch, np.dtype(np.uint16))
    for number in range(30):
        text = f"number {number} " + "x" * 100 + PROSE[0]
        assert words.ids([text])[0].tolist() == BPE.encode(text)
        assert len(words._known) < 60
        assert all(len(word) <= module.LONGEST for word in words._known)


def test_only_tokenizers_of_this_form_are_taken_apart() -> None:
    def changed(**parts: object) -> tokenizers.Tokenizer:
        tokenizer = tokenizers.Tokenizer.from_str(BPE.to_json())
        for name, part in parts.items():
            setattr(tokenizer, name, part)
        return tokenizer

    assert splits_at_words(changed())
    assert BPE.splits_at_words
    prefixed = pre_tokenizers.ByteLevel(add_prefix_space=True)
    for other in (changed(normalizer=normalizers.NFC()), changed(pre_tokenizer=prefixed), changed(pre_tokenizer=None)):
        assert not splits_at_words(other)
    added = changed()
    added.add_tokens(["two words"])
    assert not splits_at_words(added)
    assert not any(other.splits_at_words for other in (byte_tokenizer(), character_tokenizer("abc")))
