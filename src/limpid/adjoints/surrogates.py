"""Forward passes of which no other gradient than a surrogate can be meant."""

from __future__ import annotations

from copy import copy as shallow
from dataclasses import replace

import torch
from torch import Tensor

from limpid.adjoints.directional import finely_moved, moved_at
from limpid.adjoints.results import Gradients, gives_back, hardly_differ
from limpid.adjoints.ways import Way

ENTRIES = 16
"""That are moved one by one."""


def surrogate(way: Way, values: dict[int, Tensor], given: list[Tensor]) -> str:
    """Why no other gradient than a surrogate can be meant, where that is so."""
    aside = way.aside(values)
    middle, moved_middle = way.forward(values), way.forward(aside)
    for (place, x), gradient in zip(values.items(), given, strict=True):
        if gives_back(middle, x) and gives_back(moved_middle, aside[place]):
            return "its forward pass gives its input back"
        for at, results in ((values, middle), (aside, moved_middle)):
            if torch.count_nonzero(gradient) and (
                _is_constant(way, at, place, results) or _is_stepwise(way, at, place, results, gradient)
            ):
                return "its forward pass is constant between steps"
    if _has_its_own(way, values, middle, given):
        return "its backward pass is given a tensor that its forward pass has no use for"
    return ""


def _has_its_own(way: Way, values: dict[int, Tensor], middle: Gradients, given: Gradients) -> bool:
    """Whether another value of some other tensor changes x̄ and no result: fixed weights for errors to go by."""
    for place, one in enumerate(way.applied.leaves):
        if place in values or not isinstance(one, Tensor) or not one.is_floating_point():
            continue
        leaves = [*way.applied.leaves[:place], 1 - 2 * one, *way.applied.leaves[place + 1 :]]
        other = shallow(way)
        other.applied = replace(way.applied, leaves=leaves)
        try:
            still = hardly_differ(middle, other.forward(values), 1.0)
            if still and not hardly_differ(given, other.backward(values), 1.0):
                return True
        except Exception:  # of what may not stand there
            continue
    return False


def _is_constant(way: Way, values: dict[int, Tensor], place: int, middle: Gradients) -> bool:
    """Whether a fine step in one input changes hardly any result."""
    return hardly_differ(middle, way.moved(values, place, finely_moved(values[place])))


def _is_stepwise(way: Way, values: dict[int, Tensor], place: int, middle: Gradients, gradient: Tensor) -> bool:
    """Whether most entries alone change nothing by a fine step, and something by a coarse one.

    The step of a rounding may itself follow from a few entries, such as the largest.
    """
    x = values[place]
    entries = gradient.flatten().nonzero()[:, 0].cpu()
    entries = entries[torch.randperm(len(entries), generator=torch.Generator().manual_seed(place))[:ENTRIES]]
    fine = coarse = 0
    for entry in entries.tolist():
        try:
            still = [hardly_differ(middle, way.moved(values, place, one), 1.0) for one in moved_at(x, entry)]
        except Exception:  # of what may not stand there, such as a matrix that has no factors
            return False
        fine += still[0]
        coarse += still[0] and not still[1]
    return 4 * fine >= 3 * len(entries) and 2 * coarse >= fine > 0
