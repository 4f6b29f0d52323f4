"""Folders of runs that nobody trained."""

import json
from collections.abc import Iterable
from pathlib import Path

import small
from limpid.config import TrainConfig
from limpid.run import Run


def config(folder: Path) -> TrainConfig:
    return small.config(folder / "text", model={"vocab_size": 257})


def made_run(folder: Path, name: str, steps: int = 0, losses: Iterable[float] | None = None) -> Run:
    """A run with a line of metrics for each step."""
    run = Run(folder / name)
    run.path.mkdir(parents=True)
    run.write_config(config(folder), config(folder))
    every = list(losses) if losses is not None else [5.0 / (1 + 0.1 * step) for step in range(1, steps + 1)]
    add_steps(run, 1, every)
    return run


def line(step: int, loss: float, **others: object) -> str:
    """A line as training writes it."""
    plain = {
        "step": step, "loss": loss, "grad_norm_before_clip": 1.0 + loss, "learning_rate": 1e-3, "num_tokens": 48 * step,
        "seconds": 0.25, "tokens_per_second": 192.0, "peak_share": 0.1, "updated": True, "train/loss": loss,
    }  # fmt: skip
    return json.dumps(plain | others) + "\n"


def add_steps(run: Run, first: int, losses: Iterable[float]) -> None:
    with run.metrics_file.open("a") as file:
        for step, loss in enumerate(losses, first):
            file.write(line(step, loss))
