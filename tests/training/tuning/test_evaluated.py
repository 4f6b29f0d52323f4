"""`limpid evaluate` of tuned runs: before and after, on the records that they held out."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import limpid
from limpid.cli import main
from limpid.errors import LimpidError
from limpid.evaluation.records.drawn import win_rates
from limpid.run import Run

MOVED: dict[str, Any] = {"learning_rate": 0.01, "warmup_steps": 0, "schedule": "constant"}
ALL: dict[str, Any] = {"eval_batches": 100}


def last(run: Run, name: str) -> float:
    return float(run.read_metrics().evaluations[-1][name])


def test_answers_have_the_loss_that_the_run_validated_with(tuned: Callable[..., Run]) -> None:
    run = tuned("sft", update=MOVED, run=ALL)
    found = limpid.evaluate(run)
    assert found.metric("loss").value == pytest.approx(last(run, "eval_loss"), rel=1e-5)
    assert found.metric("perplexity").value == pytest.approx(math.exp(found.metric("loss").value))
    assert found.metric("loss", 1).value == pytest.approx(limpid.evaluate(f"{run}@0").metric("loss").value)
    assert found.records.difference.sentence().startswith("no difference") is not found.records.rows[0].told


@pytest.mark.parametrize("objective", ["dpo", "reward"])
def test_pairs_have_the_accuracy_that_the_run_validated_with(tuned: Callable[..., Run], objective: str) -> None:
    run = tuned(objective, update=MOVED, run=ALL)
    found = limpid.evaluate(run)
    what, names = ("score", ("accuracy", "margin"))
    if objective == "dpo":
        what, names = "implicit reward", ("rewards/accuracies", "rewards/margins")
        for side in ("chosen", "rejected"):
            there = found.metric(f"log-probability of {side}").value
            assert there == pytest.approx(last(run, f"eval_logps/{side}"), rel=1e-5)
    for word, name in zip(("accuracy", "margin"), names, strict=True):
        assert found.metric(f"{word} of the {what}").value == pytest.approx(last(run, f"eval_{name}"), rel=1e-4)


def test_judged_answers_are_told_apart(tuned: Callable[..., Run]) -> None:
    run = tuned("kto", update=MOVED, run=ALL)
    found = limpid.evaluate(run)
    gained = (
        found.metric("log-probability of good answers").value - found.metric("log-probability of good answers", 1).value
    )
    assert found.metric("implicit reward of good answers").value == pytest.approx(0.1 * gained, rel=1e-3)


def test_a_policy_has_more_reward_than_before(
    tuned: Callable[..., Run], records: Callable[[str], Path], capsys: pytest.CaptureFixture
) -> None:
    run = tuned("grpo", update={**MOVED, "learning_rate": 0.05}, run={"max_steps": 8, "save_steps": 0})
    words = ["evaluate", str(run.path), "--records", str(records("prompts")), "--num-generations", "4", "--json"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert main(words) == 0
    assert capsys.readouterr().out == said  # drawn alike
    found = json.loads(said)["records"]
    rows = {row["name"]: row for row in found["rows"]}
    assert found["drawn"]["num_generations"] == 4
    assert rows["reward"]["told"]
    assert rows["reward"]["after"]["value"] > rows["reward"]["before"]["value"]
    assert rows["wins"]["after"]["low"] > 0.5
    assert rows["wins"]["before"]["value"] == pytest.approx(1 - rows["wins"]["after"]["value"])
    assert rows["KL to the reference"]["after"]["low"] > 0
    seen, of = found["notes"][0].split(" records are among those that")[0].split(" of these ")
    assert 0 < int(seen) < int(of) == found["records"]
    per_token = rows["KL to the reference, per token"]["after"]["value"]
    assert per_token <= rows["KL to the reference"]["after"]["value"] <= 4 * per_token * (1 + 1e-9)
    assert "is better by" in found["sentence"]


def test_rewards_of_any_run_and_answers_that_are_given(tuned: Callable[..., Run], here: Path) -> None:
    run = tuned("sft")
    found = limpid.evaluate(run, reward="rewards.py:digits", max_completion_length=3, num_generations=2)
    assert {"reward", "wins", "wins against given answers"} <= {row.name for row in found.records.rows}
    assert found.records.kind == "prompts"


def test_a_teacher_and_a_named_reference_are_asked(tuned: Callable[..., Run], base: Run) -> None:
    teacher = tuned("sft", "teacher", update=MOVED)
    run = tuned("distill", tune={"rollouts": {"teacher": str(teacher.path), "num_generations": 2}})
    rows = {row.name: row for row in limpid.evaluate(run).records.rows}
    assert rows["KL to the teacher"].before is not None
    assert rows["KL to the reference"].before is None
    held = tuned("dpo", "held", tune={"reference": str(teacher.path)})
    assert limpid.evaluate(held).metric("margin of the implicit reward", 1).value != 0


def test_what_has_no_opinion_is_said(tuned: Callable[..., Run], here: Path) -> None:
    run = tuned("sft")
    (here / "none.py").write_text("def never(completions):\n    return [None for _ in completions]\n")
    found = limpid.evaluate(run, reward="none.py:never", max_completion_length=3, num_generations=2).records
    assert found.notes == ("no answer has a reward: never returned None for each",)
    assert "wins" not in {row.name for row in found.rows}
    assert found.difference is None
    (here / "some.py").write_text("def some(completions):\n    return [None, 1.0] * (len(completions) // 2)\n")
    found = limpid.evaluate(run, reward="some.py:some", max_completion_length=3, num_generations=2)
    assert [found.metric("without a reward", side).value for side in (0, 1)] == [0.5, 0.5]


def test_a_text_tells_what_was_forgotten(tuned: Callable[..., Run], data: Path) -> None:
    run = tuned("sft", update=MOVED)
    found = limpid.evaluate(run, (str(data),))
    assert found.records is None
    assert found.difference.second == f"{run.path.name} after step 0"
    assert found.difference.value > 0


def test_mistakes_are_one_line(
    tuned: Callable[..., Run], base: Run, data: Path, here: Path, capsys: pytest.CaptureFixture
) -> None:
    run = tuned("sft")
    (here / "bad.py").write_text("def fails(completions):\n    raise ValueError('no judge')\n")
    pairs = here / "p.jsonl"
    pairs.write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    bpe = limpid.train(
        {"data": {"paths": [str(data)], "tokenizer": "bpe", "tokenizer_vocab_size": 270},
         "model": {"context_length": 16, "d_model": 24, "num_layers": 1, "num_heads": 3},
         "update": {"warmup_steps": 0}, "run": {"max_steps": 1, "threads": 1, "doctor": False}}, "bpe",
    )  # fmt: skip
    for words, said in (
        ((str(base.path), "--reward", "bad.py:fails"), "was not tuned here, so it started from no model that is known"),
        ((str(base.path), "--records", str(pairs)), "was not tuned here"),
        ((str(run), "--records", str(pairs)), "answers are asked for"),
        ((str(run), "--records", str(pairs), "--against", str(bpe)), "has a vocabulary of"),
        ((str(run), "--records", str(pairs), "--reward", "bad.py:fails"), "raised ValueError at bad.py:2: no judge"),
        ((str(run), "--text", "abc", "--temperature", "2"), "--temperature is 2.0, which does nothing on a text"),
    ):
        status = main(["evaluate", *words])
        error = capsys.readouterr().err
        assert (status, error.count("\n")) == (2, 1), (words, error)
        assert said in error


def test_a_run_that_held_out_nothing_says_so(tuned: Callable[..., Run], here: Path) -> None:
    run = tuned("sft")
    (here / "one.jsonl").write_text('{"prompt": "1+1=", "completion": "2"}\n')
    alone = limpid.tune("sft", run, here / "one.jsonl", {"run": {"max_steps": 1, "batch_size": 1, "doctor": False}})
    with pytest.raises(LimpidError, match="held out no record: name a file with --records"):
        limpid.evaluate(alone)


def test_wins_are_over_all_pairs_of_answers() -> None:
    after, before = np.array([[1.0, 2.0], [0.0, np.nan], [np.nan, np.nan]]), np.array([[1.0, 0.0], [0.0, 3.0], [1, 1]])
    won, tied = win_rates(after, before)
    assert won[:, 0] == pytest.approx([(0.5 + 1 + 1 + 1) / 4, (0.5 + 0) / 2, np.nan], nan_ok=True)
    assert tied[:, 0] == pytest.approx([1 / 4, 1 / 2, np.nan], nan_ok=True)
