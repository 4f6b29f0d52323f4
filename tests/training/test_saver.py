"""Checkpoints written beside the training: whole or absent, of the state as it was, and their failure is heard."""

import errno
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.training.test_mesh import batches, with_rule
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

import limpid
from limpid.errors import CheckpointError
from limpid.files import explained
from limpid.run import Run
from limpid.training import checkpoint, saver
from limpid.training.mesh import Mesh
from limpid.training.saver import Saver
from limpid.training.state import State, fresh_state
from limpid.training.step import step
from small import config

CONFIG = with_rule("adamw")


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """No checkpoint is written before this is set."""
    allowed, write = threading.Event(), checkpoint.write

    def waits(*arguments: object) -> Path:
        assert allowed.wait(30)
        return write(*arguments)

    monkeypatch.setattr(saver, "write", waits)
    return allowed


def weights(state: State) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in state.model.parameters()]


def test_steps_go_on_while_a_checkpoint_is_written_and_do_not_reach_it(here: Path, held_up: threading.Event) -> None:
    Path("run").mkdir()
    run, state, writer = Run(Path("run")), fresh_state(CONFIG), Saver(Run(Path("run")), Mesh())
    step(state, batches(1)[0], CONFIG)
    before = weights(state)
    writer.begin(checkpoint.snapshot(state, CONFIG, "data"))
    step(state, batches(2)[1], CONFIG)
    assert writer.ended() is None
    assert run.checkpoint_steps() == []
    held_up.set()
    assert writer.wait() == 1
    assert writer.wait() is None  # told once
    resumed = fresh_state(CONFIG)
    checkpoint.load(run, 1, resumed, CONFIG)
    assert all(map(torch.equal, weights(resumed), before))
    assert not any(map(torch.equal, weights(state), before))
    writer.close()


def test_without_memory_for_a_copy_a_checkpoint_is_there_when_the_step_goes_on(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "available_memory", lambda: 0)
    monkeypatch.setattr(checkpoint.Snapshot, "copied", lambda _: pytest.fail("copied"))
    Path("run").mkdir()
    run, state = Run(Path("run")), fresh_state(CONFIG)
    writer = Saver(run, Mesh())
    writer.begin(checkpoint.snapshot(state, CONFIG, "data"))
    assert run.checkpoint_steps() == [0]
    assert writer.ended() == 0
    writer.close()


def failing_from(number: int) -> Callable[..., Path]:
    def write(run: Run, state: checkpoint.Snapshot, mesh: Mesh) -> Path:
        if state.step >= number:
            raise CheckpointError(f"cannot write {state.step}")
        return checkpoint.write(run, state, mesh)

    return write


def test_a_checkpoint_that_cannot_be_written_ends_the_run_soon(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saver, "write", failing_from(4))
    with pytest.raises(CheckpointError, match="cannot write 4"):
        limpid.train(config(data, max_steps=40, save_steps=2, eval_steps=0), "run")
    run = Run(Path("runs/run"))
    assert run.checkpoint_steps() == [0, 2]
    assert len(run.read_metrics().steps) <= 6  # heard of before the next one is begun


def test_a_checkpoint_that_cannot_be_written_at_the_end_is_an_error_too(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "write", failing_from(6))
    with pytest.raises(CheckpointError, match="cannot write 6"):
        limpid.train(config(data, max_steps=6, save_steps=0, eval_steps=0), "run")
    assert Run(Path("runs/run")).checkpoint_steps() == [0, 5]


def test_the_refusal_of_a_disk_that_another_process_met_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise CheckpointException("", {1: (OSError(errno.EFBIG, "File too large"), traceback.StackSummary())})

    monkeypatch.setattr(state_dict_saver, "save", full)
    with pytest.raises(CheckpointError, match=r"^cannot write it: File too large; "), explained("cannot write it"):
        checkpoint._write_tensors(Mesh(rank=0, world=2), tmp_path / "a.safetensors", {"a": torch.zeros(1)})
