"""limpid's own runs as subjects: on text, on pairs (DPO), on prompts (GRPO); on one process, and on two by torchrun."""

import json
import os
import random
import re
import shutil
import sys
from collections.abc import Mapping
from contextlib import chdir, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.endurance.process import Disturbance, Ended
from benchmarks.endurance.subject import Difference, Work, lines_before

from limpid.api import train
from limpid.cli import main
from limpid.run import Run

STEPS, SAVE_EVERY = 24, 3
TIMED = {"seconds", "tokens_per_second", "peak_share", "process_peak_bytes"}
"""What metrics say of the machine."""
TIMEOUT = 30
"""Seconds that processes wait for one another; torchrun leaves one that is stopped its own 30 after that."""
NONE_LEFT = "holds no other checkpoint that is whole"
"""What is said of a run whose only checkpoint is damaged: it is to be trained again."""
TUNED_FROM = "and what it was tuned from"
"""What is said of a damaged tokenizer of which the model before tuning has a copy."""
WORDS = ("the", "cat", "dog", "bird", "tree", "river", "sees", "likes", "near", "a")


def flags(**options: object) -> list[str]:
    """Options as they are typed."""
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]


SIZES = {"context_length": 16, "d_model": 24, "num_layers": 2, "num_heads": 3, "d_ff": 40}
MACHINE = {"precision": "fp32", "threads": 1, "compile": "off"}
TRAIN = flags(
    max_steps=STEPS, save_steps=SAVE_EVERY, eval_steps=6, sample_steps=12, ema_decay=0.9, dropout=0.1, name="run"
)
TUNE = flags(max_steps=12, save_steps=3, eval_steps=4, batch_size=4, name="run")
REWARD = "def brief(prompts, completions, **rest):\n    return [float(text.count('e')) for text in completions]\n"
ALONE = ["train", "text.txt", *flags(tokenizer="bytes", batch_size=4, **SIZES, **MACHINE), *TRAIN]
BESIDE = flags(max_steps=STEPS // 2, timeout=TIMEOUT)
COMMANDS = {
    "train": ALONE,
    "two": [*ALONE, *BESIDE],
    "stages": [*ALONE, *BESIDE, *flags(parallel="pipeline=2", dropout=0)],
    "dpo": ["tune", "dpo", "runs/base", "pairs.jsonl", *flags(**MACHINE), *TUNE],
    "grpo": [
        *("tune", "grpo", "runs/base", "asked.jsonl", *flags(**MACHINE), *TUNE),
        *flags(reward="rewards.py:brief", num_generations=4, max_completion_length=6),
    ],
}


def sentences(count: int) -> list[str]:
    """Text of few words, always the same."""
    rng = random.Random(7)
    return [" ".join(rng.choices(WORDS, k=6)) for _ in range(count)]


def torchrun(work: Work, processes: int) -> Work:
    """The same on several processes, started by torchrun's own agent; forked, which spares them the imports."""

    def launch(disturbance: Disturbance) -> int:
        from torch.distributed.elastic.multiprocessing import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id="endurance",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            start_method="fork",
            max_restarts=0,
            monitor_interval=0.1,
        )
        try:
            elastic_launch(config, _worker)(work, disturbance)
        except ChildFailedError as failed:
            return max(1, *(failure.exitcode for failure in failed.failures.values()))  # as torchrun: 1 for a signal
        except SignalException:  # torchrun's own, once its processes have ended
            return 1
        return 0

    return launch


def _worker(work: Work, disturbance: Disturbance) -> None:
    with disturbance.watching(int(os.environ["RANK"])):
        code = work(disturbance)
    if code:
        sys.exit(int(str(code)))


@dataclass(frozen=True)
class LimpidRun:
    """One command of limpid, resumed as it says itself."""

    name: str = "train"
    processes: int = 1
    one_line_errors: bool = True
    changed: Mapping[str, object] = field(default_factory=dict)
    """Options that are not those of the command."""

    def lay(self, folder: Path) -> None:
        """Text, pairs, prompts and a reward."""
        (folder / "text.txt").write_text("\n".join(sentences(400)))
        lines = [line[:7] for line in sentences(60)]
        keys = ("prompt", "chosen", "rejected")
        pairs = (dict(zip(keys, three, strict=True)) for three in zip(lines, lines[20:], lines[40:], strict=False))
        (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
        (folder / "asked.jsonl").write_text("".join(json.dumps({"prompt": line}) + "\n" for line in lines[:16]))
        (folder / "rewards.py").write_text(REWARD)
        with chdir(folder):  # in this process: what is loaded on the way need not be loaded by every forked one
            data, run = {"paths": ("text.txt",), "tokenizer": "bytes"}, {**MACHINE, "max_steps": 3, "batch_size": 4}
            train({"data": data, "model": SIZES, "run": run}, "base")

    def command(self, *words: str) -> Work:
        """A command line."""

        def one(disturbance: Disturbance) -> int:
            with disturbance.watching() if self.processes == 1 else nullcontext():
                return main(words)

        return one if self.processes == 1 else torchrun(one, self.processes)

    def begin(self) -> Work:
        return self.command(*COMMANDS[self.name], *flags(**self.changed))

    def again(self, folder: Path, ended: Ended) -> Work | None:
        """Resume it; from what a refusal names, checkpoint or copy; begin again where no run came to be."""
        if ended.code == 2 and (named := re.findall(r"\bruns/run@\d+", ended.said)):
            return self.command("train", "--resume", named[-1])
        if ended.code in (1, 2) and (copies := re.findall(r"`cp (\S+) (\S+)`", ended.said)):
            shutil.copyfile(*(folder / name for name in copies[-1]))
        if ended.code == 2 and TUNED_FROM in ended.said:
            shutil.copyfile(folder / "runs/base/tokenizer.json", folder / "runs/run/tokenizer.json")
        if ended.code == 2 and NONE_LEFT in ended.said:
            shutil.rmtree(folder / "runs" / "run", ignore_errors=True)  # a deleted folder is gone already
        if (folder / "runs" / "run" / "config.toml").is_file():
            return self.command("train", "--resume", "runs/run")
        return self.begin()

    def _run(self, folder: Path) -> Run:
        return Run(folder / "runs" / "run")

    def _newest(self, folder: Path) -> int | None:
        return max(self._run(folder).checkpoint_steps(), default=None)

    def checkpoint(self, folder: Path) -> list[Path]:
        newest = self._newest(folder)
        return [] if newest is None else [*self._run(folder).checkpoint(newest).iterdir()]

    def logs(self, folder: Path) -> dict[Path, int]:
        run, newest = self._run(folder), self._newest(folder)
        files = (run.metrics_file, run.micro_batches_file, run.samples_file)
        return {file: lines_before(file, newest or 0, _step_of) for file in files if file.is_file()}

    def steps(self, folder: Path) -> tuple[int, int]:
        metrics = self._run(folder).read_metrics().steps
        return (metrics[-1]["step"] if metrics else 0), self._newest(folder) or 0

    def differences(self, folder: Path, whole: Path) -> list[Difference]:
        ours, theirs = self._run(folder), self._run(whole)
        last = theirs.latest_checkpoint()
        named = [Path("samples.jsonl"), Path("micro_batches.jsonl"), Path("model/model.safetensors")]
        named += [file.relative_to(theirs.path) for file in sorted(theirs.checkpoint(last).iterdir())]
        found = []
        for name in named:
            if not (theirs.path / name).is_file():
                continue
            if not (ours.path / name).is_file():
                found.append(Difference("missing", str(name)))
            elif (ours.path / name).read_bytes() != (theirs.path / name).read_bytes():
                found.append(Difference("different", str(name)))
        measured, expected = (_untimed(run.metrics_file) for run in (ours, theirs))
        if len(measured) != len(expected):
            found.append(Difference("missing", f"metrics.jsonl: {len(measured)} of {len(expected)} lines"))
        elif measured != expected:
            found.append(Difference("different", "metrics.jsonl"))
        return found


def _step_of(line: bytes) -> int | None:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return None


def _untimed(file: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, file.read_text().splitlines()) if file.is_file() else ()
    return [{name: value for name, value in line.items() if name not in TIMED} for line in lines]
