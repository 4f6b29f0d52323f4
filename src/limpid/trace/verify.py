"""A step verified: everything the comparison found, in the order of the step."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from limpid.maths.operation import Array, Operation
from limpid.quantities import Quantity, quantities
from limpid.trace.compare import Agreement, Compared, compare
from limpid.trace.loss_account import LossReport, loss_account
from limpid.trace.record import WORDS, Record
from limpid.trace.redo import EndToEnd, Update, redo, redo_update


@dataclass(frozen=True)
class Statistics:
    """An array in five numbers; what is not finite is counted, not averaged."""

    mean: float
    rms: float
    smallest: float
    largest: float
    not_finite: int

    @classmethod
    def of(cls, array: Array) -> Statistics:
        finite = array[np.isfinite(array)] if not np.isfinite(array).all() else array
        if finite.size == 0:
            return cls(np.nan, np.nan, np.nan, np.nan, array.size)
        with np.errstate(over="ignore"):
            rms = float(np.sqrt(np.mean(np.square(finite))))
        return cls(float(finite.mean()), rms, float(finite.min()), float(finite.max()), int(array.size - finite.size))


@dataclass
class QuantityReport:
    """One quantity of the forward pass."""

    quantity: Quantity
    operation: Operation
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    format: str
    statistics: Statistics
    flops: int
    forward: Agreement
    backward: Agreement | None = None
    grad_norm: float | None = None
    drift: float = 0.0  # of the whole chain from the tokens, in u of the compute format

    @property
    def name(self) -> str:
        return self.quantity.name


@dataclass
class ParameterReport:
    """One parameter."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    decayed: bool
    grad_norm: float  # of the gradient that training used, before clipping
    change: float  # ‖after - before‖ / ‖before‖
    gradient: Agreement | None = None
    checks: list[Agreement] = field(default_factory=list)  # fast path, moments, update


@dataclass
class StepReport:
    """One step, redone and compared."""

    record: Record
    quantities: list[QuantityReport]
    parameters: list[ParameterReport]
    loss: LossReport
    end_to_end: EndToEnd
    update: Update

    def agreements(self) -> list[Agreement]:
        """Every check, in the order of the step: forward, backward, what training used, update."""
        forward = [entry.forward for entry in self.quantities]
        backward = []
        last: dict[str, Agreement] = {p.name: p.gradient for p in self.parameters if p.gradient is not None}
        for entry in reversed(self.quantities):
            if entry.backward is not None:
                backward.append(entry.backward)
            for kind in ("weight", "bias"):
                if f"{entry.name}.{kind}" in last:
                    backward.append(last.pop(f"{entry.name}.{kind}"))
        return [*forward, *backward, *last.values(), *self.end_to_end.fast, *self.update.agreements]

    def first_disagreement(self) -> Agreement | None:
        """The first number of the step that rounding does not explain."""
        return next((check for check in self.agreements() if not check.holds), None)


def verify_step(path: Path) -> StepReport:
    """Redo a recorded step and compare all of it.

    Raises  CheckpointError when the file is not a whole recorded step
    """
    record = Record(path)
    known = {quantity.name: quantity for quantity in quantities(record.config.model)}
    entries: dict[str, QuantityReport] = {}
    gradients: dict[str, Agreement] = {}
    for compared in compare(record):
        entries[compared.link.name] = _entry(record, known[compared.link.name], compared)
        gradients.update({check.name: check for check in compared.backward})
    end_to_end, update = redo(record), redo_update(record)
    for name, entry in entries.items():
        entry.backward, entry.drift = gradients.get(name), end_to_end.drift.get(name, 0.0)
    learned = [_parameter(record, one, gradients, end_to_end, update) for one in record.trained]
    return StepReport(record, list(entries.values()), learned, loss_account(record), end_to_end, update)


def _entry(record: Record, quantity: Quantity, compared: Compared) -> QuantityReport:
    name = quantity.name
    gradient = f"plain/grad({name})"
    has_gradient = gradient in record.names
    return QuantityReport(
        quantity,
        compared.link.operation,
        compared.link.inputs,
        compared.value.shape,
        WORDS[record.format(f"plain/{name}")],
        Statistics.of(compared.value),
        compared.flops,
        compared.forward,
        grad_norm=float(np.linalg.norm(record.exact(gradient))) / record.loss_scale if has_gradient else None,
    )


def _parameter(
    record: Record, parameter: Any, gradients: dict[str, Agreement], end_to_end: EndToEnd, update: Update
) -> ParameterReport:
    name = parameter.name
    before, after = record.exact(f"before/{name}"), record.exact(f"after/{name}")
    size = float(np.linalg.norm(before))
    mine = (f"grad({name})", name, f"m({name})", f"v({name})")
    return ParameterReport(
        name,
        parameter.shape,
        parameter.axes,
        parameter.decayed,
        float(np.linalg.norm(record.exact(f"fast/grad({name})"))),
        float(np.linalg.norm(after - before)) / size if size else float(np.linalg.norm(after - before)),
        gradients.get(name),
        [check for check in (*end_to_end.fast, *update.agreements) if check.name in mine],
    )
