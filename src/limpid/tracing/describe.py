"""A verified step as its document."""

from __future__ import annotations

from limpid.maths.average import weight_average
from limpid.quantities import parameters
from limpid.tracing import equations
from limpid.tracing.document import (
    VERSION,
    Count,
    LabelDocument,
    LossDocument,
    ParameterDocument,
    QuantityDocument,
    RuleDocument,
    StationDocument,
    StepDocument,
    UpdateDocument,
    VerdictDocument,
)
from limpid.tracing.record import Record
from limpid.tracing.stations import block, stages, station, title
from limpid.tracing.verdict import Kind, Unchecked
from limpid.tracing.verify import ParameterReport, QuantityReport, StepReport

KINDS: tuple[Kind, ...] = ("forward", "backward", "update")


def document(step: StepReport) -> StepDocument:
    """Everything that was found, without the arrays."""
    meta = step.record.meta
    trained = {parameter.name for parameter in step.record.trained}
    untrained = {parameter.name for parameter in parameters(step.record.config.model)} - trained
    return StepDocument(
        version=VERSION,
        run=meta["run"],
        step=meta["step"],
        config=meta["config"],
        precision=meta["precision"],
        loss_scale=float(meta["loss_scale"]),
        written=None,
        verdict=_verdict(step),
        stations=_stations(step),
        quantities=tuple(_quantity(quantity, step.record, untrained) for quantity in step.quantities),
        loss=_loss(step),
        parameters=tuple(_parameter(parameter) for parameter in step.parameters),
        update=_update(step),
    )


def _verdict(step: StepReport) -> VerdictDocument:
    checks, origins = step.checks(), step.origins()
    counts = []
    for kind in KINDS:
        own = [check for check in checks if check.kind == kind]
        counts.append(Count(kind, sum(check.holds for check in own), len(own)))
    return VerdictDocument(
        agrees=step.agrees,
        verdict=step.verdict().verdict,
        origin=next((origin for origin in origins if origin.fault), origins[0] if origins else None),
        not_finite=tuple(origins),
        first_disagreement=step.first_disagreement(),
        checks=len(checks),
        within_bounds=sum(check.holds for check in checks),
        not_checked=sum(isinstance(check.verdict, Unchecked) for check in checks),
        counts=tuple(counts),
        fast=sum(quantity.path == "fast" for quantity in step.quantities),
        plain=sum(quantity.path == "plain" for quantity in step.quantities),
        worst=max(checks, key=lambda check: check.worst),
    )


def _stations(step: StepReport) -> tuple[StationDocument, ...]:
    """The stages of the forward pass, then backward and update."""
    flops = {quantity.name: quantity.flops for quantity in step.quantities}
    names = list(flops)
    learned = [parameter.name for parameter in parameters(step.record.config.model)]
    found = []
    for own, at, group in stages(names):
        used = tuple(name for name in learned if name.rpartition(".")[0] in group)
        found.append(StationDocument(own, at, title(own, at), tuple(group), used, sum(flops[name] for name in group)))
    backward = tuple(quantity.name for quantity in reversed(step.quantities) if quantity.grad_norm is not None)
    return (
        *found,
        StationDocument("backward", None, "backward", backward, tuple(learned), 0),
        StationDocument("update", None, "update", (), tuple(learned), 0),
    )


def _quantity(quantity: QuantityReport, record: Record, untrained: set[str]) -> QuantityDocument:
    operation, inputs = quantity.operation, quantity.inputs
    shapes = [record.shape(record.place(name)) for name in inputs]
    return QuantityDocument(
        name=quantity.name,
        station=station(quantity.name),
        block=block(quantity.name),
        axes=quantity.quantity.axes,
        unit=quantity.quantity.unit,
        shape=quantity.shape,
        format=quantity.format,
        operation=operation.name,
        inputs=inputs,
        path=quantity.path,
        arithmetic=quantity.arithmetic,
        equation=equations.forward(operation, inputs, shapes),
        adjoint=equations.backward(operation, inputs, shapes, untrained),
        branch=operation.branch.value,
        source=operation.source,
        statistics=quantity.statistics,
        flops=quantity.flops,
        grad_norm=quantity.grad_norm,
        forward=quantity.forward,
        backward=quantity.backward,
        drift=quantity.drift,
        error=quantity.error,
    )


def _parameter(parameter: ParameterReport) -> ParameterDocument:
    return ParameterDocument(
        name=parameter.name,
        station=station(parameter.name),
        block=block(parameter.name),
        shape=parameter.shape,
        axes=parameter.axes,
        decayed=parameter.decayed,
        grad_norm=parameter.grad_norm,
        relative_change=parameter.change,
        gradient=parameter.gradient,
        checks=tuple(parameter.checks),
    )


NEXT_TOKEN = r"L = -\tfrac1N \sum_{t\ \text{labelled}} \log p(w_{t+1})"


def _loss(step: StepReport) -> LossDocument:
    loss, objective, last = step.loss, step.record.objective.name, step.quantities[-1]
    shapes = [step.record.shape(step.record.place(name)) for name in last.inputs]
    return LossDocument(
        value=loss.loss,
        exact=step.end_to_end.loss,
        error=sum(one.error or 0.0 for one in step.quantities),
        perplexity=loss.perplexity,
        objective=objective,
        formula=NEXT_TOKEN if objective == "next_token" else last.operation.as_used(*shapes),
        labels=loss.labels,
        positions=loss.positions,
        weight=loss.weight,
        micro_batches=tuple(loss.micro_batches),
        rows=tuple(tuple((label.text, label.surprise) for label in row) for row in loss.rows),
        most_surprising=tuple(
            LabelDocument(row, position, label.text, label.surprise or 0.0) for row, position, label in loss.hardest()
        ),
    )


def _average(step: StepReport) -> tuple[RuleDocument, ...]:
    """The moving average of the weights, where the run keeps one."""
    if not step.record.config.update.ema_decay:
        return ()
    averaged = tuple(parameter.name for parameter in step.record.trained)
    return (RuleDocument("weight_average", (weight_average.equation,), weight_average.source, averaged),)


def _update(step: StepReport) -> UpdateDocument:
    update, sizes = step.update, {parameter.name: parameter.size for parameter in step.record.trained}
    decayed = {parameter.name for parameter in step.record.trained if parameter.decayed}
    return UpdateDocument(
        rules=tuple(
            RuleDocument(type(how).__name__, how.as_used(not decayed.isdisjoint(moved)), how.source, tuple(moved))
            for how, moved in update.by_rule()
        )
        + _average(step),
        number=update.number,
        learning_rate=update.learning_rate,
        grad_norm_before_clip=update.grad_norm,
        max_grad_norm=step.record.config.update.max_grad_norm,
        clip_scale=update.clip_scale,
        optimizer_values=sum(sizes[name] * len(how.moments) for name, how in update.rules.items()),
        checks=tuple(check for check in update.checks if check.name in ("grad_norm", "learning_rate", "updated")),
    )
