"""Which checks make up the examination."""

from __future__ import annotations

from limpid.doctor.checks import configuration, data, graph, loss, numerics, optimisation

CHECKS = [
    *optimisation.EXAM, *data.EXAM, *graph.EXAM, *loss.EXAM, *configuration.EXAM, *numerics.EXAM,
]  # fmt: skip
AT_FIRST_SIGHT = CHECKS
"""At the first forward pass of a loop that had no preflight: those that need a loss wait for the loop's own."""
