"""The verb: what it prints, compares, and refuses."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.evaluation.small_models import TEXT, small_model

import small
from limpid.cli import main
from limpid.data.new_tokenizer import train_bpe
from limpid.evaluation.evaluation import EvaluationConfig
from limpid.evaluation.intervals import Estimate
from limpid.evaluation.metrics import Difference, difference, metrics
from limpid.evaluation.scored_text import encode_documents, score_text
from limpid.maths.foundations import bits_per_byte
from limpid.model.export import save_folder
from limpid.reporter import SILENT
from limpid.training.loop import finish, loop
from limpid.training.start import start


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("evaluate")
    training = start(small.config(small.corpus(folder / "text", 40)), str(folder / "run"), small.quiet())
    loop(training, small.quiet(), lambda *_: "")
    finish(training)
    return training.run.path


def read(one, documents, **asked):
    return score_text(one, encode_documents(one, documents, SILENT), EvaluationConfig(**asked).windows(one), SILENT)


def test_metrics_are_those_of_the_definitions() -> None:
    found = read(small_model(), [TEXT])
    values = {m.name: m.value for m in metrics(found, found.blocks(), 0.95, 0)}
    loss = found.scores.loss.astype(float).mean()
    assert values["loss"] == pytest.approx(loss)
    assert values["perplexity"] == pytest.approx(math.exp(loss))
    assert values["bits per byte"] == pytest.approx(bits_per_byte(loss, found.count, len(TEXT.encode())))
    assert values["overconfidence"] == pytest.approx(loss - found.scores.entropy.astype(float).mean())
    perplexity = next(m for m in metrics(found, found.blocks(), 0.95, 0) if m.name == "perplexity").estimate
    bounds = next(m for m in metrics(found, found.blocks(), 0.95, 0) if m.name == "loss").estimate
    assert (perplexity.low, perplexity.high) == pytest.approx((math.exp(bounds.low), math.exp(bounds.high)))


def test_models_with_other_tokenizers_are_compared_per_byte_in_pairs() -> None:
    one, two = small_model(name="a"), small_model(train_bpe([TEXT], 400), seed=1, name="b")
    documents = [TEXT[i : i + 150] for i in range(0, 400, 20)]
    a, b = read(one, documents), read(two, documents)
    found = difference(a, b, 0.95, 0)
    total = sum(len(text.encode()) for text in documents)
    expected = (a.losses.sum() - b.losses.sum()) / math.log(2) / total
    assert found.value == pytest.approx(expected)
    assert found.estimate.value == pytest.approx(expected)
    assert found.estimate.low < expected < found.estimate.high
    back = difference(b, a, 0.95, 0)
    assert back.value == pytest.approx(-expected)


def test_a_pair_is_told_apart_where_two_intervals_overlap() -> None:
    """Two models with large losses at the same tokens: the difference is known better than either."""
    one = read(small_model(), [TEXT] * 3)
    other = read(small_model(), [TEXT] * 3)
    nudge = np.random.default_rng(0).normal(0.05, 0.1, one.count).astype(np.float32)
    other.scores.loss[:] += nudge
    found = difference(one, other, 0.95, 0)
    assert found.significant
    assert found.value < 0
    each = [next(m for m in metrics(r, r.blocks(), 0.95, 0) if m.name == "bits per byte") for r in (one, other)]
    assert each[0].estimate.high > each[1].estimate.low


@pytest.mark.parametrize(
    ("value", "low", "high", "p", "said"),
    [
        (-0.0312, -0.0352, -0.0272, 0.0001, "A is better by 0.0312 ± 0.004 bits per byte (95% interval, p < 0.001)"),
        (0.5, 0.3, 0.7, 0.004, "B is better by 0.50 ± 0.2 bits per byte (95% interval, p = 0.004)"),
        (-0.01, -0.03, 0.01, 0.3, "no difference can be told: A is better by 0.010 ± 0.02 bits per byte "
         "(95% interval, p = 0.3); a difference of this size would show on about 4 times as much text"),
    ],
)  # fmt: skip
def test_the_sentence_says_who_is_better_and_how_sure_that_is(value, low, high, p, said) -> None:
    assert Difference("A", "B", value, Estimate(value, low, high, 0.0, p), 0.95).sentence() == said


def test_a_run_reads_what_it_held_out(run: Path, capsys) -> None:
    assert main(["evaluate", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (reading,) = found["texts"]
    assert found["text"] == "held-out text"
    assert reading["scored"] == reading["tokens"] == reading["bytes"]
    assert reading["blocks"]["of"] in ("documents", "text")
    metric = reading["metrics"]["bits_per_byte"]
    assert metric["low"] < metric["value"] < metric["high"]
    assert (run / "evaluate" / "reliability.png").is_file()


def test_numbers_are_shown_where_the_picture_cannot_be_written(run: Path, capsys) -> None:
    shutil.rmtree(run / "evaluate", ignore_errors=True)
    (run / "evaluate").write_text("no folder")
    try:
        assert main(["evaluate", str(run)]) == 0
    finally:
        (run / "evaluate").unlink()
    shown = capsys.readouterr()
    assert "bits per byte" in shown.out
    assert "-o FOLDER" in shown.err


def test_a_run_and_its_model_folder_are_the_same_model(run: Path, capsys) -> None:
    assert main(["evaluate", str(run), "--against", str(run / "model")]) == 0
    significant = capsys.readouterr().out
    assert "no difference: run after step 12 and model predict this text equally well" in significant


def test_text_comes_from_files_and_tasks_stand_alone(run: Path, tmp_path, capsys) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "the cat"}\n{"text": "old dog"}\n', encoding="utf-8")
    assert main(["evaluate", str(run), str(tmp_path / "a.jsonl"), "--json", "--stride", "16"]) == 0
    (reading,) = json.loads(capsys.readouterr().out)["texts"]
    assert (reading["documents"], reading["bytes"], reading["blocks"]) == (2, 14, None)
    questions = tmp_path / "q.jsonl"
    questions.write_text('{"query": "the", "choices": ["cat", "dog"], "gold": 0}\n' * 12, encoding="utf-8")
    assert main(["evaluate", str(run), "--tasks", str(questions), "--against", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["texts"] == []
    assert found["tasks"][0]["results"][0]["questions"] == 12
    assert main(["evaluate", str(run), "--tasks", str(questions), "--against", str(run)]) == 0
    assert "12 questions; guessing gets 50.0% right" in capsys.readouterr().out


def test_max_tokens_draws_documents(run: Path, capsys) -> None:
    assert main(["evaluate", str(run), "--max-tokens", "600", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "drawn at random for --max-tokens" in found["notes"][0]
    assert found["texts"][0]["scored"] < 3000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--stride", "17"], "stride is 17: it must lie in 1 … 16"),
        (["--context", "99"], "context is 99: run holds 1 … 16 tokens"),
        (["--confidence", "95"], "confidence is 95"),
        (["--convention", "guide"], "convention is 'guide': choose one of sliding, transformers"),
        (["--max-tokens", "0"], "--max-tokens is 0"),
        (["nothing.txt"], "nothing.txt does not exist"),
        (["--against", "nobody"], "nobody is not a run folder"),
    ],
)
def test_wrong_use_is_one_line(run: Path, words: list[str], said: str, capsys) -> None:
    assert main(["evaluate", str(run), *words]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1


def test_a_model_folder_needs_a_text(tmp_path, capsys) -> None:
    one = small_model()
    save_folder(
        tmp_path / "m",
        one.transformer.config,
        one.transformer.state_dict(),
        tokenizer_json=one.tokenizer.to_json(),
        end_of_text=256,
    )
    assert main(["evaluate", str(tmp_path / "m")]) == 2
    assert "no held-out text of its own" in capsys.readouterr().err
