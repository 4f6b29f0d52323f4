"""A log as a table of numbers by step, and what the field's tools call them."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from limpid.doctor.tuning import Tuning

NAMES: dict[str, tuple[str, ...]] = {
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
        "policy_loss",
        "actor/pg_loss",
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
        "actor/lr",
        "actor_lr",
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
OF_TUNING = {
    "reward": ("reward", "objective/scores", "critic/score/mean", "critic/rewards/mean", "rewards/mean"),
    "reward_std": ("reward_std", "critic/rewards/std"),
    "equal_groups": ("frac_reward_zero_std",),
    "kl": ("kl", "kl_before", "actor/kl", "actor/kl_loss", "kl_divergence"),
    "answer_kl": ("objective/kl",),
    "entropy": ("entropy", "actor/entropy", "policy/entropy_avg", "policy_entropy"),
    "answer_entropy": ("objective/entropy",),
    "answer_length": ("completions/mean_length", "completion_length", "response_length/mean", "response_length"),
    "broken_off": ("completions/clipped_ratio", "response_length/clip_ratio"),
    "told_by_length": ("completions/told_by_length",),
    "lost_order": ("advantages/lost_order",),
    "ratio": ("ratio/mean", "ratio", "policy/ratio"),
    "ratio_min": ("ratio/min",),
    "ratio_max": ("ratio/max",),
    "sampler_ratio": ("sampling/importance_sampling_ratio/mean",),
    "chosen": ("rewards/chosen",),
    "rejected": ("rewards/rejected",),
    "margin": ("rewards/margins", "margin"),
    "preferred": ("rewards/accuracies",),
    "eval_preferred": ("eval_rewards/accuracies", "eval/rewards/accuracies", "eval_accuracy"),
}
"""What is logged of tuning, by TRL's names, verl's and OpenRLHF's."""
NAMES |= {ours: (*theirs, *(f"train/{name}" for name in theirs)) for ours, theirs in OF_TUNING.items()}
OF_ANSWERS = ("reward", "equal_groups", "answer_length", "ratio", "chosen", "rejected", "margin", "preferred")
"""Those that are logged beside losses of answers, which no surprise of single tokens is."""
LARGEST = 1e100
LARGEST_STEP = 2.0**53
"""Beyond it, neighbouring numbers are no neighbouring steps."""
OF_A_REWARD = re.compile(r"(?:train/)?(rewards/[^/]+/(?:mean|std))")
"""What one of several rewards is logged as: it keeps its name."""
SUMMARIES = ("train_runtime", "train_samples_per_second")
"""Names that mark a line about the whole run: its loss is a mean, no step's."""
FOLDERS = ("metrics/", "scalars/", "logs/", "log/", "data/", "stats/")
"""What stands before a name and says nothing."""


@functools.lru_cache(4096)
def spelled(name: object) -> str:
    """A name without capitals, spaces and what tools put before it: `Val. Loss` and `val-loss` are val_loss."""
    plain = re.sub(r"[\s_.\-]+", "_", str(name).strip().lower()).strip("_")
    for folder in FOLDERS:
        plain = plain.removeprefix(folder)
    return plain


SPELLINGS = {ours: tuple(dict.fromkeys(map(spelled, theirs))) for ours, theirs in NAMES.items()}
TRANSLATION = {theirs: ours for ours, all_names in SPELLINGS.items() for theirs in all_names}
RANK = {theirs: number for number, theirs in enumerate(theirs for names in SPELLINGS.values() for theirs in names)}


def ours_of(plain: str) -> str | None:
    """Our name of what is `spelled` so; None where it says nothing to us."""
    of_a_reward = OF_A_REWARD.fullmatch(plain)
    return of_a_reward[1] if of_a_reward else TRANSLATION.get(plain)


STEPS = (
    "step", "global_step", "iter", "iteration", "train/global_step", "trainer/global_step", "training/global_step",
    "steps", "it",
)  # fmt: skip
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
    tuning: Tuning | None = None
    notes: list[str] = field(default_factory=list)
    unknown: dict[str, None] = field(default_factory=dict)  # names of numbers that say nothing to us, in order
    most: int | None = None  # points of a series that a loop keeps while it runs; None for all

    def add(self, step: int, entry: Iterable[tuple[str, Any]]) -> None:
        """One line of the record."""
        taken = False
        for name, value in entry:
            ours = ours_of(spelled(name))
            number = as_number(value)
            if ours is None or number is None:
                continue
            points = self.series.setdefault(ours, [])
            if not (points and points[-1][0] == step and taken and ours == "loss"):
                points.append((step, number))
                self._thin(points)
            taken = taken or ours in ("loss", "learning_rate", "grad_norm")
        if taken and (not self.order or self.order[-1] != step):
            self.order.append(step)
            self._thin(self.order)

    def _thin(self, points: list[Any]) -> None:
        """Leave out every other point of the middle where there are too many: series of one length lose the same."""
        if self.most is not None and len(points) > self.most:
            del points[self.most // 4 : -self.most // 4 : 2]

    def values(self, name: str) -> list[float]:
        return [value for _, value in self.series.get(name, [])]

    @property
    def of_language(self) -> bool:
        """Whether the loss is, for all that is known, the surprise of next tokens, which begins at ln V at most."""
        named = self.tuning is not None and self.tuning.objective not in ("", "sft")
        return not named and not any(self.series.get(name) for name in OF_ANSWERS)

    @property
    def steps(self) -> list[int]:
        return [step for step, _ in self.series.get("loss", [])]


def fill(curves: Curves, entries: Iterable[dict[str, Any]]) -> None:
    """Take in lines that name their numbers; the steps count from 1 where none are given."""
    doubled, named = dict[str, list[str]](), set[Any]()
    for number, entry in enumerate(entries, 1):
        plain = {spelled(name): value for name, value in entry.items() if as_number(value) is not None}
        if any(name in plain for name in SUMMARIES):
            continue
        step = next((as_number(value) for name, value in plain.items() if name in STEPS), None)
        for ours in ("loss", "eval_loss"):
            there = [name for name in SPELLINGS[ours] if name in plain]
            values = {as_number(plain[name]) for name in there}
            if len({value for value in values if value == value}) > 1:
                doubled[ours] = there
        for name in entry:
            if name in named:
                continue
            named.add(name)
            if ours_of(spelled(name)) is None and spelled(name) not in STEPS:
                curves.unknown[str(name)] = None
        curves.add(step_of(step, number), preferred(plain))
    for ours, there in doubled.items():
        curves.notes.append(f"{ours.replace('_', ' ')} is read from {there[0]}, not from {', '.join(there[1:])}")


def step_of(value: float | None, otherwise: int) -> int:
    """A number as a step, where it can be one."""
    return int(value) if value is not None and abs(value) < LARGEST_STEP else otherwise


def preferred(entry: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Entries whose names we know, each of our names once: the first spelling in our order wins."""
    plain = {spelled(name): value for name, value in entry.items()}
    first: dict[str, str] = {}
    for name in sorted((name for name in plain if name in RANK), key=lambda name: RANK[name]):
        first.setdefault(TRANSLATION[name], name)
    yield from ((name, plain[name]) for name in first.values())
    yield from ((name, value) for name, value in plain.items() if OF_A_REWARD.fullmatch(name))


def as_number(value: Any) -> float | None:
    """A number as a log spells it; what has no square in float64 is infinite."""
    if isinstance(value, bool) or value is None or value == "":
        return None
    try:
        number = float(str(value).replace(",", ""))
    except ValueError:
        return None
    return number * math.inf if abs(number) > LARGEST else number
