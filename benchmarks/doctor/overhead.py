"""What the doctor costs while everything is fine: step time and memory with and without it, the sides in turn.

python -m benchmarks.doctor.overhead [--steps 100] [--model default] [--compiled] [--table docs/doctor.md]

llama     a 10.7M-parameter Llama (transformers) on the text of the benchmark, 8 × 256 tokens, float32, its loop
default   what `limpid train` trains when nothing is said, 2.6M parameters on 16 × 128 tokens of the text it comes with
own       a run of limpid's own of 10.7M parameters, 64 × 256 tokens of that text, bytes

Each side is a process of its own, for what the doctor wraps is wrapped for a whole process; they take steps in turn,
and one waits while the other works. The doctor looks closer at some steps than at others, so two numbers: the median
over steps, and the sum over a run from its very first step, which holds the examination and the closer looks; these
become rarer, so that a longer run has less of both. Memory is the largest resident set of each process, on a GPU
(where LIMPID_BENCHMARK_DEVICE is cuda) the most that its tensors held there.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch
from benchmarks.doctor.__main__ import write_table
from benchmarks.doctor.loop import Loop
from benchmarks.doctor.settings import Settings

import limpid

BEGIN, END = "<!-- overhead: python -m benchmarks.doctor.overhead -->", "<!-- end of overhead -->"
FIRST = 10
"""Steps in the beginning that every side takes: allocations, compilation, and the doctor's first looks."""
HEAP = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=4294967296"}
"""The heap keeps what was freed, on both sides. By itself the C library begins to once large arrays were freed, as the
examination's are: a watched loop would then be 3 to 8 ms a step faster than the other."""
TURN = 10
"""Steps that a side takes in a row: at the first of them the caches are full of the other's numbers."""
MODELS = ("llama", "default", "own", "small")
Step = Callable[[int], None]


def llama(options: argparse.Namespace, *, doctor: bool) -> Step:
    """The loop of the benchmark, watched or not."""
    width, blocks, heads, positions = (64, 2, 2, 64) if options.model == "small" else (384, 6, 6, 256)
    loop = Loop(
        "llama", 0, Settings(width=width, blocks=blocks, heads=heads, positions=positions, rows=8, steps=10_000)
    )
    loop.prepare()
    if options.compiled:
        loop.model = torch.compile(loop.model)  # type: ignore[assignment]
    watching: Any = None

    def step(number: int) -> None:
        nonlocal watching
        if doctor and watching is None:
            watching = limpid.watch(loop.model, loop.optimizer, scheduler=loop.scheduler, say=False)
        loop.number = number
        loss, batches = loop.step()
        if doctor:
            watching.step(loss, batches[0])
        float(loss)

    return step


OWN: dict[str, dict[str, Any]] = {
    "data": {"tokenizer": "bytes"},
    "model": {"d_model": 384, "num_layers": 6, "num_heads": 6, "context_length": 256},
    "run": {"batch_size": 64},
}
"""What is not as by default in a run of 10.7M parameters."""


def own(options: argparse.Namespace, *, doctor: bool) -> Step:
    """A run of limpid's own; what it writes to the disk beside its steps is left out."""
    from limpid.config import TrainConfig
    from limpid.config.options import from_dict
    from limpid.diagnose import attend
    from limpid.training.start import start
    from limpid.training.step import begin_next
    from limpid.training.step import step as train_step

    os.chdir(tempfile.mkdtemp())
    asked = OWN if options.model == "own" else {}
    run = {"max_steps": options.steps, "compile": "on" if options.compiled else "off", **asked.get("run", {})}
    training = start(from_dict(TrainConfig, {**asked, "run": run}), None)
    watching: Any = None
    upcoming = training.batches.batch(1, training.state)

    def step(number: int) -> None:
        nonlocal watching
        if doctor and watching is None:
            watching = attend(training, False)
        nonlocal upcoming
        batch = upcoming
        looked_into = doctor and watching.looks_inside
        outcome = train_step(training.state, batch, training.config, training.objective, looked_into=looked_into)
        upcoming = training.batches.batch(number + 1, training.state)
        if doctor:
            watching.step(outcome.loss, batch, outcome.metrics)
        else:
            begin_next(training.state, upcoming)

    return step


def work(options: argparse.Namespace) -> None:
    """One side: takes a step when asked for it, and says how many seconds it took; at the end the MiB that it held."""
    step = (own if options.model in ("default", "own") else llama)(options, doctor=options.side == "with")
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        step(int(line))
        print(time.perf_counter() - began, flush=True)
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    print(
        torch.cuda.max_memory_allocated() / 2**20
        if on_gpu
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    )


class Side:
    """A process that takes steps of one side."""

    def __init__(self, options: argparse.Namespace, side: str) -> None:
        command = [sys.executable, "-m", "benchmarks.doctor.overhead", "--side", side, "--model", options.model]
        command += ["--steps", str(options.steps), *["--compiled"] * options.compiled]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **HEAP}
        )
        self.ask, self.told = _opened(self.process.stdin), _opened(self.process.stdout)
        self.taken: dict[int, float] = {}
        if self.told.readline() != "ready\n":
            raise SystemExit(f"the side {side} did not start")

    def step(self, number: int) -> None:
        self.ask.write(f"{number}\n")
        self.ask.flush()
        self.taken[number] = float(self.told.readline())

    def end(self) -> float:
        """The most that it held, MiB."""
        self.ask.close()
        held = float(self.told.readline())
        self.process.wait()
        return held


def _opened(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def measure(options: argparse.Namespace) -> dict[str, Any]:
    without, watched = Side(options, "without"), Side(options, "with")
    turns = random.Random(0)
    for first in range(1, options.steps + 1, TURN):
        for side in turns.sample((without, watched), 2):
            for number in range(first, min(first + TURN, options.steps + 1)):
                side.step(number)
    held = without.end(), watched.end()
    settled = range(FIRST + 1, options.steps + 1)
    begun = [sum(side.taken[number] for number in range(1, FIRST + 1)) for side in (without, watched)]
    sides = {"without": without.taken, "with": watched.taken}
    ratios = [watched.taken[number] / without.taken[number] for number in settled]
    quarter = statistics.quantiles(ratios, n=4)
    return {
        "model": NAMES[options.model] + (", compiled" if options.compiled else ""),
        "steps": options.steps,
        "ms without, median": 1e3 * statistics.median(without.taken[number] for number in settled),
        "ms with, median": 1e3 * statistics.median(watched.taken[number] for number in settled),
        "ratio, median": statistics.median(ratios),
        "ratio, middle half": [quarter[0], quarter[2]],
        "seconds of the first steps": begun[1] - begun[0],
        "ratio of a run": sum(watched.taken.values()) / sum(without.taken.values()),
        "threads": torch.get_num_threads(),
        "MiB without": held[0],
        "MiB with": held[1],
        "ms of every step": {side: [1e3 * s for s in taken.values()] for side, taken in sides.items()},
    }


NAMES = {
    "llama": "10.7M Llama, 8 × 256 tokens",
    "default": "limpid's default, 2.6M, 16 × 128 tokens",
    "own": "limpid's 10.7M, 64 × 256 tokens",
    "small": "0.1M Llama, 8 × 64 tokens",
}


def table(found: list[dict[str, Any]]) -> str:
    lines = [
        "| model | ms/step without | with | ratio, median (middle half) | first ten steps | a run of so many steps | "
        "memory |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in found:
        low, high = one["ratio, middle half"]
        lines.append(
            f"| {one['model']} | {one['ms without, median']:.0f} | {one['ms with, median']:.0f} | "
            f"{one['ratio, median']:.3f} ({low:.3f} … {high:.3f}) | {one['seconds of the first steps']:+.1f} s | "
            f"{one['steps']:,}: {one['ratio of a run']:.3f} | {one['MiB with'] / one['MiB without'] - 1:+.1%} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--model", choices=MODELS, default="llama")
    parser.add_argument("--compiled", action="store_true", help="measure the compiled model")
    parser.add_argument("--side", choices=("with", "without"), help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="a list that what was found is added to")
    parser.add_argument("--table", type=Path, help="a document that all of that list is written into")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if options.side:
        work(options)
        return
    found = json.loads(options.json.read_text()) if options.json and options.json.is_file() else []
    found.append(measure(options))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    if options.table:
        write_table(options.table, table(found), BEGIN, END)
    print(table(found))


if __name__ == "__main__":
    main()
