"""Where a replay departs from its run's log, and what that number follows from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from limpid.tracing.batch import equal
from limpid.tracing.verdict import Check

CHANGED = (
    "the record, the log or the checkpoint that the replay began from has changed since (delete the recorded step and "
    "open it again, from another checkpoint if this one is damaged), or "
)
BY_FORWARD = (
    "step {step} had other weights, rows or dropout masks than the checkpoint and the seed give it: a random "
    "generator, or another state, that no checkpoint keeps"
)
BY_UPDATE = (
    "as every loss and gradient up to step {before} is the one of the log, the update of step {before} is not: "
    "moments, the number of updates or the learning rate were not restored as training had them"
)
BY_SCALE = "the loss scale was not restored as training had it"
BY_BACKWARD = (
    "as the loss of step {step} is the one of the log, its backward pass depends on what no checkpoint keeps, or a "
    "weight is another by too little to show in the loss"
)


def numbers(loss: float, grad_norm: float, loss_scale: float, updated: bool, logged: Mapping[str, Any]) -> list[Check]:
    """What a step did, against its line of the log: the same to the bit."""
    pairs = {
        "loss": (loss, logged["loss"]),
        "loss_scale": (loss_scale, logged.get("loss_scale", 1.0)),
        "grad_norm": (grad_norm, logged["grad_norm_before_clip"]),
        "updated": (updated, logged["updated"]),
    }
    return [_number(name, float(here), float(there)) for name, (here, there) in pairs.items()]


def why(found: Check, step: int, first: int) -> str:
    """What explains that a number of `step` is another, the first in a replay that began with step `first`."""
    if found.name == "loss":
        explained = BY_FORWARD if step == first else BY_UPDATE
    else:
        explained = BY_SCALE if found.name == "loss_scale" else BY_BACKWARD
    return CHANGED + explained.format(step=step, before=step - 1)


def departure(
    taken: Sequence[Mapping[str, Any]], logged: Mapping[int, Mapping[str, Any]]
) -> tuple[int, Check, str] | None:
    """The first step of a replay that is not as the log has it: its number, the check, what explains it."""
    for one in taken:
        number = int(one["step"])
        if number not in logged:
            continue
        checks = numbers(float(one["loss"]), float(one["grad_norm"]), one["loss_scale"], one["updated"], logged[number])
        found = next((check for check in checks if not check.holds), None)
        if found is not None:
            named = replace(found, name=f"replayed {found.name} of step {number}")
            return number, named, why(found, number, int(taken[0]["step"]))
    return None


def _number(name: str, here: float, there: float) -> Check:
    """The same number, or neither is one."""
    both = np.isnan([here, there]).all()
    return equal(name, np.asarray(0.0 if both else here), np.asarray(0.0 if both else there))
