"""Counts of a corpus, beside the same counts by hand."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.data.corpora import corpus

from limpid.cli import main
from limpid.data.shards.make import tokenize
from limpid.data.survey.statistics import statistics
from limpid.errors import DataError


def test_counts_are_those_by_hand(tmp_path: Path) -> None:
    texts = ["the cat\nthe cat\n\nthe dog\n", "é ☃", "the dog", "é ☃"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    found = statistics(str(tmp_path / "a.jsonl"), tokenizer="bytes")
    joined = "".join(texts).encode()
    assert (found.documents, found.repeated_documents) == (4, 1)
    assert (found.lines, found.repeated_lines) == (6, 3)
    assert (found.characters, found.bytes, found.tokens) == (sum(map(len, texts)), len(joined), len(joined) + 4)
    assert found.bytes_per_token == len(joined) / (len(joined) + 4)
    assert found.never == 257 - len(set(joined)) - 1
    times = Counter(joined)
    assert {token: count for token, count in found.frequent if len(token) == 1} == {
        chr(byte): count for byte, count in times.items() if chr(byte).isprintable() and byte < 128
    }
    assert found.frequent[0][1] == max(times.values())
    assert ("<|endoftext|>", 4) in found.frequent
    assert found.characters_per_document == {
        "0": 3, "0.05": 3, "0.25": 3, "0.5": 3, "0.75": 7, "0.95": 25, "0.99": 25, "1": 25,
    }  # fmt: skip


def test_a_folder_of_tokens_says_what_its_text_says(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "text")
    tokenize(str(folder), tmp_path / "tokens")
    text, tokens = statistics(str(folder)).document(), statistics(str(tmp_path / "tokens")).document()
    unknown = {"characters", "lines", "repeated_lines", "characters_per_document", "notes"}
    assert {name: text[name] for name in text.keys() - unknown} == {
        name: tokens[name] for name in tokens.keys() - unknown
    }
    assert {tokens[name] for name in unknown - {"notes"}} == {None}


def test_lines_are_whole_wherever_a_text_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limpid.data.formats.CHUNK_SIZE", 64)
    lines = [f"line {n % 7}" for n in range(50)] + ["long " * 40] * 2
    (tmp_path / "a.txt").write_text("\n".join(lines))
    found = statistics(str(tmp_path / "a.txt"), tokenizer="bytes")
    pieces = -(-200 // 64)  # of a line that is longer than a part
    assert found.lines == 50 + 2 * pieces
    assert found.repeated_lines == 43 + pieces + (pieces - len({("long " * 40)[n : n + 64] for n in range(0, 200, 64)}))
    assert np.isclose(found.bytes_per_document["1"], found.bytes)


def test_the_table_and_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = corpus(tmp_path / "text")
    assert main(["data", "statistics", str(folder), "--tokenizer", "bytes"]) == 0
    shown = capsys.readouterr().out
    assert "documents      53" in shown
    assert "median" in shown
    assert main(["data", "statistics", str(tmp_path / "none")]) == 2
    (tmp_path / "empty.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(DataError, match="no text"):
        statistics(str(tmp_path / "empty.jsonl"), tokenizer="bytes")
