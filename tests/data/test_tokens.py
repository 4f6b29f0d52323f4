"""Tokens: a split without overlap, every token led back to its document, tokenizers and what they refuse."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.data.corpora import CONTEXT, corpus, data, document

from limpid.data import token_files
from limpid.data.new_tokenizer import byte_tokenizer, character_tokenizer
from limpid.data.split import CorpusStats, Split, hash_uniform
from limpid.data.token_splits import Tokens
from limpid.data.tokens import prepare
from limpid.errors import DataError


def documents_of(tokens: Tokens, split: np.ndarray) -> list[str]:
    """The texts between ends of text."""
    ends = np.flatnonzero(split == tokens.tokenizer.end_of_text)
    assert ends[-1] == len(split) - 1
    starts = [0, *(ends[:-1] + 1)]
    return [tokens.tokenizer.decode(split[a:b].tolist()) for a, b in zip(starts, ends, strict=True)]


@pytest.mark.parametrize("tokenizer", ["bpe", "bytes", "characters"])
def test_every_document_is_in_one_split_whole_and_once(tokenizer: str, tmp_path: Path) -> None:
    folder = corpus(tmp_path / "text")
    tokens = prepare(data(folder, tokenizer=tokenizer, validation_fraction=0.2), CONTEXT, 3)
    train, held_out = documents_of(tokens, tokens.train), documents_of(tokens, tokens.validation)
    assert sorted(train + held_out) == sorted(file.read_text() for file in folder.iterdir())
    assert not set(train) & set(held_out)
    assert 3 <= len(held_out) <= 20
    assert tokens.validation_bytes == sum(len(text.encode()) for text in held_out)
    assert tokens.train.dtype == np.uint16


def test_another_seed_holds_out_other_documents(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "text")
    one, other = (prepare(data(folder), CONTEXT, seed) for seed in (1, 2))
    assert documents_of(one, one.validation) != documents_of(other, other.validation)
    assert one.fingerprint != other.fingerprint


@pytest.mark.parametrize("seed", range(7))
def test_two_documents_make_two_splits(seed: int, tmp_path: Path) -> None:
    tokens = prepare(data(corpus(tmp_path / "text", 2)), CONTEXT, seed)
    assert len(documents_of(tokens, tokens.train)) == len(documents_of(tokens, tokens.validation)) == 1


def test_the_end_of_a_single_document_is_held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limpid.data.formats.CHUNK_SIZE", 101)
    text = "".join(f"line {n}, naïve ☃\n" for n in range(211))
    (tmp_path / "a.txt").write_text(text)
    tokens = prepare(data(tmp_path / "a.txt", validation_fraction=0.3), CONTEXT, 0)
    (train,), (held_out,) = documents_of(tokens, tokens.train), documents_of(tokens, tokens.validation)
    assert train + held_out == text
    assert len(train) == int(0.7 * len(text))


def test_rows_lead_back_to_their_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_files, "AT_ONCE", 97)
    folder = corpus(tmp_path / "text", 11)
    lines = "".join(json.dumps({"text": f"line number {n}"}) + "\n\n" for n in range(31))
    (folder / "more.jsonl").write_text(lines)
    tokens = prepare(data(folder), CONTEXT, 5)
    start = 0
    for text in documents_of(tokens, tokens.train):
        (passage,) = tokens.passages(start, len(text.encode()) + 1)  # from its first byte to its end of text
        assert passage[1:] == (0, start, len(text.encode()) + 1)
        file, _, line = passage.document.removeprefix(f"{folder}/").partition(":")
        expected = json.loads(lines.split("\n")[int(line) - 1])["text"] if line else (folder / file).read_text()
        assert text == expected
        start += len(text.encode()) + 1
    with pytest.raises(DataError, match="outside the training split"):
        list(tokens.passages(start, 1))
    everything = list(tokens.passages(3, start - 5))
    assert [passage.start for passage in everything[1:]] == tokens.documents[1:, 0].tolist()
    assert everything[0].offset == 3
    assert sum(passage.tokens for passage in everything) == start - 5


def test_a_text_that_spells_the_end_of_text_ends_nothing(tmp_path: Path) -> None:
    for n in range(5):
        (tmp_path / f"{n}.txt").write_text(f"before <|endoftext|> after {n}")
    tokens = prepare(data(tmp_path / "*.txt", tokenizer="bpe"), 5, 0)
    assert len(documents_of(tokens, tokens.train)) + len(documents_of(tokens, tokens.validation)) == 5


def test_a_corpus_shorter_than_a_row_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 30)
    with pytest.raises(DataError, match=r"validation split has 4 tokens, expected at least 14 .*--validation-fraction"):
        prepare(data(tmp_path / "a.txt"), CONTEXT, 0)
    with pytest.raises(DataError, match="training split has 28 tokens, expected at least 42"):
        prepare(data(tmp_path / "a.txt"), 41, 0)
    (tmp_path / "b.txt").write_text("x")
    with pytest.raises(DataError, match="training split has 0 tokens"):
        prepare(data(tmp_path / "b.txt"), CONTEXT, 0)


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0\0")
    with pytest.raises(DataError, match="no text in "):
        prepare(data(tmp_path), CONTEXT, 0)


def test_half_a_surrogate_pair_names_its_document(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"text": "a\\ud83e"}')
    with pytest.raises(DataError, match=r"a\.jsonl:2 holds '.ud83e' at character 1"):
        prepare(data(tmp_path / "a.jsonl"), CONTEXT, 0)


def test_a_character_that_a_given_tokenizer_lacks_names_its_document(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(character_tokenizer(set("abc\n")).to_json())
    (tmp_path / "a.jsonl").write_text('{"text": "abc"}\n{"text": "abcd"}')
    with pytest.raises(DataError, match=r"a\.jsonl:2: character 'd' \(U\+0064\) at position 3"):
        prepare(data(tmp_path / "a.jsonl", tokenizer=str(tmp_path / "tokenizer.json")), CONTEXT, 0)


def test_a_given_tokenizer_is_used_and_belongs_to_the_fingerprint(tmp_path: Path) -> None:
    folder, file = corpus(tmp_path / "text"), tmp_path / "tokenizer.json"
    file.write_text(byte_tokenizer().to_json())
    given = prepare(data(folder, tokenizer=str(file)), CONTEXT, 0)
    assert given.train.tolist() == prepare(data(folder), CONTEXT, 0).train.tolist()
    characters = set("".join(entry.read_text() for entry in folder.iterdir()))
    file.write_text(character_tokenizer(characters).to_json())
    assert prepare(data(folder, tokenizer=str(file)), CONTEXT, 0).fingerprint != given.fingerprint
    with pytest.raises(DataError, match="tokenizer is 'bpee', and there is no such file"):
        prepare(data(folder, tokenizer="bpee"), CONTEXT, 0)


def test_a_tokenizer_that_loses_text_is_remarked_on(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    library = Tokenizer(models.WordLevel({"?": 0, "document": 1, "says": 2}, unk_token="?"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.save(str(tmp_path / "tokenizer.json"))
    tokens = prepare(data(corpus(tmp_path / "text"), tokenizer=str(tmp_path / "tokenizer.json")), 2, 0)
    assert "does not give every text back" in tokens.notes[0]
    assert "no end-of-text token" in tokens.notes[1]


def test_bpe_says_when_it_learned_from_a_part_or_found_too_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_files, "BPE_SAMPLE", 2000)
    tokens = prepare(data(corpus(tmp_path / "text"), tokenizer="bpe"), CONTEXT, 0)
    assert "BPE learned from" in tokens.notes[0]
    assert f"BPE stopped at {tokens.tokenizer.vocab_size} of 512 tokens" in tokens.notes[1]


def test_bpe_learns_from_training_documents_only(tmp_path: Path) -> None:
    texts = [f"{chr(0x3B1 + n)}{chr(0x3B1 + n)} " * 40 for n in range(20)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokens = prepare(data(tmp_path / "a.jsonl", tokenizer="bpe"), CONTEXT, 0)
    per_document = {text[0]: len(tokens.tokenizer.encode(text)) for text in texts}
    held_out = {text[0] for text in documents_of(tokens, tokens.validation)}
    assert held_out
    assert all((per_document[letter] > 100) == (letter in held_out) for letter in per_document)


def test_progress_is_told_and_reaches_its_end(tmp_path: Path) -> None:
    heard: dict[str, tuple[int, int | None]] = {}
    prepare(data(corpus(tmp_path / "text"), tokenizer="bpe"), CONTEXT, 0, lambda *now: heard.update({now[0]: now[1:]}))
    assert list(heard) == ["reading the text", "training the tokenizer", "tokenizing"]
    assert heard["tokenizing"][0] == heard["tokenizing"][1]


def test_draws_are_even_and_fixed() -> None:
    draws = [hash_uniform(7, n) for n in range(5003)]
    assert abs(np.mean(draws) - 0.5) < 0.02
    assert hash_uniform(7, 0) == pytest.approx(hash_uniform(7, 0), abs=0)
    assert hash_uniform(7, 1) != hash_uniform(71)


def test_the_split_of_a_document_does_not_depend_on_those_after_it() -> None:
    few, many = CorpusStats(3), CorpusStats(3)
    chunks = [document(f"document {n}") for n in range(300)]
    list(few.counted(chunks[:200]))
    list(many.counted(chunks))
    first = [held for held, _ in Split(3, 0.1, few).assign(chunks[:200])]
    assert first == [held for held, _ in Split(3, 0.1, many).assign(chunks)][:200]
    assert 8 <= sum(first) <= 35
