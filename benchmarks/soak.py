"""Whether memory, file handles, threads and speed stay flat: python -m benchmarks.soak --minutes 10 [train|grpo].

A training with evaluation, samples and checkpoints, or a tuning on its own answers, is watched from outside, once a
second. Reported is the slope of each over the time after the first fifth, as a share of its level in an hour and over
the time watched, with its 95% interval: neighbouring seconds are no independent measurements, so it is that of the
slopes between the means of blocks (batch means), by Student's t.

Whether speed was lost is told by turns at the end: a process that resumes the run's newest checkpoint, and the old one,
take 100 steps each, the other stopped, and processor times per step are compared in pairs. What others do on the
machine in an hour is no part of that.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
from scipy import stats

BLOCKS = 10
"""Means that a line is fitted to."""
WARM = 0.2
"""Share of the time that is left out: caches fill, kernels are compiled."""
MACHINE = ["--precision", "fp32", "--threads", "1", "--compile", "off", "--name", "soaked"]
MODEL = ["--tokenizer", "bytes", "--context-length", "64", "--d-model", "64", "--num-layers", "2", "--num-heads", "4"]
TURN = 100
"""Steps of a turn: as many evaluations, samples and checkpoints in each."""
OFTEN = ["--save-steps", "50", "--eval-steps", "50", "--max-steps", "1000000"]
TRAIN = ["train", "text.txt", *MODEL, *OFTEN, *MACHINE, "--sample-steps", "100", "--ema-decay", "0.99"]
BASE = ["train", "text.txt", *MODEL, *MACHINE[:-1], "base", "--max-steps", "20"]
GRPO = ["tune", "grpo", "runs/base", "asked.jsonl", "--reward", "rewards.py:brief", *OFTEN, *MACHINE]
GRPO += ["--num-generations", "4", "--max-completion-length", "16", "--batch-size", "4"]
REWARD = "def brief(prompts, completions, **rest):\n    return [float(text.count('e')) for text in completions]\n"


def lay(folder: Path) -> None:
    """What both read."""
    line = "the quick brown fox sees a lazy dog near the river and says hello"
    (folder / "text.txt").write_text("\n".join(f"{number} {line}" for number in range(20_000)))
    (folder / "asked.jsonl").write_text("".join(json.dumps({"prompt": f"{n} the quick"}) + "\n" for n in range(200)))
    (folder / "rewards.py").write_text(REWARD)


def watch(process: psutil.Process, metrics: Path, seconds: float) -> dict[str, np.ndarray]:
    """Resident memory, handles, threads, the processor's time in seconds and the last step, once a second."""
    seen: dict[str, list[float]] = {"at": [], "memory": [], "handles": [], "threads": [], "processor": [], "step": []}
    began = time.time()
    while time.time() - began < seconds and process.is_running():
        seen["at"].append(time.time())
        seen["memory"].append(process.memory_info().rss)
        seen["handles"].append(process.num_fds())
        seen["threads"].append(process.num_threads())
        seen["processor"].append(sum(process.cpu_times()[:2]))
        seen["step"].append(last_step(metrics))
        time.sleep(1)
    return {name: np.array(values) for name, values in seen.items()}


def last_step(metrics: Path) -> int:
    """The last whole line's, without reading the others."""
    with metrics.open("rb") as stream:
        stream.seek(max(0, metrics.stat().st_size - (1 << 16)))
        lines = [line for line in stream.read().splitlines(keepends=True) if line.endswith(b"\n")]
    return int(json.loads(lines[-1])["step"]) if lines else 0


def slope(at: np.ndarray, values: np.ndarray) -> tuple[float, float, float]:
    """Mean level, change per second, and half of its 95% interval, from the means of blocks."""
    times, levels = (np.array([part.mean() for part in np.array_split(one, BLOCKS)]) for one in (at, values))
    if np.ptp(levels) == 0:
        return float(levels.mean()), 0.0, 0.0
    line = stats.linregress(times, levels)
    return float(levels.mean()), line.slope, line.stderr * stats.t.ppf(0.975, BLOCKS - 2)


def processor_speed(seen: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Times, and steps per second of the processor's time between them: what other programs take does not count."""
    parts = np.array_split(np.arange(len(seen["at"])), min(5 * BLOCKS, len(seen["at"])))
    ends = np.array([0, *(part[-1] for part in parts)])
    taken, spent = np.diff(seen["step"][ends]), np.diff(seen["processor"][ends])
    return seen["at"][ends[1:]], taken / spent


def speed(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Seconds after the start, and tokens per second by the clock, of each step."""
    lines = [json.loads(line) for line in (folder / "runs/soaked/metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "tokens_per_second" in line]
    return np.cumsum([line["seconds"] for line in steps]), np.array([line["tokens_per_second"] for line in steps])


def turn(process: psutil.Process, metrics: Path) -> float:
    """Seconds of the processor's time per step, of the next 100 steps of a stopped process; it is stopped again."""
    process.send_signal(signal.SIGCONT)
    began, spent = 0, 0.0
    while process.is_running():
        step, now = last_step(metrics), sum(process.cpu_times()[:2])
        if not began:
            began, spent = step + 1, 0.0
        elif step >= began and not spent:
            began, spent = step, now
        elif spent and step >= began + TURN:
            process.send_signal(signal.SIGSTOP)
            return (now - spent) / (step - began)
        time.sleep(0.01)
    raise SystemExit("the process ended in its turn")


def against_fresh(old: psutil.Process, folder: Path, words: list[str], pairs: int) -> None:
    """Steps of the old process and of one that resumes its newest checkpoint, by turns."""
    old.send_signal(signal.SIGSTOP)
    beside = folder / "beside"
    shutil.copytree(folder, beside, ignore=shutil.ignore_patterns("beside", "*.lock"))
    again = [sys.executable, "-m", "limpid", words[0], "--resume", "soaked"]
    environment = os.environ | {"LIMPID_CACHE": str(beside / "cache"), "OMP_NUM_THREADS": "1"}
    with (folder / "said again").open("wb") as said:
        child = subprocess.Popen(again, cwd=beside, env=environment, stdout=said, stderr=said)
    fresh, ours, theirs = psutil.Process(child.pid), *(one / "runs/soaked/metrics.jsonl" for one in (folder, beside))
    began = last_step(theirs)
    while last_step(theirs) < began + TURN and child.poll() is None:
        time.sleep(0.1)
    if child.poll() is not None:
        raise SystemExit((folder / "said again").read_text())
    fresh.send_signal(signal.SIGSTOP)
    times = np.array([(turn(old, ours), turn(fresh, theirs)) for _ in range(pairs)])
    ratios = np.log(times[:, 1] / times[:, 0])
    half = ratios.std(ddof=1) / np.sqrt(pairs) * stats.t.ppf(0.975, pairs - 1)
    print(
        f"old process against a fresh one: speed {100 * np.expm1(ratios.mean()):+.2f}% ± {100 * half:.2f}% "
        f"({pairs} pairs of {TURN} steps, {1e3 * times[:, 0].mean():.1f} ms of the processor's time a step)"
    )
    fresh.send_signal(signal.SIGCONT)
    child.terminate()
    child.wait()
    old.send_signal(signal.SIGCONT)


def report(name: str, at: np.ndarray, values: np.ndarray, unit: str) -> None:
    """A line: the level, and its change over the time watched."""
    kept = at - at[0] >= WARM * (at[-1] - at[0])
    level, rate, half = slope(at[kept], values[kept])
    span = at[kept][-1] - at[kept][0]
    print(
        f"{name:12s} {level:14,.4g} {unit:9s} {100 * rate * span / level:+7.2f}% ± {100 * half * span / level:.2f}% in "
        f"{span / 60:.1f} minutes"
    )


def soak(words: list[str], minutes: float, pairs: int) -> None:
    """Start it, watch it, end it as a user would, and report."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lay(folder)
        environment = os.environ | {"LIMPID_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
        limpid = [sys.executable, "-m", "limpid"]
        if words is GRPO:
            subprocess.run([*limpid, *BASE], cwd=folder, env=environment, check=True, capture_output=True)
        with (folder / "said").open("wb") as said:
            child = subprocess.Popen([*limpid, *words], cwd=folder, env=environment, stdout=said, stderr=said)
        while not (folder / "runs/soaked/metrics.jsonl").is_file() and child.poll() is None:
            time.sleep(0.5)
        seen = watch(psutil.Process(child.pid), folder / "runs/soaked/metrics.jsonl", 60 * minutes)
        if pairs:
            against_fresh(psutil.Process(child.pid), folder, words, pairs)
        child.terminate()
        if child.wait() != 130:
            raise SystemExit((folder / "said").read_text())
        at, rates = speed(folder)
        print(f"limpid {words[0]} {words[1]}: {len(at):,} steps")
        for what, unit in (("memory", "bytes"), ("handles", ""), ("threads", "")):
            report(what, seen["at"], seen[what], unit)
        report("speed", at, rates, "tokens/s")
        report("of processor", *processor_speed(seen), "steps/s")


def main() -> None:
    parser = argparse.ArgumentParser(description="Whether memory, file handles, threads and speed stay flat.")
    parser.add_argument("what", nargs="*", default=["train", "grpo"], choices=["train", "grpo"])
    parser.add_argument("--minutes", type=float, default=10.0, help="of each")
    parser.add_argument("--pairs", type=int, default=12, help="turns of the old process and of a fresh one at the end")
    given = parser.parse_args()
    for what in given.what:
        soak({"train": TRAIN, "grpo": GRPO}[what], given.minutes, given.pairs)


if __name__ == "__main__":
    main()
