"""Kept tokens: found again by their content, made again where they are damaged, and nobody else's is touched."""

import errno
import io
import multiprocessing
import os
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.data.corpora import CONTEXT, corpus, data, document

from limpid.data import tokens as module
from limpid.data.cache import Cache
from limpid.data.split import CorpusStats
from limpid.data.token_splits import Tokens
from limpid.data.tokens import open_tokens, prepare
from limpid.errors import CheckpointError, DataError


def document_at(tokens: Tokens, offset: int) -> str:
    return next(tokens.passages(offset, 1)).document


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
