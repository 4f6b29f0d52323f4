"""The step as one JSON document with a version: the contract with every viewer."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from limpid.jsonable import jsonable
from limpid.trace.loss_account import LossReport
from limpid.trace.verdict import Check, Unchecked
from limpid.trace.verify import ParameterReport, QuantityReport, StepReport

VERSION = 2


def document(step: StepReport) -> dict[str, Any]:
    """Everything that was found, without the arrays. Numbers that are not finite are words."""
    meta = step.record.meta
    checks = step.checks()
    first = step.first_disagreement()
    worst = max(checks, key=lambda check: check.worst)
    found: dict[str, Any] = {
        "version": VERSION,
        "run": meta["run"],
        "step": meta["step"],
        "config": meta["config"],
        "precision": meta["precision"],
        "loss_scale": meta["loss_scale"],
        "verdict": {
            "agrees": step.agrees,
            **asdict(step.verdict()),
            "not_finite": [asdict(origin) for origin in step.origins()],
            "not_checked": sum(isinstance(check.verdict, Unchecked) for check in checks),
            "checks": len(checks),
            "within_bounds": sum(check.holds for check in checks),
            "first_disagreement": None if first is None else _check(first),
            "worst": _check(worst),
        },
        "quantities": [_entry(entry) for entry in step.quantities],
        "loss": _account(step.loss, step.end_to_end.loss),
        "parameters": [_learned(parameter) for parameter in step.parameters],
        "update": {
            "rules": [
                {
                    "rule": type(how).__name__,
                    "equations": list(how.equations),
                    "source": how.source,
                    "parameters": moved,
                }
                for how, moved in step.update.by_rule()
            ],
            "number": step.update.number,
            "learning_rate": step.update.learning_rate,
            "grad_norm_before_clip": step.update.grad_norm,
            "clip_scale": step.update.clip_scale,
            "checks": [_check(check) for check in step.update.checks[:3]],
        },
    }
    return dict(jsonable(found))


def _entry(entry: QuantityReport) -> dict[str, Any]:
    operation = entry.operation
    return {
        "name": entry.name,
        "axes": list(entry.quantity.axes),
        "unit": entry.quantity.unit,
        "shape": list(entry.shape),
        "format": entry.format,
        "operation": type(operation).__name__,
        "inputs": list(entry.inputs),
        "equation": operation.equation,
        "adjoint": list(operation.adjoint),
        "branch": operation.branch.value,
        "source": operation.source,
        "statistics": asdict(entry.statistics),
        "flops": entry.flops,
        "grad_norm": entry.grad_norm,
        "forward": _check(entry.forward),
        "backward": None if entry.backward is None else _check(entry.backward),
        "drift": entry.drift,
    }


def _learned(parameter: ParameterReport) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "shape": list(parameter.shape),
        "axes": list(parameter.axes),
        "decayed": parameter.decayed,
        "grad_norm": parameter.grad_norm,
        "relative_change": parameter.change,
        "gradient": None if parameter.gradient is None else _check(parameter.gradient),
        "checks": [_check(check) for check in parameter.checks],
    }


def _account(account: LossReport, exact: float) -> dict[str, Any]:
    return {
        "value": account.loss,
        "exact": exact,
        "perplexity": account.perplexity,
        "formula": r"L = -\tfrac1N \sum_{t\ \text{labelled}} \log p(w_{t+1})",
        "labels": account.labels,
        "positions": account.positions,
        "weight": account.weight,
        "micro_batches": account.micro_batches,
        "rows": [[[label.text, label.surprise] for label in row] for row in account.rows],
    }


def _check(check: Check) -> dict[str, Any]:
    return {**asdict(check), "index": list(check.index)}
