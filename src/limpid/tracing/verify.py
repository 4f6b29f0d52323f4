"""A step verified: everything the comparison found, in the order of the step."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from limpid.maths.operation import Operation
from limpid.quantities import Parameter, Quantity, parameters
from limpid.reporter import SILENT, Report
from limpid.tracing.batch import check_targets
from limpid.tracing.comparison import Expected, Range, compare, given, largest
from limpid.tracing.cores import one_thread_each
from limpid.tracing.document import Statistics
from limpid.tracing.drawn import check_drawn
from limpid.tracing.end_to_end import EndToEnd, redo
from limpid.tracing.kernels import newton_schulz
from limpid.tracing.local import Compared, compare_operations
from limpid.tracing.loss_account import LossReport, loss_account
from limpid.tracing.record import Place, Record
from limpid.tracing.summary import norm
from limpid.tracing.tensor_file import WORDS
from limpid.tracing.update import Update, redo_update
from limpid.tracing.verdict import Check, Holds, NotFinite, Unchecked, Verdict, first_beyond, origins


@dataclass
class QuantityReport:
    """One quantity of the forward pass."""

    quantity: Quantity
    operation: Operation
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    format: str
    statistics: Statistics
    path: Place  # on which it was formed and checked
    arithmetic: str  # from which its limits follow
    flops: int
    forward: Check
    backward: Check | None = None
    grad_norm: float | None = None
    error: float | None = None  # what its rounding adds to the loss, to first order
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
    gradient: Check | None = None
    checks: list[Check] = field(default_factory=list)  # moments, update


@dataclass
class StepReport:
    """One step, redone and compared."""

    record: Record
    given: list[Check]  # what came into the step: whether it is finite, and labels are next tokens
    quantities: list[QuantityReport]
    parameters: list[ParameterReport]
    loss: LossReport
    end_to_end: EndToEnd
    update: Update

    def checks(self) -> list[Check]:
        """Every check, in the order of the step: what came into it, forward, backward, what training used, update."""
        forward = [quantity.forward for quantity in self.quantities]
        backward = []
        last: dict[str, Check] = {p.name: p.gradient for p in self.parameters if p.gradient is not None}
        for quantity in reversed(self.quantities):
            if quantity.backward is not None:
                backward.append(quantity.backward)
            for kind in ("weight", "bias"):
                if f"{quantity.name}.{kind}" in last:
                    backward.append(last.pop(f"{quantity.name}.{kind}"))
        return [*self.given, *forward, *backward, *last.values(), *self.update.checks]

    def origins(self) -> list[NotFinite]:
        """Where numbers stop being finite, the first of the step first."""
        return origins(self.checks())

    def first_disagreement(self) -> Check | None:
        """The first number of the step that rounding does not explain, among those that could be compared."""
        return first_beyond(self.checks())

    def verdict(self) -> Verdict:
        """What is to be said of the whole step: the first origin of what is not finite comes before any comparison."""
        checks, found = self.checks(), self.origins()
        first = next((origin for origin in found if origin.fault), None)
        disagreement = first_beyond(checks)
        if first is not None:
            return first
        if disagreement is not None:
            return disagreement.verdict
        if found:
            return found[0]
        unchecked = next((check.verdict for check in checks if isinstance(check.verdict, Unchecked)), None)
        return unchecked or Holds(max(check.worst for check in checks))

    @property
    def agrees(self) -> bool:
        """Whether nothing is wrong: a step that was skipped for its loss scale alone is as it should be."""
        verdict = self.verdict()
        return isinstance(verdict, Holds) or (isinstance(verdict, NotFinite) and not verdict.fault)


def verify_step(path: Path) -> StepReport:
    """Redo a recorded step and compare all of it.

    Raises  CheckpointError when the file is not a whole recorded step
    """
    return verify_record(Record(path))


def verify_record(record: Record, report: Report = SILENT.progress) -> StepReport:
    """The same for a record that is open; `report` hears how far it is."""
    with np.errstate(all="ignore"):
        return _verify(record, report)


def _verify(record: Record, report: Report) -> StepReport:
    known = {quantity.name: quantity for quantity in record.objective.quantities(record.config.model)}
    entries: dict[str, QuantityReport] = {}
    gradients: dict[str, Check] = {}
    with one_thread_each(), ThreadPoolExecutor(1) as beside:
        end_to_end, around = beside.submit(redo, record), beside.submit(_around, record)
        for number, compared in enumerate(compare_operations(record), 1):
            report("redoing every operation in float64", number, len(known))
            entries[compared.link.name] = _entry(record, known[compared.link.name], compared)
            gradients.update({check.name: check for check in compared.backward})
        gradients.update({check.name: check for check in _loss_gradient(record)})
        for name, entry in entries.items():
            entry.backward = gradients.get(name)
        report("redoing the whole step and its update", 0, None)
        came_in, account, update = around.result()
        step = StepReport(record, came_in, list(entries.values()), [], account, end_to_end.result(), update)
    for name, entry in entries.items():
        entry.drift = step.end_to_end.drift.get(name, 0.0)
    step.parameters = [_parameter(record, one, gradients, step) for one in record.trained]
    return step


def _around(record: Record) -> tuple[list[Check], LossReport, Update]:
    """What is before the operations of the step and after them: what came in, the loss by labels, and the update."""
    with np.errstate(all="ignore"):  # of each thread by itself
        came_in = [*_given(record), *check_targets(record), *check_drawn(record)]
        return came_in, loss_account(record), redo_update(record)


def _given(record: Record) -> list[Check]:
    """Batch, loss scale, weights and moments, where they are not finite."""
    found = [given("loss_scale", np.asarray(record.loss_scale), "fp64", largest(np.float64))]
    order = {name: place for place, name in enumerate(p.name for p in parameters(record.config.model))}
    names = [name for name in record.names if name.startswith(("batch/", "before/"))]

    def place(name: str) -> tuple[int, int, str]:
        kind, _, rest = name.partition("/")
        moment, _, parameter = rest.rpartition("/")
        return (0 if kind == "batch" else 2 if moment else 1, order.get(parameter, 0), name)

    for name in sorted(names, key=place):
        _, _, rest = name.partition("/")
        moment, _, parameter = rest.rpartition("/")
        array, shown = record.stored(name), f"{moment}({parameter})" if moment in ("m", "v") else rest
        found.append(given(shown, array, *record.limits(name)))
    return [check for check in found if check is not None]


def _loss_gradient(record: Record) -> list[Check]:
    """Where backward begins: the gradient of the loss with respect to itself is 1, times the loss scale."""
    place = record.gradient_place("loss")
    if place is None:
        return []
    engine, scale = record.stored(place), np.asarray(record.loss_scale)
    unknown = None if np.isfinite(scale) else np.asarray(True)
    expected = Expected(
        scale,
        np.zeros(()),
        Range(engine.dtype),
        unknown=unknown,
        why="" if unknown is None else "input not finite: loss_scale",
    )
    return [compare("loss", "backward", engine, expected)]


def _entry(record: Record, quantity: Quantity, compared: Compared) -> QuantityReport:
    name = quantity.name
    gradient = record.gradient_place(name)
    return QuantityReport(
        quantity,
        compared.link.operation,
        compared.link.inputs,
        compared.shape,
        WORDS[record.format(record.place(name))],
        compared.statistics,
        compared.path,
        compared.arithmetic,
        compared.flops,
        compared.forward,
        grad_norm=None if gradient is None else norm(record.mapped(gradient)) / record.loss_scale,
        error=compared.error,
    )


def _parameter(record: Record, parameter: Parameter, gradients: dict[str, Check], step: StepReport) -> ParameterReport:
    name = parameter.name
    before, after = record.mapped(f"before/{name}"), record.mapped(f"after/{name}")
    size, moved = norm(before), norm(after, before)
    mine = (name, *(f"{kind}({name})" for kind in ("grad", "m", "v", "ema", *newton_schulz.KINDS)))
    return ParameterReport(
        name,
        parameter.shape,
        parameter.axes,
        parameter.decayed,
        norm(record.mapped(f"fast/grad({name})")),
        moved / size if size else moved,
        gradients.get(name),
        [check for check in step.update.checks if check.name in mine],
    )
