"""Tuning runs: one loop with training, so that they resume, replay and open like any other."""

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import limpid
import small
from limpid.cli import main
from limpid.data.held_out import opening
from limpid.data.lineage import rows_of_step
from limpid.errors import ConfigError, LimpidError
from limpid.inspection.adapter import inspect_adapter
from limpid.model.weights import load_model, load_weights
from limpid.objectives.tuned import TUNED
from limpid.run import Run
from limpid.source import find_model
from limpid.training.stored_batches import read_batch

GIVEN = ("sft", "dpo", "ipo", "kto", "reward")
OWN = ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_plus_plus", "ppo")


def test_every_objective_is_tried_here() -> None:
    assert {*GIVEN, *OWN, "distill"} <= set(TUNED)


@pytest.mark.parametrize("objective", [*GIVEN, *OWN])
def test_the_last_step_opens_and_holds(tuned: Callable[..., Run], objective: str) -> None:
    run = tuned(objective)
    assert limpid.trace(run).step.verdict.agrees


@pytest.mark.parametrize(
    ("objective", "base_precision"),
    [(objective, "fp32") for objective in ("sft", "dpo", "kto", "grpo", "ppo")] + [("sft", "int8"), ("dpo", "bf16")],
)
def test_it_resumes_to_the_bit(tuned: Callable[..., Run], objective: str, base_precision: str) -> None:
    whole = tuned(objective, model={"lora_rank": 2, "base_precision": base_precision})
    part = Run(shutil.copytree(whole.path, whole.path.with_name("part")))
    for step in (2, 3):
        shutil.rmtree(part.checkpoint(step))
    if (part.path / "batches").is_dir():
        (part.path / "batches" / "000003.safetensors").unlink()  # drawn anew
    limpid.resume(part)
    for name in ("model", "optimizer"):
        ours, theirs = (load_file(run.checkpoint(3) / f"{name}.safetensors") for run in (whole, part))
        assert all(np.array_equal(ours[key], theirs[key]) for key in ours)
    assert [line["loss"] for line in whole.read_metrics().steps] == [line["loss"] for line in part.read_metrics().steps]


@pytest.mark.parametrize(
    ("lines", "said"), [(None, "is no longer there"), (39, "holds other records now"), (40, None)],
    ids=["gone", "fewer", "the same"],
)  # fmt: skip
def test_a_resume_says_that_its_records_have_changed(
    tuned: Callable[..., Run], here: Path, lines: int | None, said: str | None, capsys: pytest.CaptureFixture
) -> None:
    run = tuned("sft")
    kept = (here / "answers.jsonl").read_text().splitlines(keepends=True)
    if lines is None:
        (here / "answers.jsonl").unlink()
    else:
        (here / "answers.jsonl").write_text("".join(kept[:lines]))
    capsys.readouterr()
    assert main(["tune", "--resume", str(run.path), "--max-steps", "4"]) == 0
    shown = capsys.readouterr().out
    notes = [line for line in shown.splitlines() if "the run goes on with those that it began with" in line]
    assert len(notes) == (said is not None)
    assert said is None or f"answers.jsonl {said}: " in notes[0]


def test_the_policy_that_drew_has_a_ratio_of_exactly_one(tuned: Callable[..., Run]) -> None:
    for precision in ("fp32", "bf16"):
        run = tuned("grpo", f"in-{precision}", run={"precision": precision})
        for line in run.read_metrics().steps:
            assert line["ratio/min"] == line["ratio/max"] == line["ratio/mean"] == 1
        norms = [line["grad_norm_before_clip"] for line in run.read_metrics().steps]
        assert max(norms) > 0  # although the loss is near 0


def test_several_steps_on_a_draw_leave_it(tuned: Callable[..., Run]) -> None:
    rollouts = {"reward": ["rewards.py:digits"], "num_generations": 3, "num_iterations": 2}
    run = tuned("grpo", tune={"rollouts": rollouts}, update={"learning_rate": 0.01, "warmup_steps": 0})
    first, second, third = run.read_metrics().steps
    assert first["ratio/max"] == 1 < second["ratio/max"]
    assert third["ratio/max"] == 1
    assert {file.name for file in (run.path / "batches").iterdir()} == {"000001.safetensors", "000003.safetensors"}


@pytest.mark.parametrize("lora", [0, 2])
def test_at_first_policy_and_reference_are_one(tuned: Callable[..., Run], lora: int) -> None:
    """Of a run with factors, too, whose reference is its own base."""
    model = {"lora_rank": lora} if lora else {}
    first = tuned("dpo", model=model).read_metrics().steps[0]
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-7)
    assert first["rewards/margins"] == first["rewards/chosen"] == first["rewards/accuracies"] == 0
    assert tuned("kto", "kto", model=model).read_metrics().steps[0]["loss"] == pytest.approx(0.5, abs=1e-7)
    assert tuned("ipo", "ipo", model=model).read_metrics().steps[0]["loss"] == pytest.approx(25, abs=1e-5)


def test_an_adapter_that_goes_on_is_held_to_where_it_was(tuned: Callable[..., Run], base: Run) -> None:
    """Not to its base, from which it had moved before."""
    moved = {"learning_rate": 0.05, "warmup_steps": 0}
    sft = tuned("sft", "sft", model={"lora_rank": 2}, update=moved)
    adapter = limpid.export(sft, "adapter", adapter=True)
    run = tuned("dpo", base=f"{base.path}+{adapter}", model={"head": "vocabulary"})
    assert run.read_config().model.lora_rank == 2
    assert run.read_metrics().steps[0]["rewards/margins"] == 0


@pytest.mark.parametrize("objective", ["sft", "dpo"])
def test_magnitudes_are_tuned_alike(tuned: Callable[..., Run], objective: str) -> None:
    run = tuned(objective, model={"lora_rank": 2, "use_dora": True})
    assert limpid.trace(run).step.verdict.agrees
    if objective == "dpo":
        assert run.read_metrics().steps[0]["rewards/margins"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("base_precision", "run_precision", "model"),
    [
        ("int8", "fp32", {"lora_targets": ["attention.*"]}),
        ("int8", "bf16", {"use_dora": True}),
        ("int8", "fp32", {"use_dora": True, "init_lora_weights": "pissa"}),
        ("bf16", "bf16", {}),
    ],
    ids=["int8, attention alone", "int8, dora, bf16", "int8, dora, pissa", "bf16, bf16"],
)
def test_a_narrow_base_is_its_own_reference_and_stays_as_it_is(
    tuned: Callable[..., Run], base: Run, model: dict, base_precision: str, run_precision: str
) -> None:
    """At the first step the model is what it is held near to: the base as it was rounded."""
    moved = {"learning_rate": 0.05, "warmup_steps": 0, "schedule": "constant"}
    run = tuned(
        "dpo", model={"lora_rank": 2, "base_precision": base_precision} | model, update=moved,
        run={"precision": run_precision},
    )  # fmt: skip
    first, _, third = run.read_metrics().steps
    assert first["rewards/margins"] == pytest.approx(0, abs=1e-6 if run_precision == "fp32" else 1e-2)
    assert third["rewards/margins"] != 0
    assert limpid.trace(run).step.verdict.agrees
    begun, ended, given = (load_file(one / "model.safetensors") for one in (
        run.checkpoint(0), run.checkpoint(3), base.checkpoint(3)))  # fmt: skip
    for name, weight in given.items():
        narrow = name.startswith("blocks.") and weight.ndim == 2
        assert narrow or np.array_equal(begun[name], weight), name
        assert narrow != np.array_equal(begun[name], weight), name
        assert np.array_equal(begun[name], ended[name]), name
    _, exported = load_weights(find_model(run))
    assert set(exported) == set(given)
    assert load_model(find_model(run)).config.base_precision == "fp32"


def test_factors_that_began_as_singular_values_are_held_to_the_model_as_it_was(
    tuned: Callable[..., Run], base: Run, here: Path
) -> None:
    """The reference is what the rest of the weights and the first factors give together."""
    model = {"lora_rank": 2, "init_lora_weights": "pissa"}
    moved = {"learning_rate": 0.05, "warmup_steps": 0, "schedule": "constant"}
    run = tuned("dpo", model=model, update=moved)
    first, _, third = run.read_metrics().steps
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-7)
    assert first["rewards/margins"] == 0 != third["rewards/margins"]
    assert limpid.trace(run).step.verdict.agrees
    for ours, theirs in zip(*(load_weights(find_model(what))[1].items() for what in (f"{run}@0", base)), strict=True):
        np.testing.assert_allclose(ours[1].numpy(), theirs[1].numpy(), rtol=0, atol=1e-7)
    part = Run(shutil.copytree(run.path, run.path.with_name("part")))
    for step in (2, 3):
        shutil.rmtree(part.checkpoint(step))
    limpid.resume(part)
    assert (part.checkpoint(3) / "model.safetensors").read_bytes() == (
        run.checkpoint(3) / "model.safetensors"
    ).read_bytes()
    with_adapter = load_weights(find_model(f"{base.path}+{run.adapter_folder}"))[1]
    for name, weight in load_weights(find_model(run))[1].items():
        np.testing.assert_allclose(with_adapter[name].numpy(), weight.numpy(), rtol=0, atol=1e-6)
    (change, *_) = inspect_adapter(run).changes
    original = load_weights(find_model(base))[1][change.name]
    assert change.base_norm == pytest.approx(
        float(original.norm()), rel=1e-6
    )  # of the model as it was, not of the rest
    with pytest.raises(LimpidError, match="singular values of a model that was trained before"):
        limpid.train(small.config(here / "corpus", model=model))


def test_another_reference_gives_other_margins(tuned: Callable[..., Run], base: Run) -> None:
    sft = tuned("sft", "sft", update={"learning_rate": 0.01, "warmup_steps": 0})
    run = tuned("dpo", tune={"reference": str(sft.path)})
    assert run.read_metrics().steps[0]["rewards/margins"] != 0


def test_a_reference_that_reads_other_tokens_is_refused(tuned: Callable[..., Run], base: Run, here: Path) -> None:
    """The vocabulary is as large, and two numbers stand for each other's tokens."""
    folder = limpid.export(base, here / "other")
    form = json.loads((folder / "tokenizer.json").read_text())
    known = form["model"]["vocab"]
    known["a"], known["b"] = known["b"], known["a"]
    (folder / "tokenizer.json").write_text(json.dumps(form))
    with pytest.raises(LimpidError, match="has another tokenizer"):
        tuned("dpo", tune={"reference": str(folder)})


def test_a_teacher_is_imitated(tuned: Callable[..., Run]) -> None:
    moved = {"learning_rate": 0.02, "warmup_steps": 0, "schedule": "constant"}
    teacher = tuned("sft", "teacher", update=moved, run={"max_steps": 12, "save_steps": 0})
    rollouts = {"teacher": str(teacher.path), "num_generations": 16}
    run = tuned("distill", tune={"rollouts": rollouts}, update=moved,
                run={"max_steps": 24, "save_steps": 0})  # fmt: skip
    assert limpid.trace(run).step.verdict.agrees
    draws = [read_batch(run.path / "batches" / f"{step:06d}.safetensors") for step in range(1, 25)]
    apart = [abs(one["old_log_probabilities"] - one["reference_log_probabilities"]).mean() for one, *_ in draws]
    assert np.mean(apart[-3:]) < 0.8 * np.mean(apart[:3])


def test_a_reward_model_rewards(tuned: Callable[..., Run]) -> None:
    moved = {"learning_rate": 0.01, "warmup_steps": 0, "schedule": "constant"}
    judge = tuned("reward", "judge", update=moved, run={"max_steps": 12, "save_steps": 0, "eval_steps": 12})
    assert judge.read_metrics().evaluations[-1]["eval_loss"] < math.log(2)
    run = tuned("grpo", tune={"rollouts": {"reward": [str(judge.path)], "num_generations": 3}})
    batch = read_batch(run.path / "batches" / "000001.safetensors")
    assert len(np.unique(np.concatenate([micro["rewards"] for micro in batch]))) > 3
    with pytest.raises(LimpidError, match="predicts tokens and gives no score"):
        tuned("grpo", "other", tune={"rollouts": {"reward": [str(run.path)]}})


def test_answers_without_a_reward_move_nothing(tuned: Callable[..., Run]) -> None:
    run = tuned("grpo", tune={"rollouts": {"reward": ["rewards.py:undecided"], "num_generations": 3}})
    batch = read_batch(run.path / "batches" / "000001.safetensors")
    odd = np.concatenate([micro["mask"] for micro in batch])[1::2]
    assert not odd.any()
    assert run.read_metrics().steps[0]["reward"] == 1


def test_epochs_count_the_steps(tuned: Callable[..., Run]) -> None:
    run = tuned(
        "sft", tune={"epochs": 2.0}, run={"batch_size": 12, "save_steps": 0, "eval_steps": 0, "max_steps": None}
    )
    records = 36  # of forty, one in ten is held out
    assert run.read_config().run.max_steps == math.ceil(2 * records / 12)


def test_more_epochs_than_can_be_counted_are_named(tuned: Callable[..., Run]) -> None:
    with pytest.raises(ConfigError, match=r"^epochs is 1e\+30: so many passes"):
        tuned("sft", tune={"epochs": 1e30}, run={"max_steps": None})


def test_a_number_of_a_policy_s_step_is_written_out(tuned: Callable[..., Run], capsys: pytest.CaptureFixture) -> None:
    run = tuned("dapo", tune={"options": {"beta": 0.1}})
    trace = limpid.trace(run)
    advantages, rewards = trace.array("advantages"), trace.array("rewards")
    row, at = (int(i) for i in np.argwhere(advantages)[0])
    assert main(["explain", str(run.path), f"token_log_probabilities[{row},{at}]"]) == 0
    shown = capsys.readouterr().out
    weighed = shown.partition("weighed on the way by what was formed before the step")[2]
    assert f"advantages[{row}, {at}] = {advantages[row, at]:.6g}" in weighed
    for answer in range(row - row % 3, row - row % 3 + 3):
        assert f"rewards[{answer}] = {rewards[answer]:.6g}" in weighed
    assert f"reference_log_probabilities[{row}, {at}] = " in weighed
    assert main(["explain", str(run.path), f"policy_losses[{row},{at}]"]) == 0
    assert f"from ratios 1, advantages {advantages[row, at]:.6g}\n" in capsys.readouterr().out
    assert main(["trace", str(run.path), "--quantity", "advantages"]) == 0
    shown = capsys.readouterr().out
    assert "made by   group_advantages of rewards, mask" in shown
    assert "agreement ✓" in shown
    for name in ("mask", "rewards", "old_log_probabilities", "reference_log_probabilities"):
        assert main(["trace", str(run.path), "--quantity", name]) == 0
        assert "before the step, by the batch" in capsys.readouterr().out
    assert main(["explain", str(run.path), "pair_losses[0]"]) == 2
    assert "the step has no quantity 'pair_losses'" in capsys.readouterr().err


def test_judgements_that_are_all_alike_are_said(
    tuned: Callable[..., Run], records: Callable[[str], Path], base: Run, here: Path, capsys: pytest.CaptureFixture
) -> None:
    tuned("kto")
    assert "judged" not in capsys.readouterr().out.split("run  ")[0].replace("judged answers", "")
    alike = here / "alike.jsonl"
    alike.write_text(records("judged").read_text().replace("false", "true"))
    assert main(["tune", "kto", "base", str(alike), "--max-steps", "1", "--batch-size", "2", "--threads", "1"]) == 0
    said = capsys.readouterr().out
    assert "answers to train on are judged good: nothing holds what is learned of them against bad ones" in said
    assert "limpid trace" in said


def test_factors_beside_their_base_are_the_run_that_trained_them(tuned: Callable[..., Run]) -> None:
    run = tuned("sft", model={"lora_rank": 2}, update={"learning_rate": 0.05})
    assert main(["compare", f"base:lora={run.path / 'adapter'}", str(run.path)]) == 0


def test_rows_lead_back_to_their_records(tuned: Callable[..., Run]) -> None:
    found = rows_of_step(tuned("dpo"), 2)
    documents = [part.document for row in found.rows for part in row.parts]
    assert all(one.startswith("pairs.jsonl:") for one in (Path(document).name for document in documents))
    assert [document.rpartition(", ")[2] for document in documents] == ["chosen", "rejected"] * 4
    assert [chosen.split(",")[0] for chosen in documents[0::2]] == [other.split(",")[0] for other in documents[1::2]]


def test_what_a_run_held_out_is_what_verbs_take(tuned: Callable[..., Run]) -> None:
    run = tuned("sft")
    assert re.fullmatch(r"\d\+\d=", opening(run))
    assert limpid.inspect(run) is not None


def test_the_command_says_what_it_wants(
    base: Run, records: Callable[[str], Path], capsys: pytest.CaptureFixture
) -> None:
    pairs, answers, long = str(records("pairs")), str(records("answers")), "long.jsonl"
    Path(long).write_text('{"prompt": "1+1=", "completion": "' + 99 * "2" + '"}\n')
    for words, said in (
        ((), "tune wants an objective first: one of sft, dpo"),
        (("dop",), "tune wants an objective first, not 'dop'"),
        (("dpo", "base"), "tune dpo wants a model and records"),
        (("dpo", "base", pairs, "--init-from", "base"), "leave out --init-from"),
        (("dpo", "base", pairs, "--loss-type", "x"), "--loss-type is 'x': choose one of sigmoid"),
        (("sft", "base", pairs), "holds a pair, chosen and rejected, and answers are asked for: use limpid tune dpo"),
        (("sft", "base", pairs), "; or pass over such rows with --skip-bad-rows"),
        (("sft", "base", long, "--too-long", "refuse"), "shorten it; or raise --context-length, or leave such rows"),
        (("sft", "base", answers, "--lora", "--lora-rank", "0"), "--lora-rank is 0, which is without low-rank factors"),
        (("kto", "base", str(records("judged")), "--batch-size", "1"), "--batch-size is 1: kto compares"),
        (
            ("sft", "base", pairs, "--label-smoothing=0.1"),
            "--label-smoothing is an option of dpo, ipo",
        ),
        (("dpo", "base", pairs, "--resume", "x"), "leave out PATH (only --max-steps and --parallel may change)"),
    ):
        assert main(["tune", *words]) == 2
        error = capsys.readouterr().err
        assert said in error, error
        assert error.count("\n") == 1


@pytest.mark.parametrize("objective", ["kto", "grpo"])
@pytest.mark.parametrize("fraction", [0.1, 0.01])
def test_a_run_that_held_out_little_is_inspected(tuned: Callable[..., Run], objective: str, fraction: float) -> None:
    run = tuned(objective, data={"validation_fraction": fraction})
    structure = limpid.inspect(run).structure
    assert structure.neuron_positions > 0
    assert limpid.inspect(run, "1+2=").structure.sample.origin == "the given text"


def test_the_rows_of_a_copy_are_named_as_the_copy(tuned: Callable[..., Run], base: Run, here: Path) -> None:
    run = tuned("dpo")
    Path(shutil.copy(here / "pairs.jsonl", here / "copy.jsonl"))
    asked = {"run": {"max_steps": 1, "batch_size": 4, "threads": 1, "doctor": False}}
    copy = limpid.tune("dpo", base, here / "copy.jsonl", asked, "copied")
    for one, name in ((run, "pairs.jsonl"), (copy, "copy.jsonl")):
        assert {
            Path(part.document).name.partition(":")[0] for row in rows_of_step(one, 1).rows for part in row.parts
        } == {name}
    (here / "copy.jsonl").write_text("{}")  # no longer what it was
    assert rows_of_step(copy, 1).rows
