"""Which documents made a batch: every row of a trained step is spelled by the documents it is led back to."""

import json
import shutil
from pathlib import Path

import pytest

from limpid.api import train
from limpid.cli import main
from limpid.config import DataConfig
from limpid.data.lineage import _byte_range, rows_of_step
from limpid.data.tokens import prepare
from limpid.errors import CheckpointError
from limpid.lock import released_after
from limpid.run import Run
from limpid.source import find_run, find_step
from limpid.training.replay import record_past, replay
from small import config, corpus

LENGTH = 17


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and a run of five steps that every test gets a copy of."""
    folder = tmp_path_factory.mktemp("original")
    with pytest.MonkeyPatch.context() as patch, released_after():
        patch.chdir(folder)
        corpus(Path("corpus"), 12)
        lines = "".join(json.dumps({"text": f"n {n}"}) + "\n" for n in range(300))  # several documents in a row
        Path("corpus/more.jsonl").write_text(lines)
        train(config(Path("corpus"), max_steps=5, gradient_accumulation_steps=2), "run")
    return folder


@pytest.fixture
def run(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return find_run("run")


def document(name: str) -> bytes:
    file, _, line = name.partition(":")
    text = Path(file).read_text(encoding="utf-8")
    return (json.loads(text.splitlines()[int(line) - 1])["text"] if line else text).encode()


@pytest.mark.parametrize("step", [1, 4, 5])
def test_a_row_is_spelled_by_its_documents(run: Run, step: int) -> None:
    found = rows_of_step(run, step)
    assert [(row.micro_batch, row.row) for row in found.rows] == [(m, r) for m in range(2) for r in range(3)]
    training = replay(run, step)
    end = training.tokens.tokenizer.end_of_text
    trained = [
        row for micro in training.batches.batch(step) for row in zip(micro["tokens"], micro["targets"], strict=True)
    ]
    for row, (tokens, targets) in zip(found.rows, trained, strict=True):
        spelled: list[int] = []
        for part in row.parts:  # a byte is a token here
            spelled += [*document(part.document), end][part.offset : part.offset + part.tokens]
            first, after = part.bytes
            assert document(part.document)[first:after] == bytes(id for id in spelled[-part.tokens :] if id != end)
        assert spelled == [*tokens.tolist(), int(targets[-1])]
        assert sum(part.tokens for part in row.parts) == LENGTH


def test_rows_of_several_documents_occur(run: Run) -> None:
    assert any(len(row.parts) > 1 for step in range(1, 6) for row in rows_of_step(run, step).rows)


def test_without_a_step_the_last_one_is_meant(run: Run) -> None:
    assert rows_of_step(run, None) == rows_of_step(run, 5)


def test_a_run_from_before_its_file_was_renamed_is_read(run: Run) -> None:
    before = rows_of_step(run, 3)
    run.micro_batches_file.rename(run.path / "ledger.jsonl")
    assert rows_of_step(run, 3) == before


def test_a_step_that_was_not_taken_is_refused(run: Run) -> None:
    with pytest.raises(CheckpointError, match=r"has taken no step 9: its rows are known for steps 1 … 5"):
        rows_of_step(run, 9)
    run.micro_batches_file.write_text('{"step": 1, "micro_batch": 0, "rows": [], "tokens": 4}\n')
    with pytest.raises(CheckpointError, match=r"rows of step 1 of .* were made for it and are in no file"):
        rows_of_step(run, 1)
    run.micro_batches_file.unlink()
    with pytest.raises(CheckpointError, match=r"micro_batches.jsonl, which holds the rows: No such file"):
        rows_of_step(run, 1)


def test_a_step_is_named_by_number_by_checkpoint_or_by_its_file(run: Run) -> None:
    file = record_past(run, 3)
    same = Run(Path("runs/run"))
    assert find_step("run", 3) == (same, 3)
    assert find_step("run@0") == (same, 0)
    assert find_step(file)[1] == 3
    assert rows_of_step(*find_step(file)) == rows_of_step(run, 3)
    elsewhere = Path("step.safetensors")
    file.rename(elsewhere)
    with pytest.raises(CheckpointError, match="lies in no run's steps/"):
        find_step(elsewhere)
    assert find_step("run@0", 3) == (same, 3)
    with pytest.raises(CheckpointError, match="lies after step 3: name a checkpoint before it"):
        find_step(f"run@{run.latest_checkpoint()}", 3)
    with pytest.raises(CheckpointError, match="which has taken no steps: give a run"):
        find_step("runs/run/model")


def test_the_command_shows_and_prints_them(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "run", "--step", "4", "--rows"]) == 0
    shown = capsys.readouterr().out
    assert "run, step 4: 6 rows in 2 micro-batches" in shown
    assert "corpus/" in shown
    assert main(["trace", "run", "--step", "4", "--rows", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    expected = [part.document for part in rows_of_step(run, 4).rows[0].parts]
    assert [part["document"] for part in rows[0]["parts"]] == expected


@pytest.mark.parametrize("tokenizer", ["bpe", "characters"])
def test_bytes_are_those_of_the_document(tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of text with characters of several bytes, of which a row may begin or end with a part."""
    monkeypatch.chdir(tmp_path)
    text = "".join(f"naïve ☃ {n} 🦊\n" for n in range(300))
    Path("a.txt").write_text(text)
    data = DataConfig(("a.txt",), tokenizer=tokenizer)
    tokens = prepare(data, LENGTH, 0)
    for start in (0, 1, 7, 500):
        (passage,) = tokens.passages(start, 40)
        first, after = _byte_range(tokens, passage)
        spelled = tokens.tokenizer.decode(tokens.train[start : start + 40].tolist())
        assert text.encode()[first:after].decode(errors="replace") == spelled


def test_the_documents_of_a_copy_are_named_by_the_copy(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens are those of the first."""
    monkeypatch.setattr("limpid.data.tokens.UNSETTLED", -(10**12))  # also what was written just now
    Path("corpus").rename("moved")
    other = train(config(Path("moved"), max_steps=3, gradient_accumulation_steps=2), "other")
    assert other.fingerprint() == run.fingerprint()
    parts = [part for row in rows_of_step(other, 1).rows for part in row.parts]
    assert all(part.document.startswith("moved/") for part in parts)
