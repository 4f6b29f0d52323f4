"""Rows of tests in a corpus: each one that was planted, at its place, and none that was not."""

import json
import random
import re
from pathlib import Path

import pytest

from limpid.cli import main
from limpid.data.survey.decontaminate import decontaminate
from limpid.data.survey.ngrams import WORD, words_of
from limpid.errors import DataError

VOCABULARY = [f"{a}{b}" for a in "bcdfghjklm" for b in ("ay", "ée", "ow", "ü", "ix")]


def sentence(words: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(VOCABULARY, k=words))


def shouted(text: str) -> str:
    """The same words in capitals, with other marks and breaks between them."""
    return re.sub(" ", lambda found: random.Random(found.start()).choice([", ", "\n", " — ", "...  "]), text).upper()


def file_of_tests(file: Path, rows: list[str]) -> Path:
    """Rows of a test, each in two fields of a record."""
    records = ({"id": n, "question": row[:40], "choices": [row[40:], "x"]} for n, row in enumerate(rows))
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


def split_of_words(row: str) -> str:
    """A row whose 40th character is a blank, so that both fields hold whole words."""
    return row[: row.rindex(" ", 0, 40)].ljust(39) + row[row.rindex(" ", 0, 40) :]


@pytest.mark.parametrize("chunk", [1 << 18, 97])
def test_what_was_planted_is_found_at_its_place_and_nothing_else(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("limpid.data.formats.CHUNK_SIZE", chunk)
    rows = [split_of_words(sentence(30, n)) for n in range(12)]
    plain = [" ".join(words_of(row)) for row in rows]
    part = " ".join(plain[3].split()[5:20])  # 15 words: 3 n-grams of 13
    short = " ".join(plain[4].split()[:12])  # one word too few
    documents = {
        "a.txt": f"{sentence(70, 100)} {rows[0]} {sentence(9, 101)}",
        "b.jsonl": "".join(
            json.dumps({"text": f"{sentence(40, 200 + n)} {planted}"}) + "\n"
            for n, planted in enumerate(["", shouted(rows[1]), "", f"{part} and others", short, shouted(part)])
        ),
        "c.txt": "\n".join(sentence(20, 300 + n) for n in range(40)),
    }
    for name, text in documents.items():
        (tmp_path / "corpus").mkdir(exist_ok=True)
        (tmp_path / "corpus" / name).write_text(text)
    found = decontaminate(str(tmp_path / "corpus"), str(file_of_tests(tmp_path / "test.jsonl", rows)))
    assert found.ngram == 13
    assert (len(found.rows), found.too_short, found.read) == (12, 0, 8)
    shares = {row.name: found.share(row) for row in found.contaminated}
    grams = 31 - 13 + 1  # 30 words and the x
    names = [f"{tmp_path / 'test.jsonl'}:{n + 1}" for n in range(12)]
    assert shares == {names[0]: 18 / grams, names[1]: 18 / grams, names[3]: 3 / grams}
    corpus = tmp_path / "corpus"
    assert found.documents == {
        str(corpus / "a.txt"): [names[0]],
        f"{corpus / 'b.jsonl'}:2": [names[1]],
        f"{corpus / 'b.jsonl'}:4": [names[3]],
        f"{corpus / 'b.jsonl'}:6": [names[3]],
    }
    lines = [json.loads(line)["text"] for line in documents["b.jsonl"].splitlines()]
    texts = {f"{corpus / 'b.jsonl'}:{n}": text for n, text in enumerate(lines, 1)} | {
        str(corpus / "a.txt"): documents["a.txt"]
    }
    for row in found.contaminated:
        for place in row.places:
            there = texts[place.document][place.character :]
            if chunk > 97:
                assert place.words == (15 if row.name == names[3] else 30)
                assert WORD.match(there)
            said = place.text.split()
            assert said[-5:] == words_of(there)[len(said) - 5 : len(said)] or chunk == 97
            assert said == row.words[place.word : place.word + len(said)]


def test_n_follows_from_the_rows_as_in_the_paper(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text(f"before {sentence(11, 5)} after")
    (tmp_path / "test.txt").write_text("\n".join(sentence(11, n) for n in range(20)) + "\ntoo short")
    found = decontaminate(str(tmp_path / "corpus.txt"), str(tmp_path / "test.txt"))
    assert (found.ngram, found.too_short) == (11, 1)
    assert [row.name for row in found.contaminated] == [f"{tmp_path / 'test.txt'}:6"]
    (tmp_path / "test.txt").write_text("\n".join(sentence(3, n) for n in range(20)))
    assert decontaminate(str(tmp_path / "corpus.txt"), str(tmp_path / "test.txt")).ngram == 8
    (tmp_path / "test.txt").write_text("?!\n...")
    with pytest.raises(DataError, match="no words in"):
        decontaminate(str(tmp_path / "corpus.txt"), str(tmp_path / "test.txt"))


def test_scripts_without_blanks_have_a_word_per_character(tmp_path: Path) -> None:
    text = "吾輩は猫である。名前はまだ無い。どこで生れたか"
    (tmp_path / "corpus.txt").write_text(f"始めに、{text}とんと見当がつかぬ")
    (tmp_path / "test.txt").write_text(text.replace("。", " "))
    found = decontaminate(str(tmp_path / "corpus.txt"), str(tmp_path / "test.txt"))
    assert found.contaminated[0].places[0].words == len(text) - 2


def test_a_word_of_no_end_is_read_in_parts(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("a" * 2_000_000)
    (tmp_path / "test.txt").write_text(sentence(9, 1))
    assert not decontaminate(str(tmp_path / "corpus.txt"), str(tmp_path / "test.txt")).contaminated


def test_the_command_says_what_it_found_and_lists_what_to_leave_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("corpus.jsonl").write_text("".join(json.dumps({"text": sentence(20, n)}) + "\n" for n in range(6)))
    Path("test.txt").write_text(sentence(20, 3))
    assert main(["data", "decontaminate", "corpus.jsonl", "test.txt", "-o", "found.jsonl"]) == 1
    shown = capsys.readouterr().out
    assert "found          1, which share 13 words in a row with the corpus" in shown
    assert "corpus.jsonl:4" in shown
    listed = [json.loads(line) for line in Path("found.jsonl").read_text().splitlines()]
    assert listed == [{"document": f"{tmp_path / 'corpus.jsonl'}:4", "tests": ["test.txt:1"]}]
    assert main(["data", "statistics", "corpus.jsonl", "--tokenizer", "bytes", "--leave-out", "found.jsonl"]) == 0
    assert "documents      5" in capsys.readouterr().out
    Path("other.txt").write_text(sentence(20, 99))
    assert main(["data", "decontaminate", "corpus.jsonl", "other.txt"]) == 0
