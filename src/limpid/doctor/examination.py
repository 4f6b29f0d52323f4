"""Which checks make up the examination."""

from __future__ import annotations

from limpid.doctor.checks import configuration, data, graph, loss, numerics, optimisation

CHECKS = [
    *optimisation.EXAM,
    *data.EXAM,
    *graph.EXAM,
    *loss.EXAM,
    *configuration.EXAM,
    *numerics.EXAM,
]
AFTER_BACKWARD = [graph.not_causal, graph.gradients_arrive, graph.gradient_by_depth]
"""What a loop without preflight shows once its first backward pass is done: what was taught, what got a gradient."""
AT_FIRST_SIGHT = [check for check in CHECKS if check not in AFTER_BACKWARD]
"""At the first forward pass of a loop that had no preflight; its own backward pass tells the loss's formula."""
