"""Documents that are there twice: beside brute force over all pairs."""

import itertools
import json
import random
from pathlib import Path

import pytest

from limpid.cli import main
from limpid.data.survey.duplicates import duplicates
from limpid.data.survey.ngrams import words_of
from limpid.data.survey.statistics import statistics
from limpid.errors import ConfigError, DataError

VOCABULARY = [f"word{n}" for n in range(400)]


def varied(seed: int, documents: int = 40, copies: int = 3) -> list[str]:
    """Texts, and of each some in which more and more words are changed."""
    draw = random.Random(seed)
    texts = []
    for _ in range(documents):
        words = draw.choices(VOCABULARY, k=draw.randint(30, 200))
        texts.append(" ".join(words))
        for _ in range(copies):
            changed = list(words)
            for _ in range(draw.randint(0, 6)):
                changed[draw.randrange(len(changed))] = draw.choice(VOCABULARY)
            texts.append(" ".join(changed))
    draw.shuffle(texts)
    return texts


def written(file: Path, texts: list[str]) -> str:
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(file)


def by_brute_force(texts: list[str], threshold: float, n: int) -> dict[tuple[int, int], float]:
    """Every pair of different texts that is so alike, numbered from 1."""
    sets = [{tuple(words[at : at + n]) for at in range(len(words) - n + 1)} for words in map(words_of, texts)]
    pairs = {}
    for one, other in itertools.combinations(range(len(texts)), 2):
        alike = len(sets[one] & sets[other]) / len(sets[one] | sets[other])
        if alike >= threshold and texts[one] != texts[other]:
            pairs[one + 1, other + 1] = alike
    return pairs


@pytest.mark.parametrize("threshold", [0.5, 0.8])
def test_pairs_are_those_of_brute_force(threshold: float, tmp_path: Path) -> None:
    texts = varied(3)
    file = written(tmp_path / "a.jsonl", texts)
    found = duplicates(file, threshold=threshold)
    truth = by_brute_force(texts, threshold, 5)
    first: dict[str, int] = {}
    repeated = [number for number, text in enumerate(texts, 1) if first.setdefault(text, number) != number]
    assert [int(pair.document.rpartition(":")[2]) for pair in found.exact] == repeated
    ours = {tuple(int(name.rpartition(":")[2]) for name in (pair.like, pair.document)): pair.jaccard
            for pair in found.near}  # fmt: skip
    truth = {pair: alike for pair, alike in truth.items() if not set(pair) & set(repeated)}
    assert len(truth) > 30
    assert ours == {pair: pytest.approx(alike) for pair, alike in truth.items()}
    assert found.recall > 0.97


def test_what_is_left_out_is_like_something_that_is_kept(tmp_path: Path) -> None:
    texts = varied(4)
    file, listed = written(tmp_path / "a.jsonl", texts), tmp_path / "list.jsonl"
    found = duplicates(file, output=str(listed))
    gone = {pair.document for pair in found.left_out}
    assert gone
    assert not gone & {pair.like for pair in found.left_out}
    assert all(pair.jaccard >= 0.8 for pair in found.left_out)
    assert [json.loads(line)["document"] for line in listed.read_text().splitlines()] == [
        pair.document for pair in found.left_out
    ]
    rest = [text for number, text in enumerate(texts, 1) if f"{file}:{number}" not in gone]
    assert not by_brute_force(rest, 0.8, 5)
    assert len(set(rest)) == len(rest)
    left = statistics(file, tokenizer="bytes", leave_out=str(listed))
    assert (left.documents, left.repeated_documents) == (len(rest), 0)


def test_likeness_is_not_passed_on(tmp_path: Path) -> None:
    words = VOCABULARY[:100]
    second, third = ["x", *words[1:]], ["x", *words[1:50], "y", *words[51:]]
    found = duplicates(
        written(tmp_path / "a.jsonl", [" ".join(one) for one in (words, second, third)]), threshold=0.93, ngram=3
    )
    assert [(pair.document[-1], pair.like[-1]) for pair in found.near] == [("2", "1"), ("3", "2")]
    assert [pair.document[-1] for pair in found.left_out] == ["2"]  # the third is not like the first


def test_case_and_punctuation_do_not_count_and_short_documents_do(tmp_path: Path) -> None:
    texts = ["One, two: three four five six", "one two THREE four; five six!", "one two", "One... two", "", "?"]
    found = duplicates(written(tmp_path / "a.jsonl", texts))
    assert {(pair.like[-1], pair.document[-1], pair.jaccard) for pair in found.near} == {("1", "2", 1), ("3", "4", 1)}


def test_a_long_document_in_parts_is_the_same_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = varied(5, 1)[0] * 20
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.txt").write_text(f"{text} more")
    whole = duplicates(str(tmp_path))
    monkeypatch.setattr("limpid.data.formats.CHUNK_SIZE", 57)
    assert duplicates(str(tmp_path)).near == whole.near != ()


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("text")
    assert main(["data", "duplicates", str(tmp_path), "--threshold", "0"]) == 2
    assert "--threshold is 0.0: it must lie in (0, 1]" in capsys.readouterr().err
    with pytest.raises(DataError, match="what comes only once cannot be read twice"):
        duplicates("-")
    monkeypatch.setitem(__import__("sys").modules, "datasketch", None)
    with pytest.raises(ConfigError, match=r"pip install 'limpid\[dedup\]'"):
        duplicates(str(tmp_path))
