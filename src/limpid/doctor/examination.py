"""Which checks make up the examination."""

from __future__ import annotations

from limpid.doctor.checks import (
    alignment,
    attention,
    configuration,
    flow,
    ids,
    loss,
    numerics,
    optimisation,
    padding,
    perturbations,
    rows,
    weights,
)

CHECKS = [
    *optimisation.EXAM,
    *alignment.EXAM,
    *padding.EXAM,
    *ids.EXAM,
    *rows.EXAM,
    *perturbations.EXAM,
    *flow.EXAM,
    *weights.EXAM,
    *attention.EXAM,
    *loss.EXAM,
    *configuration.EXAM,
    *numerics.EXAM,
]
AFTER_GRADIENT = [alignment.alignment, padding.padding_trained_on, padding.end_never_a_label]
TAUGHT = [perturbations.not_causal, flow.gradients_arrive, flow.gradient_by_depth]
AFTER_BACKWARD = [*TAUGHT, padding.end_never_a_label, weights.initialisation]
"""What a loop without preflight shows once its first backward pass is done: what was taught, what got a gradient."""
AT_FIRST_SIGHT = [check for check in CHECKS if check not in (*TAUGHT, *AFTER_GRADIENT)]
"""At the first forward pass of a loop that had no preflight; its own backward pass tells the loss's formula."""
