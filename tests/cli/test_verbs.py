"""The command line end to end: what a user types and sees."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from cli.typed import TINY, refused
from limpid.cli import main
from limpid.source import find_run
from small import WORDS


def test_training_says_where_everything_lies_and_what_to_type_next(
    there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "corpus", "--name", "told", "--max-steps", "3", "--doctor", "no", *TINY]) == 0
    shown = capsys.readouterr().out
    assert "findings.jsonl" not in shown  # nobody looked
    assert " of this process at most" in shown
    assert "doctor no" in shown
    prompt = re.search(r"limpid generate runs/told '(.+)'  ", shown)
    assert prompt is not None
    assert set(prompt[1].split()) <= set(WORDS)
    for word in (
        "runs/told/",
        "metrics.jsonl",
        "micro_batches.jsonl",
        "limpid trace runs/told",
        "limpid generate runs/told",
    ):
        assert word in shown
    for name in ("config.toml", "metrics.jsonl", "micro_batches.jsonl", "model/config.json", "model/model.safetensors"):
        assert (there / "runs/told" / name).is_file()


def test_the_plan_of_a_run_shows_what_its_process_held(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "small"]) == 0
    assert "process here" in capsys.readouterr().out
    assert main(["plan", "small", "--batch-size", "7"]) == 0
    assert "process here" not in capsys.readouterr().out  # which is of the run as it was


def test_low_rank_factors_are_trained_beside_the_weights_of_a_run(there: Path) -> None:
    begun = ["train", "corpus", "--init-from", "small", "--name", "adapted", *TINY[10:]]
    assert main([*begun, "--lora-rank", "2", "--lora-targets", "attention.*", "--max-steps", "2"]) == 0
    model = find_run("adapted").read_config().model
    assert (model.d_model, model.lora_rank, model.lora_targets) == (24, 2, ("attention.*",))


def test_a_run_is_opened_and_agrees(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "runs/small"]) == 0
    story = capsys.readouterr().out
    for word in ("attention.scores", "loss", "AdamW", "lie within their rounding bounds"):
        assert word.lower() in story.lower()


@pytest.mark.parametrize("step", [None, 1, 3, 8])
def test_any_step_is_one_json_document(there: Path, capsys: pytest.CaptureFixture[str], step: int | None) -> None:
    assert main(["trace", "runs/small", "--json", *(("--step", str(step)) if step else ())]) == 0
    document = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(f"JSON has no {word}"))
    assert document["step"] == (step or 8)
    assert document["verdict"]["agrees"]
    metrics = [json.loads(line) for line in (there / "runs/small/metrics.jsonl").read_text().splitlines()]
    loss = next(line["loss"] for line in metrics if line.get("step") == document["step"] and "loss" in line)
    assert document["loss"]["value"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("blocks.0.attention.scores", "blocks.0.attention.scores"),
        ("grad(blocks.1.mlp.up.weight)", "grad(blocks.1.mlp.up.weight)"),
        ("v(embed.tokens.weight)", "v(embed.tokens.weight)"),
        ("lm_head.weight", "embed.tokens.weight"),
        ("model.layers.1.self_attn.q_proj", "blocks.1.attention.query"),
        ("blocks.0.hook_resid_post", "blocks.0.residual2"),
    ],
)
def test_one_quantity_under_any_of_its_names(
    there: Path, capsys: pytest.CaptureFixture[str], asked: str, found: str
) -> None:
    assert main(["trace", "runs/small", "--quantity", asked, "--json"]) == 0
    document = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(f"JSON has no {word}"))
    assert document["name"] == found
    assert main(["trace", "runs/small", "--quantity", asked]) == 0
    assert found in capsys.readouterr().out


def test_generation_repeats_with_its_seed(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = []
    for _ in range(2):
        assert main(["generate", "runs/small", "the cat", "a ", "--json", "--max-new-tokens", "7", "--seed", "3"]) == 0
        made.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    assert made[0] == made[1]
    assert [one["prompt"] for one in made[0]] == ["the cat", "a "]


def test_a_run_goes_on_and_says_so_when_there_is_nothing_left(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "corpus", "--name", "more", "--max-steps", "4", *TINY]) == 0
    assert main(["train", "--resume", "runs/more"]) == 0
    assert "already at step 4 of 4: extend it with --max-steps 8" in capsys.readouterr().out
    assert main(["train", "--resume", "runs/more", "--max-steps", "6"]) == 0
    assert "--max-steps 5 lies before step 6" in refused(capsys, "train", "--resume", "runs/more", "--max-steps", "5")


def test_a_step_of_a_run_that_cannot_be_written_to_is_kept_elsewhere(there: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: "runs" not in str(path))
    assert "--step 6 --output FILE.safetensors" in refused(capsys, "trace", "small", "--step", "6")
    assert main(["trace", "small", "--step", "6", "--output", "elsewhere/sixth.safetensors"]) == 0
    assert main(["explain", "elsewhere/sixth.safetensors", "loss"]) == 0


def test_models_of_one_name_keep_their_steps_apart(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("a", "b"):
        shutil.copytree("runs/small/model", f"{folder}/same", dirs_exist_ok=True)
        assert main(["trace", f"{folder}/same", "--text", "the cat"]) == 0
    files = re.findall(r"kept in (\S+);", capsys.readouterr().err)
    assert len(set(files)) == 2
    assert main(["explain", files[0], "logits[0, 0, 1]"]) == 0
    assert "limpid trace a/same --text" in refused(capsys, "explain", "a/same", "logits")


def test_a_model_whose_weights_diverged_ends_without_a_traceback(there: Path, capsys) -> None:
    """Every float16 update was skipped or absurd: training ends, and sampling says why it cannot."""
    words = "train corpus --name nan --max-steps 6 --precision fp16 --learning-rate 300 --warmup-steps 0"
    sizes = "--tokenizer bytes --context-length 16 --max-grad-norm none --d-model 64 --num-heads 4 --num-layers 2"
    assert main([*words.split(), *sizes.split()]) in (0, 1)
    capsys.readouterr()
    assert main(["generate", "nan", "x"]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err
    assert main(["explain", "nan", "logits"]) == 0
    assert main(["explain", "nan", "blocks.0.mlp.up.weight"]) == 0


def test_waiting_threads_sleep_soon_unless_somebody_said_otherwise(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    for policy, spins in ((None, "4000"), ("active", None)):
        for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
            monkeypatch.delenv(name, raising=False)
        if policy is not None:
            monkeypatch.setenv("OMP_WAIT_POLICY", policy)
        main(["--version"])
        assert os.environ.get("GOMP_SPINCOUNT") == spins
