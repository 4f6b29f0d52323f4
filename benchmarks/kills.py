"""Kill a training at random moments, resume it, and count what was lost: python benchmarks/kills.py [KILLS].

A process is killed (SIGKILL) while it starts, trains, saves, resumes or ends; the next one goes on. A run that ends is
compared with one that was never killed, and another begins, until there were enough kills.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from limpid.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from limpid.errors import LimpidError
from limpid.lock import released_after
from limpid.reporter import SILENT
from limpid.run import Run
from limpid.source import find_run
from limpid.training.loop import finish, loop
from limpid.training.start import resume, start

STEPS, SAVE_EVERY = 160, 3
COUNTED = (
    "runs that could not be opened",
    "checkpoints lost",
    "checkpoints damaged",
    "steps missing or twice in metrics.jsonl",
    "losses that differ",
    "final weights that differ",
    "model/ that differs",
    "lines that could not be read",
)


def configuration(text: Path) -> TrainConfig:
    """A model so small that saving takes most of the time: most kills hit a file that is being written."""
    return TrainConfig(
        ModelConfig(context_length=16, d_model=24, num_layers=2, num_heads=3, d_ff=40),
        DataConfig(paths=(str(text),), tokenizer="bytes"),
        run=RunConfig(
            max_steps=STEPS,
            batch_size=3,
            save_steps=SAVE_EVERY,
            eval_steps=20,
            precision="fp32",
            threads=1,
            doctor=False,
        ),
    )


def train(config: TrainConfig, name: str) -> None:
    """A run from where it stands to its end."""
    with released_after():
        known = (Path("runs") / name / "config.toml").is_file()
        training = resume(find_run(name)) if known else start(config, name)
        loop(training, SILENT, lambda *_: "")
        finish(training)


def in_a_child(work: Callable[[], None]) -> int:
    """Process id of a child that does `work`; forking spares it the seconds of importing."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(f"  child: {error!r}", flush=True)
            os._exit(1)
        os._exit(0)
    return child


def losses(run: Run) -> list[tuple[int, float]]:
    """Step and loss of every line of metrics, in the order of the file."""
    entries = (json.loads(line) for line in run.metrics_file.read_text().splitlines())
    return [(entry["step"], entry["loss"]) for entry in entries if "loss" in entry]


def look(run: Run, newest: int, lost: Counter[str]) -> int:
    """Count what a kill did to a run; returns its newest checkpoint."""
    if not run.config_file.is_file():
        return newest
    try:
        run.read_config()
        at = run.latest_checkpoint()
        run.read_state(at)
        run.verify(at, "model.safetensors", "optimizer.safetensors")
    except LimpidError as error:
        print(f"  {error}", flush=True)
        lost["checkpoints damaged" if "damaged" in str(error) else "runs that could not be opened"] += 1
        return newest
    lost["checkpoints lost"] += at < newest
    return at


def judge(run: Run, whole: Run, lost: Counter[str]) -> None:
    """Count where a run that was killed ended otherwise than one that was not."""
    found, expected = losses(run), losses(whole)
    lost["steps missing or twice in metrics.jsonl"] += abs(len(found) - len(expected))
    lost["losses that differ"] += sum(value != dict(expected)[step] for step, value in found)
    lost["lines that could not be read"] += len([*run.path.glob("*.unreadable")])
    for where, what in (
        (Path("checkpoints") / f"{STEPS:06d}", "final weights that differ"),
        (Path("model"), "model/ that differs"),
    ):
        ours, theirs = ((one.path / where / "model.safetensors").read_bytes() for one in (run, whole))
        lost[what] += ours != theirs


def main(kills: int) -> None:
    """Kill, resume, count."""
    random.seed(0)
    folder = Path(tempfile.mkdtemp(prefix="limpid-kills-"))
    os.chdir(folder)
    os.environ["LIMPID_CACHE"] = str(folder / "cache")
    text = folder / "text.txt"
    text.write_text(
        "\n".join(" ".join(random.choices(["the", "cat", "dog", "bird", "tree", "river"], k=7)) for _ in range(500))
    )
    config, lost, done, finished, newest = configuration(text), Counter[str](), 0, 0, -1
    began = time.monotonic()
    assert os.waitpid(in_a_child(lambda: train(config, "whole")), 0)[1] == 0
    takes = time.monotonic() - began
    run = Run(Path("runs/killed"))
    while done < kills or not finished:
        child = in_a_child(lambda: train(config, "killed"))
        if done < kills:
            time.sleep(random.uniform(0.0, takes / 3))
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status) and status != 0:
            lost["runs that could not be opened"] += 1
            break
        done += os.WIFSIGNALED(status)
        newest = look(run, newest, lost)
        if status == 0:
            judge(run, find_run("whole"), lost)
            shutil.rmtree(run.path)
            newest, finished = -1, finished + 1
    print(f"{done} kills in {finished} runs of {STEPS} steps, a checkpoint every {SAVE_EVERY} steps")
    for what in COUNTED:
        print(f"{lost[what]:6d}  {what}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
