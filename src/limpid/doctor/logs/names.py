"""What the field's tools call a number, and what we call it."""

from __future__ import annotations

import re

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
