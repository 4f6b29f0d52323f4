"""What cannot be read is named, with the place and the reason."""

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest
from tests.data.reading import PACKED, read, refusal, written

from limpid.data import decoding


def test_a_missing_path_suggests_the_one_that_was_meant(tmp_path: Path) -> None:
    written(tmp_path / "shakespeare.txt", b"text")
    assert f"did you mean {tmp_path / 'shakespeare.txt'}?" in refusal(lambda: read(tmp_path / "shakespear.txt"))
    assert "does not exist: give files" in refusal(lambda: read(tmp_path / "no" / "such"))
    assert "no file matches" in refusal(lambda: read(tmp_path / "*.rst"))


def test_an_empty_file_is_named(tmp_path: Path) -> None:
    assert f"{tmp_path / 'a.txt'} holds no text" in refusal(lambda: read(written(tmp_path / "a.txt", b"")))
    (tmp_path / "folder").mkdir()
    assert f"no text in {tmp_path / 'folder'}" in refusal(lambda: read(tmp_path / "folder"))


def test_a_binary_file_is_named_with_its_first_nul(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "READ_SIZE", 5)
    assert "a.txt is not text: byte 11 is NUL" in refusal(
        lambda: read(written(tmp_path / "a.txt", "éééééx".encode() + b"\0"))
    )
    assert "UTF-16" in refusal(lambda: read(written(tmp_path / "b.txt", "wide".encode("utf-16"))))


@pytest.mark.parametrize("size", [3, 4, 1 << 20])
def test_a_file_that_is_not_utf8_is_named_with_the_byte(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "READ_SIZE", size)
    line = refusal(lambda: read(written(tmp_path / "a.txt", "ab☃☃".encode() + b"\xe9 cut")))
    assert "a.txt is not UTF-8: byte 8 is 0xe9" in line
    assert "byte 4 is 0xe2 (unexpected end of data)" in refusal(
        lambda: read(written(tmp_path / "b.txt", b"four\xe2\x98"))
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "cut sh', "a.jsonl:3 is not JSON (Unterminated string"),
        (b'{"id": 1, "body": "x"}', "a.jsonl:3 has no field 'text': its fields are id, body; choose one"),
        (b"{}", "a.jsonl:3 has no field 'text': its fields are none"),
        (b'["text"]', "a.jsonl:3 holds ['text'], expected an object with a field 'text'"),
        (b'{"text": null}', "a.jsonl:3: field 'text' is None, expected text"),
        (b"[" * 100_000, "a.jsonl:3 is not JSON"),
    ],
)
def test_a_bad_json_line_is_named_with_its_number(line: bytes, reason: str, tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", b'{"text": "fine"}\n\n' + line + b"\n")
    assert reason in refusal(lambda: read(file))


@pytest.mark.parametrize("ending", PACKED)
def test_compressed_data_that_is_cut_short_or_none_is_named(ending: str, tmp_path: Path) -> None:
    noise = random.Random(5).randbytes(30_011).hex().encode()
    whole = PACKED[ending](noise)
    file = tmp_path / f"a.txt{ending}"
    assert f"{file} is cut short" in refusal(lambda: read(written(file, whole[:-9])))
    assert f"{file} does not decompress" in refusal(lambda: read(written(file, b"plain text after all")))
    told = "is cut short" if ending in (".bz2", ".xz") else "holds no text"  # of these even nothing has some bytes
    assert f"{file} {told}" in refusal(lambda: read(written(file, b"")))


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path / "a.txt", b"secret")

    def refuse(path: Path, mode: str) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "open", refuse)
    assert f"cannot read {file}: Permission denied" in refusal(lambda: read(file))
