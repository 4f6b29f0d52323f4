"""Killed without warning, again and again: never an unreadable run, never a lost checkpoint, never another number."""

import json
import os
import random
import resource
import shutil
import signal
import time
from pathlib import Path

from limpid.errors import CheckpointError
from limpid.run import Run
from limpid.source import find_run
from limpid.training.loop import loop
from limpid.training.start import resume, start
from small import config, quiet

KILLS = 6
"""A hundred of them: benchmarks/kills.py."""


def sampler(*_) -> str:
    return ""


def in_a_child(work) -> int:
    """Process id of a child that does `work`; forking spares it the seconds of importing."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return child


def losses(run: Run) -> dict[int, float]:
    entries = (json.loads(line) for line in run.metrics_file.read_text().splitlines())
    return {entry["step"]: entry["loss"] for entry in entries if "loss" in entry}


def test_kills_change_nothing(data: Path) -> None:
    configuration = config(data, max_steps=40, save_steps=2, eval_steps=20)

    def whole() -> None:
        loop(start(configuration, "whole", quiet()), quiet(), sampler)

    def work() -> None:
        known = (Path("runs") / "killed" / "config.toml").is_file()
        training = resume(find_run("killed"), None, quiet()) if known else start(configuration, "killed", quiet())
        loop(training, quiet(), sampler)

    began = time.monotonic()
    assert os.waitpid(in_a_child(whole), 0)[1] == 0
    takes = time.monotonic() - began
    random.seed(1)
    committed, kills, finished = -1, 0, 0
    while kills < KILLS or finished < 1:
        child = in_a_child(work)
        if kills < KILLS:
            time.sleep(random.uniform(0.0, takes / 4))
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        assert os.WIFSIGNALED(status) or status == 0
        kills += os.WIFSIGNALED(status)
        run = Run(Path("runs") / "killed")
        if run.config_file.is_file():
            run.read_config()
            assert run.latest_checkpoint() >= committed
            committed = run.latest_checkpoint()
        if status == 0:
            assert losses(run) == losses(find_run("whole"))
            last = [(find_run(name).checkpoint(40) / "model.safetensors").read_bytes() for name in ("killed", "whole")]
            assert last[0] == last[1]
            shutil.rmtree(run.path)
            committed, finished = -1, finished + 1


def test_a_refused_write_is_one_line_and_loses_nothing(data: Path) -> None:
    """The system refuses files beyond a size, as a full disk would; then there is room again."""
    configuration = config(data, max_steps=9, save_steps=3)
    said = Path("said")

    def cramped() -> None:
        training = start(configuration, "run", quiet())
        limit = (training.run.checkpoint(0) / "model.safetensors").stat().st_size // 2
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            loop(training, quiet(), sampler)
        except CheckpointError as error:
            said.write_text(str(error))

    assert os.waitpid(in_a_child(cramped), 0)[1] == 0
    assert "cannot write runs/run/checkpoints/000003" in said.read_text()
    assert "\n" not in said.read_text()
    run = find_run("run")
    assert run.checkpoint_steps() == [0]
    loop(resume(run, None, quiet()), quiet(), sampler)
    whole = start(configuration, "whole", quiet())
    loop(whole, quiet(), sampler)
    assert losses(run) == losses(whole.run)
