"""What the field's tools call a number, and what we call it."""

from __future__ import annotations

NAMES = {
    "loss": (
        "loss",
        "train/loss",
        "train_loss",
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


TRANSLATION = {theirs: ours for ours, all_names in NAMES.items() for theirs in all_names}


STEPS = ("step", "global_step", "iter", "iteration", "_step", "train/global_step", "trainer/global_step", "steps", "it")
