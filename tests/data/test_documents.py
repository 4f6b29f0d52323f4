"""Documents: every kind of source gives the same text; every kind of bad input one line that says what and where."""

import builtins
import csv
import gzip
import io
import json
import os
import random
import re
import resource
import sys
import tempfile
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard
from tests.data.reading import JSON_LINES, PACKED, TEXTS, names, read, refusal, written

from limpid.config import DataConfig
from limpid.data import columns, decoding, formats
from limpid.data.documents import Corpus


def test_a_text_file_is_one_document_byte_for_byte(tmp_path: Path) -> None:
    assert read(written(tmp_path / "a.txt", TEXTS[0].encode())) == TEXTS[:1]
    assert read(written(tmp_path / "b.md", b"\xef\xbb\xbfbyte-order mark")) == ["byte-order mark"]


def test_a_json_line_is_a_document_and_blank_lines_are_none(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", b"\n" + JSON_LINES + b"  \n" + b'{"text": ""}')
    assert read(file) == TEXTS
    assert names(file) == [f"{file}:{line}" for line in (2, 3, 4)]


def test_the_text_field_can_be_another(tmp_path: Path) -> None:
    assert read(written(tmp_path / "a.ndjson", b'{"text": 1, "body": "here"}'), text_field="body") == ["here"]


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_compressed_text_is_the_same_text(name: str, ending: str, tmp_path: Path) -> None:
    content, pack = JSON_LINES * 501, PACKED[ending]
    plain = read(written(tmp_path / name, content))
    assert read(written(tmp_path / f"{name}{ending}", pack(content))) == plain
    joined = pack(content[:999]) + pack(content[999:])  # as `cat a.zst b.zst` makes them
    assert read(written(tmp_path / f"{name}{ending}", joined)) == plain


def test_parquet_gives_a_document_per_row(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    file = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"id": [1, 2, 3], "text": TEXTS}), file)
    assert read(file) == TEXTS
    assert names(file) == [f"{file}:{row}" for row in (1, 2, 3)]
    assert "has no field 'body': its fields are id, text" in refusal(lambda: read(file, text_field="body"))
    assert "field 'id' is 1, expected text" in refusal(lambda: read(file, text_field="id"))
    broken = written(tmp_path / "b.parquet", file.read_bytes()[:-40])
    assert str(broken) in refusal(lambda: read(broken))


def test_a_hub_dataset_gives_a_document_per_row(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked = []

    def load_dataset(repository: str, configuration: str | None, split: str) -> Any:
        asked.append((repository, configuration, split))
        if repository == "some/gone":
            raise ConnectionError("no network\nat all")
        return datasets.Dataset.from_dict({"text": TEXTS})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert read("hf:some/set", "hf:some/other:small", "hf:some/set::test[:9]") == TEXTS * 3
    assert asked == [("some/set", None, "train"), ("some/other", "small", "train"), ("some/set", None, "test[:9]")]
    assert "cannot load hf:some/gone (no network at all)" in refusal(lambda: read("hf:some/gone"))
    columns._hub_dataset.cache_clear()


@pytest.mark.parametrize(("path", "module"), [("a.parquet", "pyarrow"), ("hf:some/thing", "datasets")])
def test_a_missing_extra_is_named(path: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == module:
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "a.parquet", b"PAR1")
    assert "pip install 'limpid[hub]'" in refusal(lambda: read(path))


def test_standard_input_is_read_once_and_can_be_passed_over_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(TEXTS[0].encode())))
    corpus = Corpus(DataConfig(paths=("-",)))
    for _ in range(2):
        assert [(chunk.name, chunk.text) for chunk in corpus.chunks()] == [("standard input", TEXTS[0])]
    assert corpus.manifest() is None


def test_a_pipe_that_is_no_text_is_refused_at_the_byte_that_shows_it() -> None:
    """/dev/zero never ends."""
    assert "/dev/zero is not text: byte 0 is NUL" in refusal(lambda: read("/dev/zero"))


def test_a_pipe_that_the_disk_cannot_hold_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The system refuses files beyond 100 bytes, as a full disk would."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"x" * 10**6)))
    allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, allowed[1]))
    try:
        said = refusal(lambda: read("-"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, allowed)
    assert re.match(rf"cannot keep standard input in {tmp_path}: File too large after [\d,]+ bytes; point TMPDIR", said)
    assert not list(tmp_path.iterdir())


def test_a_pipe_is_judged_while_it_comes() -> None:
    """Its other end is still open, and has more to say."""
    for said, told in ((b"\x1f\x8b\x08", "is not UTF-8: byte 1 is 0x8b"), (b"abc\0", "byte 3 is NUL")):
        reader, writer = os.pipe()
        os.write(writer, said)
        assert told in refusal(lambda reader=reader: read(f"/dev/fd/{reader}"))
        os.close(writer)
        os.close(reader)


@pytest.mark.parametrize("content", [JSON_LINES, json.dumps([{"text": text} for text in TEXTS], indent=1).encode()])
def test_records_of_json_are_recognised_in_a_pipe(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    corpus = Corpus(DataConfig(paths=("-",)))
    begun = corpus.chunks()
    assert next(begun).text == TEXTS[0]
    assert [chunk.text for chunk in corpus.chunks()] == TEXTS
    assert [chunk.text for chunk in begun] == TEXTS[1:]
    for prose in (b'{"text": "cut', b"[see] {text}", b"{"):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(prose)))
        if prose.startswith(b'{"'):
            assert "standard input holds neither" in refusal(lambda: read("-"))
        else:
            assert read("-") == [prose.decode()]


def test_a_pipe_is_read_once_too() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"from a process")
    os.close(writer)
    assert read(f"/dev/fd/{reader}") == ["from a process"]
    os.close(reader)


def test_a_folder_is_searched_in_order_without_what_is_hidden_or_not_text(tmp_path: Path) -> None:
    for name, content in {
        "b/2.txt": b"b2", "b/1.py": b"b1", "a.txt": b"a", "z.jsonl": b'{"text": "z"}', "c.txt.gz": gzip.compress(b"c"),
        "empty.txt": b"", "image.png": b"\x89PNG\0", "latin.txt": b"caf\xe9", ".git/config": b"no", ".env": b"no",
    }.items():  # fmt: skip
        written(tmp_path / name, content)
    corpus = Corpus(DataConfig(paths=(str(tmp_path),)))
    assert [chunk.text for chunk in corpus.chunks()] == ["a", "c", "z", "b1", "b2"]
    notes = "\n".join(corpus.notes())
    assert "not UTF-8 text: 2, for example" in notes
    assert "hidden files and folders passed over: 2" in notes
    assert "they are empty: 1, for example" in notes


@pytest.mark.parametrize("search", ["", "*", "**/*"])
def test_what_a_search_finds_and_cannot_read_is_passed_over_and_counted(search: str, tmp_path: Path) -> None:
    """The same files named by themselves are errors."""
    broken = {
        "broken.gz": gzip.compress(b"abc" * 999)[:-9], "no.jsonl": b'{"body": "x"}', "late.jsonl": JSON_LINES + b"{",
        "table.csv": b"a,b\n1,2\n", "settings.json": b'{\n"a": 1}', "blank.txt": b" \n\t\n",
        "late.txt": b"x" * 3_000_000 + b"\xff",
    }  # fmt: skip
    for name, content in {"a.txt": b"a", **broken}.items():
        written(tmp_path / name, content)
    corpus = Corpus(DataConfig(paths=(str(tmp_path / search),)))
    for _ in range(2):
        assert [chunk.text for chunk in corpus.chunks()] == ["a"]
    notes = "\n".join(corpus.notes())
    for told in ("cannot be read: 5, for example", "not UTF-8 text: 1, for example", "they are empty: 1"):
        assert told in notes
    for name in broken:
        assert name.partition(".")[0] in refusal(lambda name=name: read(tmp_path / name))


def test_runs_of_our_own_are_passed_over_where_a_folder_is_searched(tmp_path: Path) -> None:
    written(tmp_path / "a.txt", b"a")
    for name in ("config.toml", "metrics.jsonl", "checkpoints/000001/state.json"):
        written(tmp_path / "runs" / "001" / name, b"{}")
    corpus = Corpus(DataConfig(paths=(str(tmp_path),)))
    assert [chunk.text for chunk in corpus.chunks()] == ["a"]
    assert "runs of limpid's own passed over: 1" in "\n".join(corpus.notes())


@pytest.mark.parametrize("layout", [{"indent": 1}, {"separators": (",", ":")}])
def test_an_array_of_json_gives_a_document_per_element(layout: Any, tmp_path: Path, monkeypatch) -> None:
    rows = [{"id": n, "text": text} for n, text in enumerate(TEXTS * 3)]
    file = written(tmp_path / "a.json", json.dumps(rows, **layout).encode())
    assert read(file) == TEXTS * 3
    monkeypatch.setattr(decoding, "READ_SIZE", 7)
    assert read(file) == TEXTS * 3
    assert read(written(tmp_path / "lines.json", JSON_LINES)) == TEXTS
    for content, told in (
        (b'{\n"a": 1}', "neither an array nor an object per line"),
        (b'[{"text": "a"}, {"te', ":2 is not JSON"),
        (b'["a", 3]', ":2 holds 3, expected an object with a field 'text', or text"),
        (b"[" * 5_000, ":1 is not JSON"),  # deeper than Python recurses
    ):
        assert told in refusal(lambda content=content: read(written(tmp_path / "bad.json", content)))


MESSAGES = [
    {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": [{"type": "text", "text": "2"}, {"type": "text", "text": " + 2"}]},
    {"role": "tool", "content": "4"},
]  # fmt: skip


SPOKEN = "System: Be brief.\nUser: Hi\nModel: Yes?\nUser: 2 + 2\nTool: 4"


TURNS = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes?"}]


def test_a_conversation_is_a_document_as_chat_writes_it(tmp_path: Path) -> None:
    """Under OpenAI's name, ShareGPT's, or the one that was asked for; a field of text goes before it."""
    records = [{"messages": MESSAGES}, {"conversations": TURNS, "id": 3}, {"messages": TURNS, "text": "plain"}]
    lines = written(tmp_path / "a.jsonl", "".join(json.dumps(record) + "\n" for record in records).encode())
    assert read(lines) == [SPOKEN, "User: Hi\nModel: Yes?", "plain"]
    named = written(tmp_path / "b.json", json.dumps([{"log": TURNS}, {"log": []}]).encode())
    assert read(named, text_field="log") == ["User: Hi\nModel: Yes?"]
    for message in ({"role": "user"}, "Hi", {"role": "user", "content": None}, {"from": 1, "value": "Hi"}):
        bad = written(tmp_path / "c.jsonl", json.dumps({"messages": [message]}).encode())
        assert "c.jsonl:1: " in refusal(lambda bad=bad: read(bad))
        assert "is no message: expected {'role'" in refusal(lambda bad=bad: read(bad))


def test_columns_hold_conversations_too(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"id": [1], "messages": [TURNS]})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pyarrow.OSFile(str(tmp_path / "b.arrow"), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    assert read(tmp_path / "a.parquet", tmp_path / "b.arrow") == ["User: Hi\nModel: Yes?"] * 2
    broken = written(tmp_path / "c.arrow", (tmp_path / "b.arrow").read_bytes()[:40])
    assert "as arrow" in refusal(lambda: read(broken))


def test_an_array_of_strings_gives_a_document_per_string(tmp_path: Path) -> None:
    assert read(written(tmp_path / "a.json", json.dumps(TEXTS).encode())) == TEXTS
    assert read(written(tmp_path / "a.jsonl", b'"one"\n"two"\n')) == ["one", "two"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_table_gives_a_document_per_row(delimiter: str, tmp_path: Path) -> None:
    rows = [["id", "text"], ["1", 'quoted "words",\nand; a\tline'], ["2", "plain"], ["3", ""]]
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=delimiter).writerows(rows)
    assert read(written(tmp_path / "a.csv", out.getvalue().encode())) == [rows[1][1], "plain"]
    assert "its fields are id, text" in refusal(lambda: read(tmp_path / "a.csv", text_field="body"))


def test_a_path_that_is_no_path_is_refused(tmp_path: Path) -> None:
    assert "a path is empty" in refusal(lambda: list(Corpus(DataConfig(paths=("",))).chunks()))
    (tmp_path / "link").symlink_to("nowhere")
    assert "is a link to nowhere, which does not exist" in refusal(lambda: read(tmp_path / "link"))


def test_a_glob_is_sorted_and_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "deep/c.txt", "d.md"):
        written(tmp_path / name, name.encode())
    assert read(tmp_path / "*.txt") == ["a.txt", "b.txt"]
    assert read(tmp_path / "**" / "*.txt") == ["a.txt", "b.txt", "deep/c.txt"]
    twice = Corpus(DataConfig(paths=(str(tmp_path / "*.txt"), str(tmp_path / "b.txt"))))
    assert [chunk.text for chunk in twice.chunks()] == ["a.txt", "b.txt"]
    assert "read once: 1 repeated" in "\n".join(twice.notes())


def test_without_paths_the_text_is_pythons_own() -> None:
    corpus = Corpus(DataConfig())
    found = [source.name for source in corpus.sources]
    assert len(found) > 100
    assert any(name.endswith("json/decoder.py") for name in found)
    assert any(name.endswith("pydoc_data/topics.py") for name in found)
    assert not any("/test/" in name or "site-packages" in name for name in found)
    assert "Python standard library" in corpus.notes()[0]


def test_a_long_document_comes_in_pieces_that_end_with_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "CHUNK_SIZE", 97)
    draws = random.Random(7)
    text = "".join("é☃x"[draws.randrange(3)] * draws.randrange(40) + "\n" for _ in range(503)) + "x" * 1009
    file = written(tmp_path / "a.txt", text.encode())
    chunks = list(Corpus(DataConfig(paths=(str(file),))).chunks())
    assert "".join(chunk.text for chunk in chunks) == text
    assert [chunk.last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert all(len(chunk.text) <= 97 for chunk in chunks)
    assert all(chunk.text.endswith("\n") for chunk in chunks if "\n" in chunk.text)
    monkeypatch.setattr(decoding, "READ_SIZE", 11)
    assert list(Corpus(DataConfig(paths=(str(file),))).chunks()) == chunks


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz", "a.jsonl.zst"])
def test_memory_does_not_grow_with_the_text(name: str, tmp_path: Path) -> None:
    content = (json.dumps({"text": "word " * 60}) + "\n").encode() * 50_000  # 16 MB
    pack = {"gz": gzip.compress, "zst": zstandard.compress}.get(name.rpartition(".")[2], bytes)
    corpus = Corpus(DataConfig(paths=(str(written(tmp_path / name, pack(content))),)))
    tracemalloc.start()
    characters = sum(len(chunk.text) for chunk in corpus.chunks())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert characters >= 50_000 * 300
    assert peak < 10e6


def test_nothing_is_read_before_it_is_asked_for(tmp_path: Path) -> None:
    good, bad = written(tmp_path / "a.txt", b"good"), written(tmp_path / "b.txt", b"\xff")
    chunks = Corpus(DataConfig(paths=(str(good), str(bad)))).chunks()
    assert next(chunks).text == "good"
    assert "b.txt" in refusal(lambda: next(chunks))
