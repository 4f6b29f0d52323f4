"""The sizes and the recipe of one small run: what a fault and its healthy twin have in common."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import torch

DEVICE = "LIMPID_BENCHMARK_DEVICE"
"""Variable of the environment that says where runs take place: cpu or cuda."""


@dataclass(frozen=True)
class Settings:
    """A run of a few seconds on one core. Its defaults train a byte-level model on text."""

    vocab: int = 256  # bytes
    width: int = 64
    blocks: int = 4
    heads: int = 2  # 32 features each
    key_heads: int | None = None  # None is as many as heads
    positions: int = 64  # tokens per row
    rows: int = 8  # per micro-batch
    micro_batches: int = 1
    steps: int = 80
    rate: float = 1e-3
    warmup: int = 10
    decay: float = 0.1
    eps: float = 1e-8
    clip: float | None = 1.0
    dropout: float = 0.0
    tied: bool = False
    rotary: bool = False  # of the plain model only: the others have their own positions
    scaled: bool = False  # float16 loss scaling
    initial_scale: float = 65536.0
    storage: torch.dtype = torch.float32
    averaging: str = "ddp"  # of several processes, or "by hand"
    text: str = "text"  # which stream of tokens, see data.py
    labels: str = "all"  # "few" as in instruction tuning, "uneven" over micro-batches, "documents" with padding
    pretrained_steps: int = 0  # start from weights trained for so long
    device: str = field(default_factory=lambda: os.environ.get(DEVICE, "cpu"))

    @property
    def labels_per_step(self) -> int:
        return self.rows * self.positions * self.micro_batches
