"""A tiny run under an engine, one of its steps opened from the command line, and the numbers that came of it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  teaches NumPy the name bfloat16
import numpy as np
from benchmarks.robustness.bugs_patch import Tree
from benchmarks.robustness.bugs_settings import Setting, flags
from safetensors.numpy import load_file

OWN_BATCHES = Path(__file__).with_name("bugs_own_batches.py")
TIMEOUT = 900.0  # seconds
BEYOND_ROUNDING = 10.0
"""A bug bites when it moves a number this many times as far as one unit in the last place of the weights does."""

Numbers = dict[str, np.ndarray]


class RunError(Exception):
    """Training broke down: there is no step to open."""


@dataclass(frozen=True)
class Opened:
    """What `limpid trace` said of a step."""

    agrees: bool
    crashed: bool
    exits: tuple[int, int]
    """Exit codes: of --json, of the text."""
    named: str
    """The first thing named: NAME (forward), NAME (backward), NAME (update), or a sentence; empty when all agrees."""
    said: str
    """The line of the text that gives the verdict."""


def limpid(tree: Tree, folder: Path, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """A command line of the package in `tree`."""
    return python(tree, folder, ["-m", "limpid", *words])


def python(tree: Tree, folder: Path, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": str(tree.path),
        "LIMPID_CACHE": str(folder.parent / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder.parent / "compiled"),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "NO_COLOR": "1",
        "COLUMNS": "400",
    }
    command = [sys.executable, *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )


def take(tree: Tree, setting: Setting, folder: Path, step: int) -> tuple[Opened, Numbers]:
    """Train as the setting says, open the step, read what was computed.

    Raises  RunError when training left nothing that could be opened
    """
    folder.mkdir(parents=True)
    if setting.way == "own":
        file = folder / "own.safetensors"
        options = json.dumps({**setting.own, "step": step})
        _require(python(tree, folder, [str(OWN_BATCHES), str(file), options]), file)
        return opened(tree, folder, [file.name]), numbers_of_step(file)
    run = folder / "run"
    corpus = folder.parent / ("few.jsonl" if setting.short else "documents.jsonl")
    options_here = dict(setting.options)
    if setting.way == "resumed":
        options_here["max-steps"] = setting.options["max-steps"] // 2
    trained = limpid(tree, folder, ["train", str(corpus), *flags(options_here), "--name", str(run)])
    if setting.way == "resumed":
        _require(trained, run / "config.toml")
        trained = limpid(
            tree, folder, ["train", "--resume", str(run), "--max-steps", str(setting.options["max-steps"])]
        )
    _require(trained, run / "config.toml")
    answer = opened(tree, folder, [str(run), "--step", str(step)])
    return answer, numbers_of_run(run) | numbers_of_step(run / "steps" / f"{step:06d}.safetensors")


def opened(tree: Tree, folder: Path, words: Sequence[str]) -> Opened:
    """`limpid trace`, once for programs and once for people."""
    document, text = limpid(tree, folder, ["trace", *words, "--json"]), limpid(tree, folder, ["trace", *words])
    verdict: Mapping[str, Any] | None = None
    with contextlib.suppress(ValueError, KeyError, TypeError):
        verdict = json.loads(document.stdout)["verdict"]
    exits = (document.returncode, text.returncode)
    agrees = exits == (0, 0) and verdict is not None and bool(verdict.get("agrees"))
    crashed = "Traceback" in document.stderr + text.stderr or (verdict is None and exits == (0, 0))
    said = said_by(text.stdout, text.stderr)
    return Opened(agrees, crashed, exits, "" if agrees else named_first(verdict, said), said)


def named_first(verdict: Mapping[str, Any] | None, said: str) -> str:
    """What the document names first; where it names nothing, the sentence of the text."""
    for key in ("first_disagreement", "origin", "first"):
        first = None if verdict is None else verdict.get(key)
        if isinstance(first, Mapping) and first.get("name"):
            return f"{first['name']} ({first['kind']})" if first.get("kind") else str(first["name"])
        if isinstance(first, str) and first:
            return first
    return said


def said_by(stdout: str, stderr: str) -> str:
    """The line of the verdict; else the last thing that was said."""
    lines = [line.strip() for line in stdout.splitlines() if line.strip()]
    words = ("DISAGREES", "NOT FINITE", "agrees", "holds", "first at")
    verdicts = [line for line in lines if line.startswith(words)]
    errors = [line.strip() for line in stderr.splitlines() if line.strip()]
    return (verdicts or errors[-1:] or lines[-1:] or [""])[0]


def numbers_of_run(run: Path) -> Numbers:
    """Losses of every step, and the weights of the newest checkpoint."""
    numbers: Numbers = {}
    for line in (run / "metrics.jsonl").read_text("utf-8").splitlines():
        entry = json.loads(line)
        if "loss" in entry:
            numbers[f"loss of step {entry['step']}"] = np.array(float(entry["loss"]))
    newest = sorted((run / "checkpoints").glob("[0-9]*"))[-1]
    weights = load_file(newest / "model.safetensors")
    return numbers | {f"{name} after step {int(newest.name)}": tensor for name, tensor in weights.items()}


def numbers_of_step(file: Path) -> Numbers:
    """Loss and new parameters of a recorded step."""
    if not file.is_file():
        return {}
    tensors = load_file(file)
    return {
        f"{name} of the opened step": tensor
        for name, tensor in tensors.items()
        if name == "fast/loss" or (name.startswith("after/") and not name.startswith(("after/m/", "after/v/")))
    }


def bite(broken: Numbers, honest: Numbers, rounding: Numbers) -> tuple[float, str]:
    """How far a bug moves the number that it moves furthest, in what rounding moves it; and which number that is."""
    worst, where = 0.0, "nothing"
    for name in honest:
        right, noisy = honest[name].astype(np.float64), rounding[name].astype(np.float64)
        if name not in broken or broken[name].shape != right.shape:
            return math.inf, f"{name} is missing"
        wrong = broken[name].astype(np.float64)
        if not np.array_equal(np.isfinite(wrong), np.isfinite(right)):
            return math.inf, f"{name} is not finite"
        finite = np.isfinite(wrong) & np.isfinite(right) & np.isfinite(noisy)
        moved = float(np.linalg.norm((wrong - right)[finite]))
        least = float(np.finfo(np.float32).eps) * float(np.linalg.norm(right[finite]))
        unit = max(float(np.linalg.norm((noisy - right)[finite])), least, 1e-30)
        if moved / unit > worst:
            worst, where = moved / unit, name
    return worst, where


def _require(done: subprocess.CompletedProcess[str], file: Path) -> None:
    """Training may end with a verdict of its own (a loss that is not finite), but not with a traceback."""
    if "Traceback" in done.stderr or not file.exists():
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:] or ["nothing was written"]
        raise RunError(f"training broke down: {last[0].strip()}")
