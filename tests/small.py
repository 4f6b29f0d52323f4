"""A corpus and a configuration so small that a whole run takes a second."""

import dataclasses
import random
from pathlib import Path

from limpid.config import DataConfig, ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.files import cache_folder
from limpid.reporter import SILENT, Reporter

WORDS = "the cat dog bird tree river stone sees hears finds small old green and or not über naïve".split()  # noqa: SIM905

KERNELS = cache_folder() / "native"
"""The user's, named by their text: whatever cache a test has, they are compiled once on a machine."""


def share_kernels(cache: Path) -> Path:
    """An empty cache, but for the kernels of C++."""
    for folder in (cache, KERNELS):
        folder.mkdir(parents=True, exist_ok=True)
    (cache / "native").symlink_to(KERNELS.absolute())
    return cache


def corpus(folder: Path, documents: int = 12) -> Path:
    """A folder of text files, made of few words."""
    random.seed(5)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(documents):
        lines = (" ".join(random.choices(WORDS, k=7)) for _ in range(40))
        (folder / f"{number:02d}.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


def config(data: Path, *, model: dict | None = None, update: dict | None = None, **run) -> TrainConfig:
    """Two layers of width 24 on bytes, in float32 on one thread."""
    sizes = {"context_length": 16, "d_model": 24, "num_layers": 2, "num_heads": 3, "d_ff": 40}
    chosen = {"max_steps": 12, "batch_size": 3, "eval_steps": 5, "save_steps": 4, "precision": "fp32", "threads": 1}
    return TrainConfig(
        ModelConfig(**(sizes | (model or {}))),
        DataConfig(paths=(str(data),), tokenizer="bytes"),
        UpdateConfig(**({"warmup_steps": 3} | (update or {}))),
        RunConfig(**(chosen | run)),
    )


def quiet() -> Reporter:
    """Shows nothing."""
    return SILENT


def replaced(config: TrainConfig, **run) -> TrainConfig:
    """The same with other run options."""
    return dataclasses.replace(config, run=dataclasses.replace(config.run, **run))
