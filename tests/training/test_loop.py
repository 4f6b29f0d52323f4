"""Training from the outside: what a run leaves behind, and that stopping and going on changes nothing."""

import errno
import io
import json
import math
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from limpid.console import Console
from limpid.errors import CheckpointError, ConfigError
from limpid.reporter import Reporter
from limpid.run import Run
from limpid.source import find_run
from limpid.training.loop import Diverged, Interrupted, finish, loop
from limpid.training.replay import replay
from limpid.training.start import Training, resume, start
from limpid.training.state import State
from limpid.training.step import step
from small import config, quiet, replaced


def sampler(*_) -> str:
    return ""


def trained(configuration, name: str = "run") -> Run:
    training = start(configuration, name, quiet())
    loop(training, quiet(), sampler)
    return training.run


def metrics(run: Run) -> list[dict]:
    return [json.loads(line) for line in run.metrics_file.read_text().splitlines()]


def losses(run: Run) -> dict[int, float]:
    return {entry["step"]: entry["loss"] for entry in metrics(run) if "loss" in entry}


def checkpoint_bytes(run: Run, number: int) -> list[bytes]:
    return [(run.checkpoint(number) / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")]


def started(configuration, name: str, number: int, happening: Callable[[Run], None]) -> Training:
    """A run at its start, to which something will happen during step `number`."""
    training = start(configuration, name, quiet())
    before = training.batches.batch

    def batch(asked: int, state: State):
        if asked == number:
            happening(training.run)
        return before(asked, state)

    training.batches.batch = batch
    return training


def interrupted_after(configuration, number: int, name: str, by: int = signal.SIGINT) -> Run:
    """A run that is asked to end during step `number`."""
    training = started(configuration, name, number, lambda run: os.kill(os.getpid(), by))
    with pytest.raises(Interrupted):
        loop(training, quiet(), sampler)
    return training.run


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_whatever_asks_it_to_end_everything_is_saved(data: Path, by: int) -> None:
    run = interrupted_after(config(data), 7, "run", by)
    assert run.latest_checkpoint() == 7
    assert max(losses(run)) == 7
    assert signal.getsignal(by) is signal.SIG_DFL


def test_a_hang_up_that_nohup_ignores_ends_nothing(data: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        loop(started(config(data), "run", 7, lambda run: os.kill(os.getpid(), signal.SIGHUP)), quiet(), sampler)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert find_run("run").latest_checkpoint() == 12


@pytest.mark.parametrize("why", [errno.EIO, errno.EPIPE])
def test_a_run_whose_console_is_gone_is_saved_and_ends(data: Path, why: int) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(why, os.strerror(why))

    training = start(config(data), "run", quiet())
    with pytest.raises(Interrupted):
        loop(training, Reporter(console=Console(file=Gone())), sampler)
    assert training.run.latest_checkpoint() == 5  # the first line that it could not show


@pytest.mark.parametrize("gone", [lambda run: shutil.rmtree(run.path), lambda run: run.path.rename("elsewhere")])
def test_a_run_whose_folder_is_gone_ends_and_makes_no_other(data: Path, gone: Callable[[Run], None]) -> None:
    with pytest.raises(CheckpointError, match=r"runs/run is gone: it was moved or deleted.*resume it where"):
        loop(started(config(data, save_steps=0), "run", 6, gone), quiet(), sampler)  # nothing is being written then
    assert not Path("runs/run").exists()
    if Path("elsewhere").exists():
        loop(resume(Run(Path("elsewhere"))), quiet(), sampler)
        assert sorted(losses(Run(Path("elsewhere")))) == list(range(1, 13))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"update": {"optimizer": "momentum"}},
        {"update": {"optimizer": "sgd", "max_grad_norm": None}},
        {"update": {"optimizer": "adam"}, "gradient_accumulation_steps": 2},
        {"model": {"dropout": 0.25}},
        {"precision": "bf16"},
        {"precision": "fp16"},
        {"precision": "fp64"},
    ],
    ids=str,
)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(data: Path, options: dict) -> None:
    configuration = config(data, **options)
    whole = trained(configuration, "whole")
    broken = interrupted_after(configuration, 7, "broken")
    assert broken.latest_checkpoint() == 7
    loop(resume(broken, None, quiet()), quiet(), sampler)
    assert losses(broken) == losses(whole)
    assert checkpoint_bytes(broken, 12) == checkpoint_bytes(whole, 12)
    assert broken.micro_batches_file.read_text() == whole.micro_batches_file.read_text()


def test_a_run_can_be_extended(data: Path) -> None:
    constant = {"schedule": "constant"}
    short, long = (
        trained(config(data, update=constant), "short"),
        trained(config(data, update=constant, max_steps=17), "long"),
    )
    loop(resume(short, 17, quiet()), quiet(), sampler)
    assert losses(short) == losses(long)
    assert short.read_config().run.max_steps == 17


def test_a_run_cannot_be_cut_short_by_resuming_it(data: Path) -> None:
    run = trained(config(data))
    with pytest.raises(ConfigError, match="max_steps 5 lies before step 12"):
        resume(run, 5, quiet())


def test_the_model_learns(data: Path) -> None:
    run = trained(config(data, max_steps=60, update={"learning_rate": 1e-2}))
    seen = losses(run)
    assert seen[60] < 0.6 * seen[1]
    assert seen[1] == pytest.approx(math.log(257), rel=0.05)


def test_metrics_carry_the_names_that_dashboards_look_for(data: Path) -> None:
    entries = metrics(trained(config(data)))
    first = next(entry for entry in entries if "loss" in entry)
    assert {"train/loss", "train/grad_norm", "train/learning_rate", "grad_norm_before_clip", "grad_norm_after_clip",
            "epoch", "num_tokens", "tokens_per_second", "peak_share"} <= first.keys()  # fmt: skip
    judged = [entry for entry in entries if "eval_loss" in entry]
    assert [entry["step"] for entry in judged] == [5, 10, 12]
    assert {"val/loss", "val/bpb"} <= judged[0].keys()


def test_the_micro_batches_lead_from_a_step_to_its_rows(data: Path) -> None:
    run = trained(config(data, gradient_accumulation_steps=2))
    lines = [json.loads(line) for line in run.micro_batches_file.read_text().splitlines()]
    assert len(lines) == 24
    training = replay(run, 12)
    rows = [list(micro.rows) for micro in training.batches.batch(12)]
    assert [line["rows"] for line in lines[-2:]] == rows
    mean = sum(line["loss"] * line["labels"] for line in lines[-2:]) / sum(line["labels"] for line in lines[-2:])
    assert mean == pytest.approx(losses(run)[12], rel=1e-6)


def test_a_replayed_step_has_the_loss_that_was_logged(data: Path) -> None:
    run = trained(config(data, model={"dropout": 0.1}))
    for number in (3, 4, 5, 12):
        training = replay(run, number)
        assert training.state.step == number - 1
        assert step(training.state, training.batches.batch(number), training.config).loss == losses(run)[number]


@pytest.mark.parametrize("number", [0, -3, 13, 10**9])
def test_a_step_outside_the_run_is_refused_with_its_bounds(data: Path, number: int) -> None:
    with pytest.raises(CheckpointError, match=rf"step {number} lies outside the run.*1 … 12"):
        replay(trained(config(data)), number)


@pytest.mark.parametrize("what", ["nan", "inf"])
def test_a_number_that_is_not_finite_breaks_the_run_off_before_the_update(data: Path, what: str) -> None:
    training = start(config(data), "run", quiet())
    before = training.batches.batch

    def batch(asked: int, state: State):
        if asked == 6:
            with torch.no_grad():
                training.state.model.final_norm.weight[3] = float(what)
        return before(asked, state)

    training.batches.batch = batch
    with pytest.raises(Diverged) as caught:
        loop(training, quiet(), sampler)
    assert caught.value.step == 6
    last = metrics(training.run)[-1]
    assert last["non_finite"]
    assert last["updated"] is False
    assert training.run.latest_checkpoint() == 5


def test_fp16_skips_a_step_that_overflows_and_lowers_its_scale(data: Path) -> None:
    run = trained(config(data, precision="fp16", max_steps=30))
    entries = [entry for entry in metrics(run) if "loss" in entry]
    assert all(math.isfinite(float(entry["loss"])) for entry in entries)
    scales = [entry["loss_scale"] for entry in entries]
    for entry, following in zip(entries, scales[1:], strict=False):
        assert entry["updated"] or following < entry["loss_scale"]


def test_old_checkpoints_go_but_the_first_and_the_one_before_the_last_step_stay(data: Path) -> None:
    run = trained(config(data, max_steps=30, save_steps=4, save_total_limit=2))
    assert run.checkpoint_steps() == [0, 24, 28, 29, 30]


def test_a_run_starts_from_another_runs_weights(data: Path) -> None:
    first = trained(config(data), "first")
    second = start(config(data, init_from=str(first.path)), "second", quiet())
    ours = torch.cat([p.flatten() for p in second.state.model.parameters()])
    theirs = torch.cat([p.flatten() for p in replay(first, 12).state.model.parameters()])
    training = resume(first, None, quiet())
    assert torch.equal(ours, torch.cat([p.flatten() for p in training.state.model.parameters()]))
    assert not torch.equal(ours, theirs)


def test_a_model_that_had_dropout_is_not_continued_without_a_word(data: Path) -> None:
    first = trained(config(data, max_steps=1, model={"dropout": 0.25}), "first")
    weights = start(config(data), "weights", quiet())
    finish(weights)
    said = json.loads((weights.run.model_folder / "config.json").read_text())
    (weights.run.model_folder / "config.json").write_text(json.dumps(said | {"attention_dropout": 0.25}))
    for number, source in enumerate((first.path, weights.run.model_folder)):
        shown = io.StringIO()
        start(config(data, init_from=str(source)), f"next{number}", Reporter(console=Console(file=shown, width=200)))
        assert "has dropout 0.25, this run 0: --dropout sets it" in shown.getvalue()


def test_accumulated_micro_batches_equal_one_large_batch(data: Path) -> None:
    """The same rows, in one piece or in three, in float64."""
    whole = start(config(data, batch_size=6, precision="fp64"), "whole", quiet())
    parts = start(config(data, batch_size=2, gradient_accumulation_steps=3, precision="fp64"), "parts", quiet())
    for number in range(1, 6):
        one = step(whole.state, whole.batches.batch(number), whole.config)
        three = step(parts.state, parts.batches.batch(number), parts.config)
        assert three.loss == pytest.approx(one.loss, rel=1e-12)
        assert three.grad_norm == pytest.approx(one.grad_norm, rel=1e-10)


def test_a_run_without_transformers_equivalent_says_why(data: Path) -> None:
    training = start(replaced(config(data, model={"positions": "sinusoidal"}), max_steps=1), "run", quiet())
    loop(training, quiet(), sampler)
    assert "sinusoidal" in (finish(training) or "")
