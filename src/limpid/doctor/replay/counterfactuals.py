"""One thing is changed at a time; what makes a step finite again names the cause.

The same step in float32, without the rows that break, on the batch before, and with the weights as they would be had
the last update been smaller. Each is one forward pass, and a backward pass where it was that that broke.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from limpid.doctor.calls import Call
from limpid.doctor.replay.step_replay import HALVES, Origin, RecordedPass, replay
from limpid.doctor.update_sample import decoupled, moments
from limpid.doctor.watched import Watched

SAME_LOSS = 0.1
"""Relative difference from which on the loss that is formed again is another one than the loop's."""
ROWS = 64
"""Rows that are tried alone."""
ROOM = 4 * 2**30
"""Bytes that copies of weights may take outside a GPU; on it, half of what is free."""


@dataclass
class Counterfactuals:
    """What the replays showed: facts, sentences for the finding, and the cause that they name."""

    facts: dict[str, Any] = field(default_factory=dict)
    says: list[str] = field(default_factory=list)
    cause: str = ""
    helps: bool = False  # whether the step lowers the loss of its own batch, at a tenth of the rate no further


def counterfactuals(
    recorded: RecordedPass, origin: Origin, before: Call | None, watched: Watched | None, rates: list[float]
) -> Counterfactuals:
    """Replay a step that broke, one thing changed at a time."""
    outcome = Counterfactuals()
    _rows(recorded, origin, before, outcome)
    without: dict[str, str] = {}
    narrow = recorded.autocast is not None or any(p.dtype in HALVES for p in recorded.info.parameters.values())
    if narrow or origin.dtype in HALVES or any("float16" in entry for entry in origin.inputs):
        _float32(recorded, origin, outcome, without)
    if watched is not None and not origin.empty_rows:
        _smaller_update(recorded, origin, watched, rates, outcome, without)
    if without:
        outcome.facts["not_replayed"] = without
        outcome.says.append("Not replayed: " + "; ".join(f"{what} ({why})" for what, why in without.items()) + ".")
    return outcome


def _breaks(recorded: RecordedPass, origin: Origin) -> bool:
    return replay(recorded, backward=origin.backward).origin is not None


def _rows(recorded: RecordedPass, origin: Origin, before: Call | None, outcome: Counterfactuals) -> None:
    """Which rows break alone, whether the others do without them, and the batch before."""
    ids, facts = recorded.call.ids, outcome.facts
    bad: list[int] = []
    count = 0 if ids is None else min(len(ids), ROWS)
    if count > 1:
        bad = [row for row in range(count) if _breaks(_only(recorded, torch.tensor([row])), origin)]
        facts |= {"rows_that_break_alone": bad, "rows": count}
    if 0 < len(bad) < count and ids is not None:
        rest = torch.tensor([row for row in range(len(ids)) if row not in bad])
        facts["finite_without_them"] = not _breaks(_only(recorded, rest), origin)
        named = ", ".join(map(str, bad[:8]))
        outcome.says.append(
            f"Only rows {named} of {count} break on their own"
            + (", and without them the step is finite" if facts["finite_without_them"] else "")
            + ": it is the batch."
        )
    if before is not None:
        facts["previous_batch_is_finite"] = not _breaks(replace(recorded, call=before, micro=None), origin)
        if not facts["previous_batch_is_finite"]:
            outcome.says.append("The batch before breaks too: it is the weights, not the batch.")
        elif bad and len(bad) == count:
            outcome.says.append("The batch before stays finite with the same weights.")


def _only(recorded: RecordedPass, rows: Tensor) -> RecordedPass:
    """The step on some rows of its batch."""
    micro = recorded.micro
    if micro is not None and micro.labels is not None and micro.labels.ndim == 2:
        micro = replace(micro, labels=micro.labels[rows.to(micro.labels.device)])
    return replace(recorded, call=recorded.call.rows(rows), micro=micro)


def _float32(recorded: RecordedPass, origin: Origin, outcome: Counterfactuals, without: dict[str, str]) -> None:
    """The same step with float32 weights, and float32 wherever a narrower format is asked for."""
    if short := _too_large(recorded):
        without["in float32"] = short
        return
    own = {n: p.detach().float() for n, p in recorded.info.parameters.items() if p.is_floating_point()}
    finite = not _breaks(replace(recorded, weights=own, wide=True), origin)
    outcome.facts["finite_in_float32"] = finite
    if finite:
        outcome.says.append("The same step in float32 is finite: precision is the cause.")
        outcome.cause = "the same step in float32 is finite"
    else:
        outcome.says.append("It breaks in float32 too: precision is not the cause.")


def _smaller_update(
    recorded: RecordedPass,
    origin: Origin,
    watched: Watched,
    rates: list[float],
    outcome: Counterfactuals,
    without: dict[str, str],
) -> None:
    """The step with the weights as they were before the last update, and after a tenth of it."""
    try:
        for share, weights in _smaller(recorded, watched, rates):
            finite = not _breaks(replace(recorded, weights=weights), origin)
            outcome.facts["finite_a_tenth" if share < 1 else "finite_one_update_earlier"] = finite
    except NotInvertible as error:
        without["with the weights before"] = str(error)
        return
    if outcome.facts["finite_a_tenth"]:
        outcome.says.append(
            "With the last update made at a tenth of its rate the step is finite: the rate is too high."
        )
        outcome.cause = outcome.cause or "the last update was too large"
    elif outcome.facts["finite_one_update_earlier"]:
        outcome.says.append("With the weights of one update earlier the step is finite: that update broke it.")
        outcome.cause = outcome.cause or "the last update"


def _smaller(recorded: RecordedPass, watched: Watched, rates: list[float]) -> Iterator[tuple[float, dict[str, Tensor]]]:
    """Weights without the last update, and after a tenth of it.

    Raises  NotUndone where they cannot be had
    """
    if short := _too_large(recorded):
        raise NotInvertible(short)
    for share in (1.0, 0.9):
        yield share, weights_before_update(watched, rates, share)


def smaller_step(
    recorded: RecordedPass, watched: Watched, rates: list[float], known: float | None = None
) -> Counterfactuals:
    """After an update that raised the loss: the loss of its own batch before it, after it, and after a tenth of it.

    known   the loss that the loop saw before it; where the pass that is repeated has another one, nothing is said
    """
    outcome = Counterfactuals()
    try:
        losses = {
            share: replay(replace(recorded, weights=w), False).loss for share, w in _smaller(recorded, watched, rates)
        }
    except NotInvertible as error:
        outcome.facts["not_replayed"] = {"at a tenth of the rate": str(error)}
        return outcome
    before, tenth, after = losses[1.0], losses[0.9], replay(recorded, False).loss
    if before is None or tenth is None or after is None:
        return outcome
    if known is not None and not math.isclose(before, known, rel_tol=SAME_LOSS):
        outcome.facts["not_replayed"] = {"at a tenth of the rate": "the loss is formed outside of the model"}
        return outcome
    outcome.facts = {"loss_before": before, "loss_after": after, "loss_after_a_tenth": tenth}
    if tenth < min(before, after):
        does = "raises" if after > before else "lowers"
        outcome.says = [
            f"This step {does} the loss of its own batch from {before:.3f} to {after:.3f}; at a tenth of the rate the "
            f"same step lowers it to {tenth:.3f}: the rate is too high."
        ]
        outcome.cause = "the rate is too high: at a tenth of it the same step lowers the loss further"
    elif after < before:
        outcome.helps = True
        outcome.says = [f"On its own batch this step lowers the loss ({before:.3f} to {after:.3f})."]
    else:
        outcome.says = [
            f"This step raises the loss of its own batch from {before:.3f} to {after:.3f}, and at a tenth of the rate "
            f"to {tenth:.3f}: its direction is wrong, not its length alone."
        ]
    return outcome


def _too_large(recorded: RecordedPass) -> str:
    """Why no copy of the weights is made; nothing where there is room for two, one of them for gradients."""
    needed = 8 * sum(p.numel() for p in recorded.info.parameters.values())
    device = recorded.info.device
    room = torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else ROOM
    return f"copies of the weights take {needed / 2**30:.1f} GiB, {room / 2**30:.1f} are free" if needed > room else ""


class NotInvertible(Exception):
    """Why the last update cannot be taken back."""


@torch.no_grad()
def weights_before_update(watched: Watched, rates: list[float], share: float = 1.0) -> dict[str, Tensor]:
    """Weights by name, as they would be had the last update been made at (1 - share) of its rate.

    rates   of the parameter groups at that update
    Raises  NotUndone where the optimizer does not say what it did
    """
    if len(watched.optimizers) != 1:
        raise NotInvertible("there is more than one optimizer" if watched.optimizers else "no optimizer was given")
    (optimizer,) = watched.optimizers
    if len(rates) != len(optimizer.param_groups):
        raise NotInvertible("no update was seen yet")
    weights: dict[str, Tensor] = {}
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        decay = rate * float(group.get("weight_decay") or 0.0) if decoupled(optimizer, group) else 0.0
        for parameter in group["params"]:
            name = watched.info.names.get(id(parameter))
            if name is None or not parameter.requires_grad or (parameter.grad is None and not optimizer.state):
                continue
            now = parameter.detach().float()
            earlier = (now + rate * _direction(optimizer, group, parameter)) / (1 - decay)
            weights[name] = torch.lerp(now, earlier, share).to(parameter.dtype)
    if not all(bool(torch.isfinite(w).all()) for w in weights.values()):
        raise NotInvertible("the last update wrote numbers that are not finite")
    return weights


def _direction(optimizer: Any, group: dict[str, Any], parameter: Tensor) -> Tensor:
    """What the rate was multiplied by."""
    known = moments(optimizer, parameter, group)
    if known is not None:
        mean, root = known
        return mean / (root + float(group["eps"]))
    buffer = optimizer.state.get(parameter, {}).get("momentum_buffer")
    if isinstance(buffer, Tensor) and type(optimizer).__name__ == "SGD" and not group.get("nesterov"):
        return buffer.float()
    raise NotInvertible(f"{type(optimizer).__name__} keeps no record of what it added")
