"""Update rules on a number or two: for chapters, figures and exercises, computed by the rules that train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from limpid.maths.foundations import gradient
from limpid.maths.operation import Array
from limpid.maths.update import SGD, Adam, AdamW, Momentum, UpdateInput, UpdateRule, clip, clip_scale, global_norm

Terms = dict[str, Any]


def updates(rule: UpdateRule, theta: float, gradients: Sequence[float], rate: float) -> list[Terms]:
    """What each update in turn forms, by name, from the first on: nothing is remembered before."""
    found: list[Terms] = []
    for g in gradients:
        found.append(rule.terms(following(rule, theta, g, rate, found)))
        theta = found[-1]["parameter"]
    return found


def following(rule: UpdateRule, theta: Any, g: Any, rate: float, before: Sequence[Terms] = ()) -> UpdateInput:
    """What the update after those before is made from."""
    given = np.asarray(g, dtype=np.float64)
    moments = {kind: before[-1][kind] if before else np.zeros_like(given) for kind in rule.moments}
    return UpdateInput(np.asarray(theta, dtype=np.float64), given, moments, rate, len(before) + 1, decayed=True)


def written(rule: UpdateRule, theta: float, g: float, rate: float) -> tuple[str, ...]:
    """The first update of a weight, a line per equation."""
    lines = rule.derivation(following(rule, theta, g, rate), ())
    return tuple(line.replace("-", "−") for line in lines)


def path(
    rule: UpdateRule, loss: Callable[[Array], Any], start: Sequence[float], rate: float, steps: int
) -> list[Array]:
    """Places from a start down a loss of a few weights, (steps + 1) of them."""
    places, found = [np.asarray(start, dtype=np.float64)], list[Terms]()
    for _ in range(steps):
        found.append(rule.terms(following(rule, places[-1], gradient(loss, places[-1]), rate, found)))
        places.append(found[-1]["parameter"])
    return places


def until(places: Sequence[Array], there: Callable[[Array], Any]) -> str:
    """After how many steps a way is there; "not" where its end is not."""
    found = next((step for step, place in enumerate(places) if there(place)), None)
    return "not" if found is None else f"after {found}"


NAMES: dict[str, Any] = {
    "updates": updates, "path": path, "until": until, "SGD": SGD, "Momentum": Momentum, "Adam": Adam, "AdamW": AdamW,
    "clip": clip, "clip_scale": clip_scale, "global_norm": global_norm,
}  # fmt: skip
"""What a chapter may compute with."""
