"""What is held out: text of its own, or a part of each path; and what a user is told of it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tests.data.corpora import CONTEXT, corpus, data, document

from limpid.config import DataConfig
from limpid.data.documents import Corpus
from limpid.data.split import CorpusStats, Split
from limpid.data.terminal import data_table
from limpid.data.token_splits import Tokens
from limpid.data.tokens import open_tokens, prepare
from limpid.errors import ConfigError, DataError


def lines(file: Path, *texts: str) -> Path:
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return file


def texts_of(tokens: Tokens, split: np.ndarray) -> list[str]:
    ends = np.flatnonzero(split == tokens.tokenizer.end_of_text)
    return [tokens.tokenizer.decode(part[part != 256].tolist()) for part in np.split(split, ends + 1)[:-1]]


def shown(tokens: Tokens, asked: DataConfig) -> list[str]:
    console = Console(width=80, color_system=None)
    with console.capture() as captured:
        console.print(data_table(tokens, asked))
    return captured.get().splitlines()


def test_text_to_validate_on_is_all_that_is_held_out_and_never_trained_on(tmp_path: Path) -> None:
    """Neither its files, which the folder holds too, nor a document that is spelled the same."""
    folder = corpus(tmp_path / "text", 20)
    own = lines(folder / "own.jsonl", "held out, naïve ☃", "a second one")
    lines(folder / "more.jsonl", "a second one", "only here", "only here")
    asked = data(folder, validation=(str(own),))
    tokens = prepare(asked, CONTEXT, 0)
    assert texts_of(tokens, tokens.validation) == ["held out, naïve ☃", "a second one"]
    trained = texts_of(tokens, tokens.train)
    assert len(trained) == 22
    assert trained.count("only here") == 2
    assert not set(trained) & {"held out, naïve ☃", "a second one"}
    assert "files not trained on because they are to be validated on: 1" in tokens.notes
    assert "documents left out because they stand in the text to validate on too: 1" in tokens.notes
    assert shown(tokens, asked)[1].split()[-5:] == ["22", "1.9", "kB", f"{len(tokens.train):,}", "100.0%"]
    assert shown(tokens, asked)[-1].split()[-4:] == ["2", "32", "B", f"{len(tokens.validation)}"]
    again = open_tokens(tokens.fingerprint, asked, CONTEXT, 0)
    assert np.array_equal(again.train, tokens.train)


def test_the_same_text_without_validation_has_other_tokens(tmp_path: Path) -> None:
    first, second = lines(tmp_path / "a.jsonl", *"abcdefgh" * 9), lines(tmp_path / "b.jsonl", *"ijklmnop" * 9)
    ways = [data(first, second), data(first, validation=(str(second),)), data(second, validation=(str(first),)),
            data(first, second, weights=(1, 1))]  # fmt: skip
    found = [prepare(way, CONTEXT, 0) for way in ways]
    assert len({tokens.fingerprint for tokens in found}) == len(ways)
    assert [prepare(way, CONTEXT, 0).fingerprint for way in ways] == [tokens.fingerprint for tokens in found]


def test_without_text_of_its_own_repeated_documents_are_remarked_on(tmp_path: Path) -> None:
    tokens = prepare(data(lines(tmp_path / "a.jsonl", *["the same text again and again"] * 40)), CONTEXT, 0)
    (note,) = tokens.notes
    assert note.startswith("documents that are trained on, and held out as well because they occur more than once: ")
    assert int(note.rpartition(" ")[2]) == len(texts_of(tokens, tokens.train))


@pytest.mark.parametrize(
    ("paths", "validation", "told"),
    [
        (["a.txt"], ["a.txt"], "no text in .*a.txt besides what is to be validated on"),
        (["a.txt"], ["empty"], "no text to validate on in .*empty"),
        (["a.txt"], ["b.jsonl"], "b.jsonl holds no text"),
        (["a.txt"], ["short.txt"], "the validation split has 6 tokens.* or give more to validate on"),
    ],
)
def test_validation_that_cannot_be_is_one_line(
    paths: list[str], validation: list[str], told: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for name, content in (("a.txt", "text " * 99), ("b.jsonl", ""), ("short.txt", "short")):
        (tmp_path / name).write_text(content)
    asked = data(*(tmp_path / path for path in paths), validation=[str(tmp_path / path) for path in validation])
    with pytest.raises(DataError, match=told):
        prepare(asked, CONTEXT, 0)


def test_with_weights_each_path_is_divided_by_itself(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one long document " * 100)
    (tmp_path / "b.txt").write_text("another of them " * 100)
    few = lines(tmp_path / "c.jsonl", *(f"document {n} of some" for n in range(30)))
    asked = data(tmp_path / "a.txt", tmp_path / "b.txt", few, weights=(0.5, 0.2, 0.3), validation_fraction=0.2)
    tokens = prepare(asked, CONTEXT, 0)
    assert [path.train.documents for path in tokens.paths][:2] == [1, 1]
    assert tokens.paths[0].train.bytes == 0.8 * 1800
    assert all(path.held_out.tokens for path in tokens.paths)
    assert list(tokens.regions) == [0, 1, 2]
    for (path, (start, end)), of in zip(tokens.regions.items(), ("a.txt", "b.txt", "c.jsonl"), strict=True):
        assert {Path(passage.document).name.partition(":")[0] for passage in tokens.passages(start, end - start)} == {
            of
        }
        assert tokens.paths[path].train.tokens == end - start
    assert [line.split()[-1] for line in shown(tokens, asked)[1:4]] == ["50.0%", "20.0%", "30.0%"]


def test_weights_that_fit_no_path_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="weights are 2 and paths 1: give one weight per path"):
        data(tmp_path / "a.txt", weights=(1, 2))
    lines(tmp_path / "a.jsonl", *(f"document {n}" for n in range(30)))
    for content, told in (("tiny", r"b.tx. has 4 tokens, expected at least 14.*leave it out"), (" ", "no text")):
        (tmp_path / "b.txt").write_text(content)
        with pytest.raises(DataError, match=told):
            prepare(data(tmp_path / "a.jsonl", tmp_path / "b.tx*", weights=(1, 1)), CONTEXT, 0)


def test_the_table_fits_a_terminal_and_shows_the_largest_paths(tmp_path: Path) -> None:
    long = tmp_path / ("long name " * 12)
    files = [lines(tmp_path / f"{n}.jsonl", *(f"document {n} {m}" for m in range(3 + n))) for n in range(20)]
    long.write_text("text " * 500)
    asked = data(long, *files)
    table = shown(prepare(asked, CONTEXT, 0), asked)
    assert max(map(len, table)) <= 80
    assert table[0].split() == ["trained", "on", "documents", "bytes", "tokens", "share"]
    assert table[1].startswith("…")
    assert sum(float(line.split()[-1][:-1]) for line in table if line.endswith("%")) == pytest.approx(100, abs=1)
    assert any("more paths" in line for line in table)
    assert table[-1].startswith("held out")


def test_a_folder_of_text_given_otherwise_shows_all_of_it_in_one_row(tmp_path: Path) -> None:
    """The tokens are the same, and were counted by other paths."""
    folder = corpus(tmp_path / "text", 12)
    whole, parts = data(folder), data(*sorted(folder.iterdir()))
    first, second = prepare(whole, CONTEXT, 0), prepare(parts, CONTEXT, 0)
    assert first.fingerprint == second.fingerprint
    assert len(first.paths) == 1
    assert first.counts == second.counts
    assert shown(second, parts)[1].split()[-1] == "100.0%"


def test_sources_of_a_corpus_are_in_the_order_of_its_paths(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text(name)
    found = Corpus(data(tmp_path / "c", tmp_path, validation=(str(tmp_path / "a"),)))
    assert [(source.path.name, source.given) for source in found.sources] == [("c", 0), ("b", 1), ("a", 2)]
    assert found.validation == {2}


def test_documents_of_the_same_text_in_other_files_keep_the_names_of_the_first(tmp_path: Path) -> None:
    """A line of one file is not a file of a folder."""
    folder = corpus(tmp_path / "text", 12)
    first = prepare(data(folder), CONTEXT, 0)
    other = prepare(
        data(lines(tmp_path / "all.jsonl", *(file.read_text() for file in sorted(folder.iterdir())))), CONTEXT, 0
    )
    assert other.fingerprint == first.fingerprint
    assert [one.document for one in other.passages(0, 400)] == [one.document for one in first.passages(0, 400)]


def test_text_that_grows_between_two_readings_is_one_line() -> None:
    stats = CorpusStats(0)
    texts = [document(f"text {number}") for number in range(5)]
    list(stats.counted(texts))
    elsewhere = replace(texts[4], source="b")
    for later in ([*texts, document("new")], [*texts[:4], elsewhere]):
        with pytest.raises(DataError, match="the text changed while it was being read"):
            list(Split(0, 0.5, stats).assign(later))
