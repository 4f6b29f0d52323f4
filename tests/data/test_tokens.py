"""Tokens: a split without overlap, a cache keyed by content, every token led back to its document."""

import errno
import io
import json
import multiprocessing
import os
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from limpid.config import DataConfig
from limpid.data import tokenize
from limpid.data import tokens as module
from limpid.data.cache import Cache
from limpid.data.formats import Chunk
from limpid.data.split import CorpusStats, Split, hash_uniform
from limpid.data.tokenizer import byte_tokenizer, character_tokenizer
from limpid.data.tokens import Tokens, open_tokens, prepare
from limpid.errors import CheckpointError, DataError

CONTEXT = 13


def corpus(folder: Path, documents: int = 53) -> Path:
    """A folder of files that each say their number, with time stamps that have settled."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(documents):
        file = folder / f"{number:03d}.txt"
        file.write_text(f"document {number} says {number * number} and é ☃\n" * (1 + number % 5))
        os.utime(file, ns=(10**18 + number, 10**18 + number))
    return folder


def data(*paths: Path | str, tokenizer: str = "bytes", **options: object) -> DataConfig:
    return DataConfig(paths=tuple(map(str, paths)), tokenizer=tokenizer, **options)


def document(text: str) -> Chunk:
    return Chunk("a", 0, text, last=True)


def documents_of(tokens: Tokens, split: np.ndarray) -> list[str]:
    """The texts between ends of text."""
    ends = np.flatnonzero(split == tokens.tokenizer.end_of_text)
    assert ends[-1] == len(split) - 1
    starts = [0, *(ends[:-1] + 1)]
    return [tokens.tokenizer.decode(split[a:b].tolist()) for a, b in zip(starts, ends, strict=True)]


def document_at(tokens: Tokens, offset: int) -> str:
    return next(tokens.passages(offset, 1)).document


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
    monkeypatch.setattr(tokenize, "AT_ONCE", 97)
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


# ── the cache ──


def test_a_second_start_reads_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNSETTLED", 0)  # the system's own time stamps cannot be set back
    first = prepare(data(corpus(tmp_path / "text")), CONTEXT, 0)
    monkeypatch.setattr("limpid.data.documents.chunks_of", lambda *_: pytest.fail("the text was read again"))
    again = prepare(data(tmp_path / "text"), CONTEXT, 0)
    assert again.fingerprint == first.fingerprint
    assert np.array_equal(again.train, first.train)
    assert (again.notes, again.sources) == (first.notes, first.sources)


def test_the_fingerprint_follows_content_not_time_or_place(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "text")
    first = prepare(data(folder), CONTEXT, 0)
    os.utime(folder / "007.txt")
    assert prepare(data(folder), CONTEXT, 0).fingerprint == first.fingerprint
    corpus(tmp_path / "elsewhere")
    for _ in ("found by content", "found by time and size"):
        elsewhere = prepare(data(tmp_path / "elsewhere"), CONTEXT, 0)
        assert elsewhere.fingerprint == first.fingerprint
        assert document_at(elsewhere, 0).startswith(str(tmp_path / "elsewhere"))

    changed = (folder / "007.txt").read_bytes()
    (folder / "007.txt").write_bytes(changed.replace(b"d", b"D", 1))  # one byte, same size
    assert prepare(data(folder), CONTEXT, 0).fingerprint != first.fingerprint
    (folder / "007.txt").write_bytes(changed)
    assert prepare(data(folder), CONTEXT, 0).fingerprint == first.fingerprint


def test_where_documents_end_is_part_of_the_content() -> None:
    def digest(*texts: str) -> str:
        stats = CorpusStats(0)
        list(stats.counted(document(text) for text in texts))
        return stats.digest

    assert len({digest("ab", "c"), digest("a", "bc"), digest("abc"), digest("c", "ab")}) == 4


def test_every_setting_has_tokens_of_its_own(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "text")
    settings = [
        data(folder), data(folder, tokenizer="characters"), data(folder, tokenizer="bpe"),
        data(folder, tokenizer="bpe", tokenizer_vocab_size=271), data(folder, validation_fraction=0.5),
    ]  # fmt: skip
    found = [prepare(setting, CONTEXT, 0) for setting in settings]
    assert len({tokens.fingerprint for tokens in found}) == len(settings)
    assert found[3].tokenizer.vocab_size == 271


def test_a_file_that_just_changed_is_read_again(tmp_path: Path) -> None:
    """Two writes within one tick of the clock leave the same size and time: young files are not trusted."""
    file = tmp_path / "a.txt"
    file.write_text("one " * 100)
    now = time.time_ns()
    os.utime(file, ns=(now, now))
    first = prepare(data(file), CONTEXT, 0)
    file.write_text("two " * 100)
    os.utime(file, ns=(now, now))
    assert prepare(data(file), CONTEXT, 0).fingerprint != first.fingerprint


def test_a_file_replaced_by_one_of_the_same_size_and_time_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNSETTLED", 0)
    folder = corpus(tmp_path / "text")
    first = prepare(data(folder), CONTEXT, 0)
    file = folder / "007.txt"
    before, text = file.stat(), file.read_text()
    file.write_text(text.replace("says", "sais"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert prepare(data(folder), CONTEXT, 0).fingerprint != first.fingerprint


def test_text_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = corpus(tmp_path / "text")
    original = module.make_tokenizer

    def meddle(*arguments: object) -> object:
        (folder / "011.txt").write_text("something else altogether")
        return original(*arguments)

    monkeypatch.setattr(module, "make_tokenizer", meddle)
    with pytest.raises(DataError, match="changed while it was being read"):
        prepare(data(folder), CONTEXT, 0)
    assert not list(Cache().folder("x").parent.iterdir())


def cut(content: bytes) -> bytes:
    return content[:-11]


def other_ids(content: bytes) -> bytes:
    return bytes(len(content) // 2) + content[len(content) // 2 :]


@pytest.mark.parametrize(
    ("damaged", "change", "manifest"),
    [
        ("train.bin", other_ids, True),
        ("train.bin", cut, False),  # as made before there were manifests
        *((name, cut, True) for name in ("train.bin", "meta.json", "tokenizer.json", "documents.npy", "manifest.json")),
    ],
)
def test_a_damaged_cache_is_made_again_and_it_is_said(damaged: str, change, manifest: bool, tmp_path: Path) -> None:
    folder = corpus(tmp_path / "text")
    first = prepare(data(folder), CONTEXT, 0)
    expected = first.train[:].tolist()
    file = Cache().folder(first.fingerprint) / damaged
    file.write_bytes(change(file.read_bytes()))
    if not manifest:
        (file.parent / "manifest.json").unlink()
    again = prepare(data(folder), CONTEXT, 0)
    assert again.fingerprint == first.fingerprint
    assert again.train.tolist() == expected
    assert re.fullmatch(r"the tokens kept .* were not whole, and were made again \(.+\)", again.notes[-1])
    assert prepare(data(folder), CONTEXT, 0).notes == []
    assert [entry.name for entry in file.parent.parent.iterdir()] == [first.fingerprint]


def test_damaged_tokens_of_a_text_that_is_gone_are_named_and_kept(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "text")
    fingerprint = prepare(data(folder), CONTEXT, 0).fingerprint
    file = Cache().folder(fingerprint) / "train.bin"
    file.write_bytes(other_ids(file.read_bytes()))
    corpus(folder, 31)
    (folder / "001.txt").write_text("changed")
    for paths, error in ((folder, CheckpointError), ("-", DataError)):
        with pytest.raises(error, match=r"train\.bin is damaged: its SHA-256 is \w+…, and \w+… was written"):
            open_tokens(fingerprint, data(paths), CONTEXT, 0)
    assert file.is_file()


@pytest.mark.parametrize("refusal", [errno.EMFILE, errno.ENOMEM, errno.EACCES])
def test_a_passing_refusal_keeps_the_cache(refusal: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = corpus(tmp_path / "text")
    cached = Cache().folder(prepare(data(folder), CONTEXT, 0).fingerprint)
    before = {file.name: file.read_bytes() for file in cached.iterdir()}

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(refusal, os.strerror(refusal))

    with monkeypatch.context() as refused:
        refused.setattr(np, "memmap", refuse)
        with pytest.raises(DataError, match=os.strerror(refusal) + ".*kept"):
            prepare(data(folder), CONTEXT, 0)
    assert {file.name: file.read_bytes() for file in cached.iterdir()} == before
    assert prepare(data(folder), CONTEXT, 0).fingerprint == cached.name


def test_only_what_a_killed_process_left_is_removed_from_the_cache(tmp_path: Path) -> None:
    prepare(data(corpus(tmp_path / "text")), CONTEXT, 0)
    tokens = Cache().folder("x").parent
    left, mine = [f"new-{'0a' * 16}", f".new-{'0a' * 16}.writing"], ["new-ideas", ".new-ideas", "new-0a0a"]
    for name in left + mine:
        (tokens / name).mkdir()
        os.utime(tokens / name, (0, 0))
    prepare(data(corpus(tmp_path / "other", 31)), CONTEXT, 0)
    there = {entry.name for entry in tokens.iterdir()}
    assert not there & set(left)
    assert set(mine) <= there


def _prepare_in_a_process(folder: str, results: "multiprocessing.Queue[str]") -> None:
    results.put(prepare(data(folder, tokenizer="bpe"), CONTEXT, 0).fingerprint)


def test_two_processes_may_prepare_at_once(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "text", 211)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_prepare_in_a_process, args=(str(folder), results)) for _ in range(3)]
    for process in processes:
        process.start()
    fingerprints = {results.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()
    assert fingerprints == {prepare(data(folder, tokenizer="bpe"), CONTEXT, 0).fingerprint}
    assert [entry.name for entry in Cache().folder("x").parent.iterdir()] == list(fingerprints)


def test_what_a_killed_process_left_is_removed_after_a_day(tmp_path: Path) -> None:
    old, young = Cache().folder(f"new-{'a1' * 16}"), Cache().folder(f".new-{'b2' * 16}.writing")
    for folder in (old, young):
        folder.mkdir()
    os.utime(old, (1e9, 1e9))
    prepare(data(corpus(tmp_path / "text")), CONTEXT, 0)
    assert not old.exists()
    assert young.exists()


def test_a_cache_that_cannot_be_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("LIMPID_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot write to the cache .*file.*: set LIMPID_CACHE"):
        prepare(data(corpus(tmp_path / "text")), CONTEXT, 0)


# ── opening a run's tokens ──


def test_a_run_opens_its_tokens_without_its_text(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "text")
    first = prepare(data(folder), CONTEXT, 0)
    for file in folder.iterdir():
        file.unlink()
    again = open_tokens(first.fingerprint, data(folder), CONTEXT, 0)
    assert np.array_equal(again.train, first.train)
    assert document_at(again, 0) == document_at(first, 0)


def test_a_run_makes_its_tokens_again_when_the_cache_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = corpus(tmp_path / "text")
    first = prepare(data(folder, tokenizer="bpe"), CONTEXT, 0)
    monkeypatch.setenv("LIMPID_CACHE", str(tmp_path / "another"))
    again = open_tokens(first.fingerprint, data(folder, tokenizer="bpe"), CONTEXT, 0)
    assert again.train.tolist() == first.train.tolist()

    monkeypatch.setenv("LIMPID_CACHE", str(tmp_path / "third"))
    (folder / "003.txt").write_text("changed")
    with pytest.raises(CheckpointError, match="the run's data has changed"):
        open_tokens(first.fingerprint, data(folder, tokenizer="bpe"), CONTEXT, 0)


def test_standard_input_is_kept_for_resuming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"from standard input\n" * 53)))
    first = prepare(data("-"), CONTEXT, 0)
    assert document_at(first, 0) == "standard input"
    assert open_tokens(first.fingerprint, data("-"), CONTEXT, 0).train.tolist() == first.train.tolist()
    monkeypatch.setenv("LIMPID_CACHE", str(tmp_path / "another"))
    with pytest.raises(DataError, match="came from standard input, and its tokens are no longer"):
        open_tokens(first.fingerprint, data("-"), CONTEXT, 0)


# ── what cannot be tokenized, and what is said ──


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
    monkeypatch.setattr(tokenize, "BPE_SAMPLE", 2000)
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
