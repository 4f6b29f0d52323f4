"""The loop of a mixture, compiled: one row after the other to whoever is due first."""

from __future__ import annotations

from typing import Any

from numba import njit


@njit(cache=True)
def deal(credits: Any, weights: Any, total: int, taken: Any) -> None:
    """Fill `taken` with sources; `credits` are shares less rows, in units of which a row is `total`."""
    for row in range(len(taken)):
        for source in range(len(weights)):
            credits[source] += weights[source]
        chosen = 0
        if credits[0] < total:
            soonest = -1
            for source in range(1, len(weights)):
                if credits[source] > 0:
                    wait = (total - credits[source] + weights[source] - 1) // weights[source]
                    if soonest < 0 or wait < soonest:
                        soonest, chosen = wait, source
        credits[chosen] -= total
        taken[row] = chosen
