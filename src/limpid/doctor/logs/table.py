"""A log as a table of numbers by step, and what the field's tools call them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

NAMES = {
    "loss": (
        "train/loss",
        "train_loss",
        "loss",
        "training_loss",
        "train loss",
        "losses/train",
        "lm loss",
        "train/lm_loss",
        "loss_metrics/global_avg_loss",
        "train_loss_step",
        "train/loss_step",
        "objective/loss",
        "loss/train",
        "cross_entropy",
        "ce_loss",
        "nll_loss",
        "lm_loss",
    ),
    "eval_loss": (
        "eval_loss",
        "eval/loss",
        "val/loss",
        "val_loss",
        "val loss",
        "validation_loss",
        "valid_loss",
        "valid/loss",
        "validation loss",
        "test_loss",
        "loss/val",
        "lm loss validation",
    ),
    "grad_norm": (
        "grad_norm",
        "train/grad_norm",
        "grad_norm_before_clip",
        "gradient_norm",
        "norm",
        "grad norm",
        "gnorm",
        "train/gradient_norm",
        "grad_norm/total",
        "grad-norm",
    ),
    "learning_rate": (
        "learning_rate",
        "train/learning_rate",
        "lr",
        "train/lr",
        "lr-adamw",
        "optim/lr",
        "train/lrm",
        "learning-rate",
        "learning rate",
        "lr/group_0",
    ),
    "loss_scale": ("loss_scale", "loss-scale", "scale", "train/loss_scale", "loss scale", "scaler"),
    "epoch": ("epoch", "train/epoch"),
    "accuracy": ("mean_token_accuracy", "train/accuracy", "accuracy", "acc", "train/mean_token_accuracy"),
    "seconds": ("seconds", "dt", "train/dt", "time", "step_time"),
}
SUMMARIES = ("train_runtime", "train_samples_per_second")
"""Names that mark a line about the whole run: its loss is a mean, no step's."""
FOLDERS = ("metrics/", "scalars/", "logs/", "log/", "data/", "stats/")
"""What stands before a name and says nothing."""


def spelled(name: object) -> str:
    """A name without capitals, spaces and what tools put before it: `Val. Loss` and `val-loss` are val_loss."""
    plain = re.sub(r"[\s_.\-]+", "_", str(name).strip().lower()).strip("_")
    for folder in FOLDERS:
        plain = plain.removeprefix(folder)
    return plain


SPELLINGS = {ours: tuple(dict.fromkeys(map(spelled, theirs))) for ours, theirs in NAMES.items()}
TRANSLATION = {theirs: ours for ours, all_names in SPELLINGS.items() for theirs in all_names}
STEPS = ("step", "global_step", "iter", "iteration", "train/global_step", "trainer/global_step", "steps", "it")
"""What a step is called, as `spelled`."""


@dataclass
class Curves:
    """What a record says, as lists of (step, value)."""

    source: str
    kind: str
    series: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)  # steps as they were written, to see restarts
    vocab: int | None = None
    max_steps: int | None = None
    max_grad_norm: float | None = None
    notes: list[str] = field(default_factory=list)
    unknown: dict[str, None] = field(default_factory=dict)  # names of numbers that say nothing to us, in order

    def add(self, step: int, entry: Iterable[tuple[str, Any]]) -> None:
        """One line of the record."""
        taken = False
        for name, value in entry:
            ours = TRANSLATION.get(spelled(name))
            number = as_number(value)
            if ours is None or number is None:
                continue
            points = self.series.setdefault(ours, [])
            if not (points and points[-1][0] == step and taken and ours == "loss"):
                points.append((step, number))
            taken = taken or ours in ("loss", "learning_rate", "grad_norm")
        if taken and (not self.order or self.order[-1] != step):
            self.order.append(step)

    def values(self, name: str) -> list[float]:
        return [value for _, value in self.series.get(name, [])]

    @property
    def steps(self) -> list[int]:
        return [step for step, _ in self.series.get("loss", [])]


def fill(curves: Curves, entries: Iterable[dict[str, Any]]) -> None:
    """Take in lines that name their numbers; the steps count from 1 where none are given."""
    doubled: dict[str, list[str]] = {}
    for number, entry in enumerate(entries, 1):
        plain = {spelled(name): value for name, value in entry.items() if as_number(value) is not None}
        if any(name in plain for name in SUMMARIES):
            continue
        step = next((as_number(value) for name, value in plain.items() if name in STEPS), None)
        for ours, names in SPELLINGS.items():
            there = [name for name in names if name in plain]
            values = {as_number(plain[name]) for name in there}
            if ours in ("loss", "eval_loss") and len({value for value in values if value == value}) > 1:
                doubled[ours] = there
        curves.unknown |= dict.fromkeys(
            str(n) for n in entry if spelled(n) not in TRANSLATION and spelled(n) not in STEPS
        )
        curves.add(int(step) if step is not None and math.isfinite(step) else number, _preferred(plain))
    for ours, there in doubled.items():
        curves.notes.append(f"{ours.replace('_', ' ')} is read from {there[0]}, not from {', '.join(there[1:])}")


def _preferred(plain: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Entries whose names we know, each of our names once: the first spelling in our order wins."""
    for names in SPELLINGS.values():
        name = next((name for name in names if name in plain), None)
        if name is not None:
            yield name, plain[name]


def as_number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None or value == "":
        return None
    try:
        return float(str(value).replace(",", ""))
    except ValueError:
        return None
