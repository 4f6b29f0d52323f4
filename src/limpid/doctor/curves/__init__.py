"""What can be told from curves alone, and what cannot."""

from __future__ import annotations

from limpid.doctor.curves.broken import broke, scaling
from limpid.doctor.curves.losses import level, overfitting, spikes, too_low
from limpid.doctor.curves.progress import gradients, restarts, schedule
from limpid.doctor.finding import Finding
from limpid.doctor.logs.table import Curves
from limpid.doctor.ranking import ranked

UNSEEN = {
    "data": "labels, padding, ids and repeats need a batch: doctor.preflight(batch), or watch the run",
    "graph": "causality, cut gradients, tied weights and positions need the model",
    "optimisation": "what the optimizer holds, and the order of its calls, need the loop: limpid.watch(model, "
    "optimizer)",
    "loss": "the formula of the loss needs its logits and labels",
    "distributed": "ranks are compared while they train",
}
"""What no curve shows, by family."""


def diagnose(curves: Curves) -> list[Finding]:
    """Every finding that these curves support."""
    found: dict[str, Finding] = {}
    for check in (broke, level, spikes, gradients, schedule, scaling, restarts, too_low, overfitting):
        for finding in check(curves):
            old = found.get(finding.rule)
            if old is None or (old.severity == "notice" and finding.severity != "notice"):
                found[finding.rule] = finding
    return ranked(list(found.values()))


def unchecked(curves: Curves) -> dict[str, str]:
    """What could not be checked, and why."""
    missing = {
        name: f"no {name.replace('_', ' ')} in the record"
        for name in ("grad_norm", "learning_rate", "eval_loss", "loss_scale")
        if name not in curves.series
    }
    return missing | UNSEEN
