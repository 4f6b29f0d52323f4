"""Tokenizers: any text comes back, specials cannot be spelled, Hugging Face's libraries agree."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers

from limpid.data.new_tokenizer import byte_tokenizer, character_tokenizer, chosen_vocab_size, train_bpe
from limpid.data.panics import panics_unsaid
from limpid.data.tokenizer import END_OF_TEXT, Tokenizer
from limpid.errors import DataError

SAMPLE = "def café(x):\n\treturn '<|endoftext|>' + x  # naïve, 東京 ☃ 🦊\r\n" * 3
KINDS = {
    "bpe": train_bpe([SAMPLE, "the cat sat on the mat " * 20], 307),
    "bytes": byte_tokenizer(),
    "characters": character_tokenizer(set(SAMPLE)),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.parametrize("kind", ["bpe", "bytes"])
@given(text=st.text())
def test_any_text_comes_back(kind: str, text: str) -> None:
    assert KINDS[kind].decode(KINDS[kind].encode(text)) == text


@given(text=st.text(alphabet=sorted(set(SAMPLE))))
def test_any_text_of_known_characters_comes_back(text: str) -> None:
    tokenizer = KINDS["characters"]
    ids = tokenizer.encode(text)
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text


@every_kind
def test_a_text_that_spells_the_end_of_text_is_text(kind: str) -> None:
    tokenizer = KINDS[kind]
    ids = tokenizer.encode(f"a{END_OF_TEXT}n")
    assert tokenizer.end_of_text not in ids
    assert tokenizer.decode(ids) == f"a{END_OF_TEXT}n"


@every_kind
def test_end_of_text_is_the_last_id(kind: str) -> None:
    tokenizer = KINDS[kind]
    assert tokenizer.end_of_text == tokenizer.vocab_size - 1
    assert tokenizer.token_text(tokenizer.end_of_text) == END_OF_TEXT


@every_kind
def test_json_keeps_everything(kind: str) -> None:
    tokenizer = KINDS[kind]
    again = Tokenizer.from_json(tokenizer.to_json())
    assert again.encode(SAMPLE) == tokenizer.encode(SAMPLE)
    assert (again.vocab_size, again.end_of_text) == (tokenizer.vocab_size, tokenizer.end_of_text)
    assert again.to_json() == tokenizer.to_json()


@every_kind
def test_transformers_loads_it_with_equal_ids(kind: str, tmp_path: Path) -> None:
    import transformers

    (tmp_path / "tokenizer.json").write_text(KINDS[kind].to_json())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "split_special_tokens": True})
    )
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(theirs) == KINDS[kind].vocab_size
    for text in (SAMPLE, " a , n : r 't\r\n  x\t", ""):
        ids = theirs(text)["input_ids"]
        assert ids == KINDS[kind].encode(text)
        assert theirs.decode(ids) == text


def test_a_byte_is_its_own_id() -> None:
    assert byte_tokenizer().encode("é\n\0") == [0xC3, 0xA9, 0x0A, 0x00]
    assert byte_tokenizer().vocab_size == 257


def test_bpe_merges_what_is_frequent_and_knows_every_byte() -> None:
    tokenizer = KINDS["bpe"]
    assert tokenizer.vocab_size == 307
    assert len(tokenizer.encode(" the cat")) == 2
    assert {tokenizer.token_text(id) for id in tokenizer.encode("\xff")} == {"\\xc3", "\\xbf"}


def test_bpe_training_is_deterministic() -> None:
    texts = [SAMPLE, "the cat sat on the mat " * 20]
    assert train_bpe(texts, 307).to_json() == KINDS["bpe"].to_json()


def test_token_text_is_printable_and_unambiguous() -> None:
    tokenizer = byte_tokenizer()
    shown = [tokenizer.token_text(id) for id in range(256)]
    assert len(set(shown)) == 256
    assert all(text.isprintable() for text in shown)
    assert (shown[10], shown[92], shown[32], shown[65], shown[0xE2]) == ("\\n", "\\\\", " ", "A", "\\xe2")
    assert character_tokenizer("☃\t").token_text(1) == "☃"
    assert character_tokenizer("☃\t").token_text(0) == "\\t"
    assert tokenizer.token_text(999) == "<999>"


def test_an_unknown_character_is_named_with_its_position() -> None:
    with pytest.raises(DataError, match=r"'z' \(U\+007A\) at position 2 is not among the tokenizer's 2 characters"):
        character_tokenizer("ab").encode("abz")


@every_kind
def test_half_a_surrogate_pair_is_refused(kind: str) -> None:
    with pytest.raises(DataError, match=r"ud83e'.* at position 1"):
        KINDS[kind].encode("a\ud83e")


def test_a_tokenizer_from_elsewhere_may_neither_cut_nor_pad_nor_add(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    library = Library(models.WordLevel({"<s>": 0, "</s>": 5, "tick": 2, "tock": 3, "?": 4}, unk_token="?"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.decoder = decoders.Fuse()
    library.add_special_tokens(["<s>", "</s>"])
    library.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 5)])
    library.enable_truncation(3)
    library.enable_padding(length=11)
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    assert tokenizer.encode("tick tock tick tock tick") == [2, 3, 2, 3, 2]
    assert tokenizer.end_of_text == 5
    assert tokenizer.vocab_size == 6  # ids have a gap at 1, and the embedding needs a row for it


def test_what_is_no_tokenizer_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"version": 1}')
    (tmp_path / "latin.json").write_bytes(b"\xff\xfe")
    for name, reason in (
        ("broken.json", "is not a tokenizer"),
        ("latin.json", "cannot read tokenizer"),
        ("bpee", "there is no such file"),
        ("", "is a folder"),
    ):
        with pytest.raises(DataError, match=reason) as caught:
            Tokenizer.load(tmp_path / name)
        assert "\n" not in str(caught.value)
        assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize(
    ("corpus_bytes", "size"), [(1, 512), (10**5, 512), (1_115_394, 1024), (9_600_000, 2048), (10**12, 8192)]
)
def test_the_vocabulary_grows_as_the_square_root_of_the_corpus(corpus_bytes: int, size: int) -> None:
    assert chosen_vocab_size(corpus_bytes) == size


def in_json(**parts: object) -> str:
    """A tokenizer.json of two tokens, with these parts."""
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model, **parts})


def test_a_panic_in_rust_says_nothing_beside_our_line(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match=r"is not a tokenizer .*precompiled_charsmap"):
        Tokenizer.from_json(in_json(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}))
    panicking = Tokenizer.from_json(in_json(pre_tokenizer={"type": "FixedLength", "length": 0}))
    for encode in (panicking.encode, panicking.encode_with_sizes):
        with pytest.raises(DataError, match="fails on this text"):
            encode("ab")
    assert capfd.readouterr().err == ""


def test_what_is_written_to_standard_error_meanwhile_still_comes(capfd: pytest.CaptureFixture[str]) -> None:
    with panics_unsaid():
        os.write(2, b"a warning")
    assert capfd.readouterr().err == "a warning"
