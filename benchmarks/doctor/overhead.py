"""What the doctor costs while everything is fine: step time and memory with and without it, the sides in turn.

python -m benchmarks.doctor.overhead [--steps 100] [--rows 8] [--compiled] [--table docs/doctor.md]

A 10.7M-parameter Llama (transformers) trains on the text of the benchmark, float32, the loop of the benchmark. Both
sides take the same steps, one after the other, first one then the other; the ratio is formed step by step. The doctor
looks closer at some steps than at others, so two numbers: the median over steps, and the sum over all of them, which
holds the closer looks. Memory is the largest resident set of a process of its own per side.
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from benchmarks.doctor.__main__ import write_table
from benchmarks.doctor.loop import Loop
from benchmarks.doctor.settings import Settings

import limpid

BEGIN, END = "<!-- overhead: python -m benchmarks.doctor.overhead -->", "<!-- end of overhead -->"
WARM = 5
"""Steps before the clock starts: allocations, compilation, and the doctor's first look."""


class Side:
    """One of the two loops that take turns."""

    def __init__(self, options: argparse.Namespace, *, doctor: bool) -> None:
        width, blocks, positions = (64, 2, 64) if options.small else (384, 6, 256)
        settings = Settings(
            width=width, blocks=blocks, heads=6 if not options.small else 2, positions=positions, rows=options.rows,
            steps=10_000,
        )  # fmt: skip
        self.loop = Loop("llama", 0, settings)
        self.loop.prepare()
        if options.compiled:
            self.loop.model = torch.compile(self.loop.model)
        self.doctor: Any = None
        if doctor:
            self.doctor = limpid.watch(self.loop.model, self.loop.optimizer, scheduler=self.loop.scheduler, say=False)

    def step(self, number: int) -> float:
        start = time.perf_counter()
        self.loop.number = number
        loss, batches = self.loop.step()
        if self.doctor is not None:
            self.doctor.step(loss, batches[0])
        float(loss)
        return time.perf_counter() - start


def times(options: argparse.Namespace) -> dict[str, list[float]]:
    sides = {"without": Side(options, doctor=False), "with": Side(options, doctor=True)}
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(WARM + options.steps):
        order = list(sides.items())
        for name, side in order if number % 2 else reversed(order):
            seconds = side.step(number)
            if number >= WARM:
                taken[name].append(seconds)
    return taken


def memory(options: argparse.Namespace, side: str) -> float:
    """Largest resident set in MiB of a process that runs one side alone."""
    command = [sys.executable, "-m", "benchmarks.doctor.overhead", "--alone", side, "--steps", "25"]
    command += ["--rows", str(options.rows)] + ["--small"] * options.small
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def alone(options: argparse.Namespace) -> float:
    side = Side(options, doctor=options.alone == "with")
    for number in range(options.steps):
        side.step(number)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(options: argparse.Namespace) -> dict[str, Any]:
    taken = times(options)
    ratios = [b / a for a, b in zip(taken["without"], taken["with"], strict=True)]
    quarter = statistics.quantiles(ratios, n=4)
    held = {side: memory(options, side) for side in ("without", "with")} if not options.compiled else {}
    return {
        "model": f"10.7M Llama, {options.rows} × 256 tokens{', compiled' if options.compiled else ''}",
        "steps": options.steps,
        "ms without, median": 1e3 * statistics.median(taken["without"]),
        "ms with, median": 1e3 * statistics.median(taken["with"]),
        "ratio, median": statistics.median(ratios),
        "ratio, middle half": [quarter[0], quarter[2]],
        "ratio of sums": sum(taken["with"]) / sum(taken["without"]),
        "threads": torch.get_num_threads(),
        "MiB without": held.get("without"),
        "MiB with": held.get("with"),
    }


def table(found: list[dict[str, Any]]) -> str:
    lines = ["| model | ms/step without | with | ratio, median (middle half) | ratio of sums | memory |"]
    lines += ["|---|---|---|---|---|---|"]
    for one in found:
        low, high = one["ratio, middle half"]
        grown = f"{one['MiB with'] / one['MiB without'] - 1:+.1%}" if one["MiB with"] else ""
        lines.append(
            f"| {one['model']} | {one['ms without, median']:.0f} | {one['ms with, median']:.0f} | "
            f"{one['ratio, median']:.3f} ({low:.3f} … {high:.3f}) | {one['ratio of sums']:.3f} | {grown} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--compiled", action="store_true", help="measure the compiled model too")
    parser.add_argument(
        "--small", action="store_true", help="a model of a tenth of a million parameters, to try this out"
    )
    parser.add_argument("--alone", choices=("with", "without"), help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if options.alone:
        options.compiled = False
        print(alone(options))
        return
    compiled, options.compiled = options.compiled, False
    found = [measure(options)]
    if compiled:
        options.compiled = True
        found.append(measure(options))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    if options.table:
        write_table(options.table, table(found), BEGIN, END)
    print(table(found))


if __name__ == "__main__":
    main()
