"""A step is its run's, or it is said not to be: faults of the engine, of a replay, of what lies on the disk."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.numpy import load_file, save_file

import limpid
import limpid.data.batches
import limpid.training.checkpoint
import limpid.training.replay
from limpid.api import resume, train
from limpid.config import TrainConfig
from limpid.run import Run
from limpid.tracing import Trace, show_step
from limpid.tracing.document import WrittenCheck
from limpid.training.replay import record_past
from small import config, corpus


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIMPID_CACHE", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(threads)


def tiny(here: Path, **run) -> TrainConfig:
    model = {"context_length": 8, "d_model": 8, "num_layers": 1, "num_heads": 2, "d_ff": 8}
    chosen = {"max_steps": 6, "save_steps": 2, "save_total_limit": 0, "eval_steps": 0, "doctor": False}
    return config(corpus(here / "corpus", 3), model=model, **(chosen | run))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of six steps, its corpus and its tokens."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as there:
        there.chdir(folder)
        there.setenv("LIMPID_CACHE", str(folder / "cache"))
        train(tiny(Path()), "run")
    return folder


@pytest.fixture
def run(trained: Path, here: Path) -> Run:
    shutil.copytree(trained, here, dirs_exist_ok=True)
    return Run(Path("runs/run"))


def told(run: Run, step: int) -> tuple[WrittenCheck | None, list[str]]:
    """The first thing of a step that is not as the run wrote it down, and what could not be compared."""
    document = Trace.open(record_past(run, step), on_disk=False).step
    assert document.written is not None
    wrong = next((one for one in document.written.checks if not one.check.holds), None)
    if wrong is not None:
        assert not document.verdict.agrees
        assert document.verdict.first_disagreement == wrong.check
    return wrong, list(document.written.not_compared)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "fp64"])
def test_every_step_of_an_honest_run_is_its_own(precision: str, here: Path) -> None:
    run = train(tiny(here, precision=precision, gradient_accumulation_steps=2), "run")
    for step in (1, 4, 6):
        assert told(run, step) == (None, [])


def test_the_steps_before_a_run_was_extended_keep_their_rates(here: Path) -> None:
    run = train(tiny(here, max_steps=4), "run")
    before = told(run, 4)
    resume("run", 8)
    run.recorded_step(4).unlink()
    assert before == told(run, 4) == told(run, 6) == (None, [])


def test_targets_that_are_not_shifted_are_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unshifted(tokens, starts, length):
        windows = tokens[starts[:, None] + np.arange(length + 1)].astype(np.int64)
        arrays = {"tokens": windows[:, :-1], "targets": windows[:, :-1]}
        return limpid.data.batches.MicroBatch(arrays, tuple(int(start) for start in starts))

    monkeypatch.setattr(limpid.data.batches, "_cut", unshifted)
    run = train(tiny(here), "run")
    document = Trace.open(record_past(run, 3), on_disk=False).step
    assert document.verdict.first_disagreement.name == "targets"
    alone = here / "alone.safetensors"
    run.recorded_step(3).rename(alone)
    document = Trace.open(alone, on_disk=False).step
    assert (document.written, document.verdict.first_disagreement.name) == (None, "targets")


@pytest.mark.parametrize(
    ("shift", "found"), [("a token later", "rows"), ("another order", "rows"), ("tokens only", "tokens")]
)
def test_a_wrong_window_is_named(shift: str, found: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, starts = limpid.data.batches._cut, limpid.data.batches.Grid.starts
    match shift:
        case "a token later":
            monkeypatch.setattr(limpid.data.batches.Grid, "starts", lambda self, n: starts(self, n) + 1)
        case "another order":
            monkeypatch.setattr(limpid.data.batches.Grid, "starts", lambda self, n: starts(self, n + 1))
        case _:

            def other_tokens(tokens, starts, length):
                return replace(original(tokens, starts + 1, length), rows=tuple(starts.tolist()))

            monkeypatch.setattr(limpid.data.batches, "_cut", other_tokens)
    run = train(tiny(here), "run")
    wrong, _ = told(run, 3)
    assert wrong is not None
    assert wrong.check.name == found
    assert "by seed 0 and step 3" in wrong.written_in


def test_labels_left_out_by_the_engine_are_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = limpid.data.batches._cut

    def without_first_label(tokens, starts, length):
        micro = original(tokens, starts, length)
        targets = micro["targets"].copy()
        targets[:, 0] = -100
        return replace(micro, arrays={"tokens": micro["tokens"], "targets": targets})

    monkeypatch.setattr(limpid.data.batches, "_cut", without_first_label)
    wrong, _ = told(train(tiny(here), "run"), 2)
    assert wrong is not None
    assert (wrong.check.name, wrong.check.index) == ("targets", (0, 0))


@pytest.mark.parametrize(("step", "found", "place"), [
    (3, "m(blocks.0.attention.key.weight)", "000002/optimizer.safetensors, before the step"),
    (4, "loss", "metrics.jsonl, step 4"),
])  # fmt: skip
def test_a_replay_that_forgets_the_moments_is_noticed(
    step: int, found: str, place: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgotten(model, optimizer, update, moments, updates):
        write(model, optimizer, update, {name: torch.zeros_like(one) for name, one in moments.items()}, updates)

    write = limpid.training.checkpoint.write_moments
    monkeypatch.setattr(limpid.training.checkpoint, "write_moments", forgotten)
    wrong, _ = told(run, step)
    assert wrong is not None
    assert wrong.check.name == found
    assert wrong.written_in.endswith(place)


def flipped(run: Run, step: int, file: str) -> None:
    """One bit of a number of a checkpoint, with a manifest that knows nothing of it: a checkpoint of version 1."""
    folder = run.checkpoint(step)
    tensors = load_file(folder / file)
    array = next(array for name, array in sorted(tensors.items()) if np.abs(array).max() > 0)
    array.reshape(-1).view(np.uint32)[int(np.abs(array).argmax())] ^= 1 << 20
    save_file(tensors, folder / file)
    (folder / "manifest.json").unlink()
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(state | {"version": 1}))


@pytest.mark.parametrize(
    ("file", "step", "found", "at"),
    [
        ("model.safetensors", 3, ("loss", "grad_norm"), 3),
        ("model.safetensors", 4, ("replayed loss of step 3", "replayed grad_norm of step 3"), 3),
        ("optimizer.safetensors", 4, ("loss", "grad_norm"), 4),
    ],
)
def test_flipped_bits_of_a_checkpoint_are_noticed(
    file: str, step: int, found: tuple[str, ...], at: int, run: Run
) -> None:
    flipped(run, 2, file)
    wrong, _ = told(run, step)
    assert wrong is not None
    assert wrong.check.name in found
    assert wrong.written_in == f"metrics.jsonl, step {at}"


@pytest.mark.parametrize(
    ("lost", "found", "why"),
    [
        ("the moments", "loss", "moments, the number of updates or the learning rate were not restored"),
        ("the number of updates", "loss", "moments, the number of updates or the learning rate were not restored"),
        ("the weights", "replayed loss of step 5", "step 5 had other weights, rows or dropout masks"),
    ],
)
def test_what_a_checkpoint_does_not_bring_back_is_named(
    lost: str, found: str, why: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(tiny(here, max_steps=8, save_steps=4, precision="fp64"), "run")
    own = limpid.training.replay.open_run

    def forgetful(*arguments):
        training = own(*arguments)
        match lost:
            case "the moments":
                for state in training.state.optimizer.state.values():
                    state["exp_avg"].zero_()
            case "the number of updates":
                for state in training.state.optimizer.state.values():
                    state["step"] += 1
            case _:
                with torch.no_grad():
                    for parameter in training.state.model.parameters():
                        parameter.mul_(1.01)
        return training

    monkeypatch.setattr(limpid.training.replay, "open_run", forgetful)
    wrong, _ = told(run, 6)
    assert wrong is not None
    assert wrong.check.name == found
    assert why in wrong.way_out


def test_flipped_moments_right_before_the_step_are_noticed_after_it(run: Run) -> None:
    """Loss and norm do not depend on them; the weights of the next checkpoint do."""
    flipped(run, 5, "optimizer.safetensors")
    wrong, _ = told(run, 6)
    assert wrong is not None
    assert wrong.written_in.endswith("000006/model.safetensors, after the step")


def test_another_step_is_said_before_anything_else(run: Run) -> None:
    flipped(run, 2, "model.safetensors")
    out = StringIO()
    code = show_step(record_past(run, 3), console=Console(file=out, width=300))
    lines = out.getvalue().split("\n\n")
    assert code == 1
    assert lines[1].lstrip().startswith("NOT THE RUN'S STEP  ")
    assert "metrics.jsonl, step 3" in lines[1]
    assert "open it again" in lines[1]
    assert lines[-1].lstrip().startswith("NOT THE RUN'S STEP")


def test_other_arithmetic_is_held_to_rounding(run: Run) -> None:
    """A run of another PyTorch: a loss within rounding is no fault, one beyond it is; a long replay is not judged."""
    for at in run.checkpoint_steps():
        (run.checkpoint(at) / "manifest.json").unlink()
        state = json.loads((run.checkpoint(at) / "state.json").read_text())
        (run.checkpoint(at) / "state.json").write_text(json.dumps(state | {"version": 1, "torch": "1.0"}))
    text = run.metrics_file.read_text()

    def logged(step: int, factor: float) -> tuple[WrittenCheck | None, list[str]]:
        entries = [json.loads(line) for line in text.splitlines()]
        entries = [
            one | {"loss": one["loss"] * (factor if one["step"] == step else 1)} for one in entries if "loss" in one
        ]
        run.metrics_file.write_text("".join(json.dumps(one) + "\n" for one in entries))
        return told(run, step)

    wrong, left_out = logged(3, 1 + 1e-7)
    assert wrong is None
    assert "the run used PyTorch 1.0" in left_out[0]
    wrong, _ = logged(3, 1.01)
    assert wrong is not None
    assert wrong.check.name == "loss"
    wrong, left_out = logged(4, 1.01)
    assert wrong is None
    assert "after a replay of several steps" in left_out[0]


def test_what_is_gone_is_said_and_is_no_fault(run: Run) -> None:
    run.metrics_file.unlink()
    Path("corpus/00.txt").unlink()
    record_past(run, 3)
    shutil.rmtree("cache")
    document = Trace.open(run.recorded_step(3), on_disk=False).step
    assert document.verdict.agrees
    assert [line.split(":")[0] for line in document.written.not_compared] == [
        "the batch with the text",
        "loss and norm",
    ]


def test_a_step_that_was_opened_before_is_opened_without_torch(run: Run) -> None:
    limpid.trace(str(run.path), 3).document()
    code = "import sys; from limpid.cli import main; main(sys.argv[1:]); assert 'torch' not in sys.modules"
    opened = [sys.executable, "-c", code, "trace", str(run.path), "--step", "3"]
    assert "loss" in subprocess.run(opened, check=True, capture_output=True, text=True).stdout
