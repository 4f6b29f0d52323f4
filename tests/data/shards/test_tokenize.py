"""A corpus tokenized once: the same batches as from its text, whatever breaks off in between."""

import bz2
import gzip
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from tests.data.corpora import CONTEXT, corpus, data

from limpid.config import DataConfig
from limpid.data.batches import Batches, Region, validation_batches
from limpid.data.new_tokenizer import byte_tokenizer, train_bpe
from limpid.data.shards import make, workers
from limpid.data.shards.make import tokenize
from limpid.data.shards.shard import Shard
from limpid.data.token_splits import Tokens
from limpid.data.tokens import open_tokens, prepare
from limpid.errors import CheckpointError, DataError, LimpidError


def various(folder: Path) -> list[str]:
    """Files of every kind that is read, some of them twice in name and text."""
    corpus(folder / "plain", 23)
    (folder / "plain/again").mkdir()
    (folder / "plain/again/003.txt").write_text((folder / "plain/003.txt").read_text())
    (folder / "plain/picture.png").write_bytes(b"\x89PNG\0")
    (folder / "plain/empty.txt").write_bytes(b"")
    lines = "".join(json.dumps({"text": f"line {n} ☃" * (n % 4)}) + "\n" for n in range(19))  # every fourth is empty
    for ending, pack in ((".gz", gzip.compress), (".zst", zstandard.compress), (".bz2", bz2.compress)):
        (folder / f"lines.jsonl{ending}").write_bytes(pack(lines.replace("line", ending).encode()))
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": ["one 🦊", "two\r\n", "three"], "id": [1, 2, 3]}), folder / "t.parquet")
    return [str(folder / "plain"), *(str(folder / f"lines.jsonl{one}") for one in (".gz", ".zst", ".bz2")),
            str(folder / "t.parquet")]  # fmt: skip


def same(one: Tokens, other: Tokens) -> bool:
    """Whether two readings lead to the same batches, and to the same documents."""
    return (
        np.array_equal(one.train[:], other.train[:])
        and np.array_equal(one.validation[:], other.validation[:])
        and np.array_equal(one.documents, other.documents)
        and (one.sources, one.counts, one.paths) == (other.sources, other.counts, other.paths)
    )


@pytest.mark.parametrize("tokenizer", ["bpe", "bytes", "characters", "file"])
def test_training_reads_what_it_would_read_of_the_text(tokenizer: str, tmp_path: Path) -> None:
    paths = various(tmp_path / "text")
    if tokenizer == "file":
        tokenizer = str(tmp_path / "tokenizer.json")
        Path(tokenizer).write_text(train_bpe(["another text, another tokenizer"], 300).to_json())
    made = tokenize(paths, tmp_path / "tokens", tokenizer=tokenizer, processes=1)
    text = prepare(data(*paths, tokenizer=tokenizer), CONTEXT, 0)
    tokens = prepare(data(tmp_path / "tokens", tokenizer="bpe"), CONTEXT, 0)
    assert tokens.tokenizer.to_json() == text.tokenizer.to_json()
    named = [name for name in tokens.sources if not name.endswith((".png", "empty.txt"))]
    assert named == text.sources
    assert [tokens.sources[n] for n in tokens.documents[:, 1]] == [text.sources[n] for n in text.documents[:, 1]]
    assert np.array_equal(tokens.train[:], text.train)
    assert np.array_equal(tokens.validation[:], text.validation)
    assert tokens.counts == text.counts
    assert (made.documents, made.tokens) == (sum(n for n, _, _ in text.counts), len(text.train) + len(text.validation))
    assert made.inputs == 24 + 2 + 4  # the picture and the empty file were looked at
    assert any("not UTF-8 text" in note for note in made.notes)
    for step in (1, 9):
        ours, theirs = (Batches(one.train, CONTEXT, 3, 2, 0).batch(step) for one in (tokens, text))
        for one, other in zip(ours, theirs, strict=True):
            assert all(np.array_equal(one[name], other[name]) for name in ("tokens", "targets"))
    ours, theirs = (validation_batches(one.validation, CONTEXT, 2, 5) for one in (tokens, text))
    assert all(np.array_equal(a["tokens"], b["tokens"]) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("options", [{}, {"weights": (3.0, 1.0)}, {"validation_fraction": 0.4}], ids=str)
def test_several_folders_are_divided_as_several_texts_are(options: dict, tmp_path: Path) -> None:
    one, other = corpus(tmp_path / "one", 31), corpus(tmp_path / "other", 17)
    for folder in (one, other):
        tokenize(str(folder), tmp_path / f"{folder.name}-tokens", tokenizer="bytes", processes=1)
    tokens = prepare(DataConfig(paths=(f"{one}-tokens", f"{other}-tokens"), **options), CONTEXT, 7)
    assert same(tokens, prepare(data(one, other, **options), CONTEXT, 7)) or not options
    if not options:  # text whose paths need no parts of their own is not counted by path
        text = prepare(data(one, other), CONTEXT, 7)
        assert np.array_equal(tokens.train[:], text.train)


def test_paths_to_validate_on_are_held_out_whole(tmp_path: Path) -> None:
    one, other = corpus(tmp_path / "one", 31), corpus(tmp_path / "other", 17)  # the first 17 of both are the same
    for folder in (one, other):
        tokenize(str(folder), tmp_path / f"{folder.name}-tokens", tokenizer="bytes", processes=1)
    tokens = prepare(DataConfig(paths=(f"{one}-tokens",), validation=(f"{other}-tokens",)), CONTEXT, 7)
    text = prepare(data(one, validation=(str(other),)), CONTEXT, 7)
    assert same(tokens, text)
    assert tokens.notes == text.notes
    assert "left out because they stand in the text to validate on too: 17" in tokens.notes[0]


def test_the_end_of_a_single_document_is_held_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat sees the tree\n" * 40)
    tokenize(str(tmp_path / "a.txt"), tmp_path / "tokens", tokenizer="bytes")
    tokens = prepare(DataConfig(paths=(str(tmp_path / "tokens"),), validation_fraction=0.3), CONTEXT, 0)
    assert same(tokens, prepare(data(tmp_path / "a.txt", validation_fraction=0.3), CONTEXT, 0))  # a character is a byte


def test_documents_on_a_list_are_left_out_of_text_and_of_shards_alike(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "text", 31)
    (folder / "lines.jsonl").write_text("".join(json.dumps({"text": f"line {n}"}) + "\n" for n in range(9)))
    gone = [str(folder / "004.txt"), f"{folder / 'lines.jsonl'}:3", str(folder / "nowhere.txt")]
    (tmp_path / "list").write_text("".join(json.dumps({"document": one}) + "\n" for one in gone))
    leave_out = str(tmp_path / "list")
    text = prepare(data(folder, leave_out=leave_out), CONTEXT, 0)
    everything = prepare(data(folder), CONTEXT, 0)
    assert sum(everything.counts[n].documents - text.counts[n].documents for n in (0, 1)) == 2
    assert any("2 of 3 listed" in note for note in text.notes)
    tokenize(str(folder), tmp_path / "without", tokenizer="bytes", leave_out=leave_out)
    tokenize(str(folder), tmp_path / "with", tokenizer="bytes")
    for tokens in (
        prepare(DataConfig(paths=(str(tmp_path / "without"),)), CONTEXT, 0),
        prepare(DataConfig(paths=(str(tmp_path / "with"),), leave_out=leave_out), CONTEXT, 0),
    ):
        assert np.array_equal(tokens.train[:], text.train)
        assert np.array_equal(tokens.validation[:], text.validation)
    (tmp_path / "list").write_text('{"file": 3}\n')
    with pytest.raises(DataError, match=r"list:1 names no document"):
        prepare(data(folder, leave_out=leave_out), CONTEXT, 0)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != ".limpid-lock"}


def in_single_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "SMALL", 0)


@pytest.mark.parametrize("point", range(0, 40, 6))
def test_a_run_that_was_broken_off_anywhere_goes_on_to_the_same_files(
    point: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_single_files(monkeypatch)
    folder = corpus(tmp_path / "text", 5)
    tokenize(str(folder), tmp_path / "whole", processes=1)
    happened, replace, fsync = 0, Path.replace, os.fsync

    def counted(act: Callable) -> Callable:
        def call(*args: Any) -> Any:
            nonlocal happened
            happened += 1
            if happened > point:  # as a kill: nothing is cleaned up
                raise Killed
            return act(*args)

        return call

    class Killed(BaseException):
        pass

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", counted(replace))
        patch.setattr(os, "fsync", counted(fsync))
        patch.setattr("limpid.files._remove", lambda path: None)
        with pytest.raises(Killed):
            tokenize(str(folder), tmp_path / "tokens", processes=1)
    with pytest.raises(LimpidError):
        prepare(DataConfig(paths=(str(tmp_path / "tokens"),)), CONTEXT, 0)
    tokenize(str(folder), tmp_path / "tokens", processes=1)
    assert contents(tmp_path / "tokens") == contents(tmp_path / "whole")


def test_what_is_there_is_kept_and_what_changed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_single_files(monkeypatch)
    folder, out = corpus(tmp_path / "text", 4), tmp_path / "tokens"
    (folder / "000.jsonl").write_text('{"text": "gone soon"}')
    first = tokenize(str(folder), out, tokenizer="bytes", processes=1)
    (out / "notes.md").write_text("mine")
    (folder / "000.jsonl").unlink()
    (folder / "002.txt").write_text("changed since")
    os.utime(folder / "001.txt", ns=(1, 1))  # touched, and the same
    again = tokenize(str(folder), out, tokenizer="bytes", processes=1)
    assert (first.shards, first.kept, again.shards, again.kept) == (5, 0, 4, 3)
    tokenize(str(folder), tmp_path / "fresh", tokenizer="bytes", processes=1)
    shards = {name for name in contents(out) if name.endswith((".tokens", ".documents"))}
    assert shards == {name for name in contents(tmp_path / "fresh") if name.endswith((".tokens", ".documents"))}
    assert (out / "notes.md").read_text() == "mine"
    assert tokenize(str(folder), out, tokenizer="bytes", processes=1).kept == 4


def test_a_file_added_among_small_ones_changes_their_shard_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make, "SMALL", 200)
    folder = corpus(tmp_path / "text", 30)
    first = tokenize(str(folder), tmp_path / "tokens", tokenizer="bytes", processes=1)
    assert 8 < first.shards < 30
    (folder / "0145.txt").write_text("between two others")
    again = tokenize(str(folder), tmp_path / "tokens", tokenizer="bytes", processes=1)
    assert again.kept >= first.shards - 1
    ours = prepare(DataConfig(paths=(str(tmp_path / "tokens"),)), CONTEXT, 0)
    assert same(ours, prepare(data(folder), CONTEXT, 0))


def test_several_processes_write_what_one_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_single_files(monkeypatch)
    folder, heard = corpus(tmp_path / "text", 6), []
    made = [tokenize(str(folder), tmp_path / str(count), tokenizer="bytes", processes=count) for count in (1, 2)]
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    assert made[0].tokens == made[1].tokens
    (folder / "bad.jsonl").write_text('{"text": "a"}\n{')
    with pytest.raises(DataError, match=r"bad\.jsonl:2 is not JSON"):
        tokenize([str(folder / "bad.jsonl"), str(folder)], tmp_path / "2", tokenizer="bytes", processes=2)
    list(workers.work(make._named, [], 2, heard.append))


def ended(job: int, advance: Callable[[int], None]) -> int:
    if job == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return job


def test_a_process_that_the_system_ends_is_one_line() -> None:
    with pytest.raises(DataError, match=r"was ended by the system \(exit code -9\).*fewer --processes"):
        list(workers.work(ended, [0, 1, 2], 2, lambda more: None))


def changed_bit(file: Path, place: int = -3) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    state = file.stat()
    file.write_bytes(content)
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda shard: shard.file(".tokens").unlink(), r"\.tokens is missing: run limpid data tokenize"),
        (lambda shard: shard.file(".documents").unlink(), r"\.documents is missing"),
        (lambda shard: shard.file(".json").unlink(), r"\.json is missing"),
        (lambda shard: changed_bit(shard.file(".tokens")), r"\.tokens is damaged: its SHA-256 is another"),
        (lambda shard: changed_bit(shard.file(".documents")), r"\.documents is damaged"),
        (lambda shard: shard.file(".tokens").write_bytes(b"12"), r"\.tokens has 2 bytes, and [\d,]+ were written"),
        (lambda shard: shard.file(".json").write_text("[1]"), r"\.json is damaged"),
        (lambda shard: changed_bit(shard.file(".json"), 200), r"\.json is (damaged|not the sidecar)"),
        (lambda shard: changed_bit(shard.folder / "tokenizer.json", 50), "is not the tokenizer that made the tokens"),
        (lambda shard: (shard.folder / "tokenizer.json").unlink(), r"cannot read .*tokenizer\.json"),
        (lambda shard: (shard.folder / "tokens.json").write_text("{}"), r"tokens\.json is no list of tokens"),
    ],
    ids=["no-tokens", "no-documents", "no-sidecar", "tokens", "documents", "cut", "sidecar", "sidecar-bit",
         "tokenizer", "no-tokenizer", "list"],
)  # fmt: skip
def test_what_is_missing_or_damaged_is_named_in_one_line_and_made_again(
    harm: Callable[[Shard], None], said: str, tmp_path: Path
) -> None:
    folder, out = corpus(tmp_path / "text"), tmp_path / "tokens"
    tokenize(str(folder), out, tokenizer="bytes")
    asked = DataConfig(paths=(str(out),))
    before = prepare(asked, CONTEXT, 0)
    (sidecar,) = out.glob("*-*.json")
    harm(Shard(out, sidecar.stem))
    with pytest.raises(DataError, match=said) as caught:
        prepare(asked, CONTEXT, 0)
    assert "\n" not in str(caught.value)
    if "tokenizer" not in said.partition("run")[0] and "list" not in said:
        tokenize(str(folder), out, tokenizer="bytes")
        assert open_tokens(before.fingerprint, asked, CONTEXT, 0).fingerprint == before.fingerprint


def test_what_does_not_go_together_is_refused_in_one_line(tmp_path: Path) -> None:
    folder, out = corpus(tmp_path / "text"), tmp_path / "tokens"
    tokenize(str(folder), out, tokenizer="bytes")
    tokenize(str(folder), tmp_path / "bpe", tokenizer="bpe", tokenizer_vocab_size=300)
    (tmp_path / "t.json").write_text(byte_tokenizer().to_json())
    for paths, options, said in (
        ((out, folder), {}, "holds tokens and .* holds text: tokenize both"),
        ((out, tmp_path / "bpe"), {}, "was tokenized with another tokenizer than"),
        ((tmp_path / "bpe",), {"tokenizer": str(tmp_path / "t.json")}, "was tokenized with its own tokenizer"),
        ((out,), {"tokenizer": "characters"}, "was tokenized with its own tokenizer of 257 tokens"),
    ):
        with pytest.raises(DataError, match=said):
            prepare(DataConfig(paths=tuple(map(str, paths)), **options), CONTEXT, 0)
    for words, said in (
        ((str(folder), out), "holds tokens of another tokenizer .bytes., and bpe was asked for"),
        ((str(out), tmp_path / "x"), "holds tokens already"),
        (("-", tmp_path / "x"), "standard input comes only once"),
        ((str(tmp_path / "nothing"), tmp_path / "x"), "does not exist"),
    ):
        with pytest.raises(DataError, match=said):
            tokenize(*words)
    with pytest.raises(CheckpointError, match="something of that name is in the way"):
        tokenize(str(folder), tmp_path / "t.json")
    assert tokenize(str(folder), out, tokenizer=str(tmp_path / "t.json")).kept == 1  # the same by another name


def test_a_folder_of_tokens_within_a_corpus_is_no_text(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "text", 5)
    tokenize(str(folder), folder / "tokens", tokenizer="bytes")
    again = tokenize(str(folder), folder / "tokens", tokenizer="bytes")
    assert (again.inputs, again.kept) == (5, 1)
    assert "folders of tokens passed over: 1" in again.notes


def test_one_folder_has_one_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = corpus(tmp_path / "text", 3)

    def meanwhile(*_: object) -> None:
        raise CheckpointError("held")

    monkeypatch.setattr(make, "hold", meanwhile)
    with pytest.raises(CheckpointError, match="held"):
        tokenize(str(folder), tmp_path / "tokens", tokenizer="bytes")
    assert not (tmp_path / "tokens/tokens.json").exists()


def test_windows_of_many_shards_are_those_of_one_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_single_files(monkeypatch)
    folder = corpus(tmp_path / "text")
    tokenize(str(folder), tmp_path / "tokens", tokenizer="bytes", processes=1)
    tokens = prepare(DataConfig(paths=(str(tmp_path / "tokens"),)), CONTEXT, 0)
    whole = tokens.train[:]
    assert len(whole) == len(tokens.train) == tokens.train.size
    for start, stop in ((0, 1), (3, 400), (len(whole) - 1, len(whole)), (5, 5), (9, 2), (0, 10**9), (-7, None)):
        assert np.array_equal(tokens.train[start:stop], whole[start:stop])
    assert np.array_equal(tokens.train[::3], whole[::3])
    assert tokens.train[-1] == whole[-1]
    places = np.random.default_rng(0).integers(0, len(whole), (7, 5))
    assert np.array_equal(tokens.train[places], whole[places])
    with pytest.raises(IndexError):
        tokens.train[np.array([len(whole)])]
    regions = [Region(0, 300, 0.5), Region(300, len(whole) - 300, 0.5)]
    ours, theirs = (Batches(one, CONTEXT, 4, 1, 3, regions).batch(5)[0] for one in (tokens.train, whole))
    assert np.array_equal(ours["tokens"], theirs["tokens"])


def test_work_grows_with_the_number_of_files_and_not_with_its_square(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, stat = [], Path.stat

    def counted(path: Path, **options: Any) -> os.stat_result:
        looks[-1] += 1
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", counted)
    for files in (20, 80):
        folder = corpus(tmp_path / f"{files}", files)
        looks.append(0)
        tokenize(str(folder), tmp_path / f"{files}-tokens", tokenizer="bytes", processes=1)
    assert looks[1] <= 4 * looks[0]
